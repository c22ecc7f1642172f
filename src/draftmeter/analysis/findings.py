"""What ``draftmeter check`` says of a server, from one look at it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from draftmeter.analysis.timing import timing_of
from draftmeter.record.types import CounterSnapshot, RequestRecord, TargetInfo

Status = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the table: what was looked at, how it stands, and what to do about it."""

    name: str
    status: Status
    text: str
    advice: str = ""


def findings(
    info: TargetInfo,
    record: RequestRecord,
    *,
    quiet: Sequence[CounterSnapshot],
    before: CounterSnapshot | None,
    after: CounterSnapshot | None,
    settled: bool,
    has_counters: bool,
    how_to_measure: str,
    asked: Sequence[str],
) -> list[Finding]:
    """All findings, in the order in which a person asks the questions.

    ``has_counters``: drafting counters are known of this engine; False for one not recognised.
    """
    moved = _moved(before, after)
    return [
        _engine(info, has_counters=has_counters),
        Finding("model", "ok", info.model or "?"),
        _answer(record),
        _tokens(record, asked),
        _buffering(record),
        _speculation(info, record, moved, how_to_measure),
        _counters(info, before, after, settled=settled, how_to_measure=how_to_measure),
        _others(quiet, record, moved),
    ]


def _engine(info: TargetInfo, *, has_counters: bool) -> Finding:
    version = info.engine_version or "version not told"
    if not has_counters:
        return Finding(
            "engine",
            "warning",
            f"not recognised; spoken to as OpenAI-compatible ({version})",
            "no counters are known for it: only speed can be measured",
        )
    return Finding("engine", "ok", f"{info.engine} {version}")


def _answer(record: RequestRecord) -> Finding:
    if record.error is not None:
        status = f" (HTTP {record.error.status})" if record.error.status else ""
        return Finding(
            "streaming",
            "problem",
            f"{record.error.message}{status}",
            "a request must work before it can be measured",
        )
    timing = timing_of(record)
    ttft = "-" if timing.ttft_ms is None else f"{timing.ttft_ms:.0f} ms"
    speed = (
        "" if timing.decode_tok_s is None else f", {timing.decode_tok_s:.0f} tok/s in one request"
    )
    return Finding(
        "streaming", "ok", f"{len(record.at_us)} chunks, first token after {ttft}{speed}"
    )


def _tokens(record: RequestRecord, asked: Sequence[str]) -> Finding:
    how = ", ".join(asked) or "nothing"
    if record.token_source == "token_ids":
        return Finding("token counts", "ok", f"token ids on every chunk (asked for: {how})")
    if record.token_source == "running_usage":
        return Finding("token counts", "ok", f"running count on every chunk (asked for: {how})")
    if record.token_source == "final_usage":
        return Finding(
            "token counts",
            "warning",
            "only the total at the end of a response",
            "the first chunk is taken for one token; speed errs by up to (m-1)/(N-1) if it holds m",
        )
    return Finding(
        "token counts",
        "problem",
        "the server states no token counts",
        "chunks are not tokens: without usage no decode rate can be given; update the server",
    )


def _buffering(record: RequestRecord) -> Finding:
    if record.error is not None or len(record.at_us) < 2:
        return Finding("buffering", "warning", "not enough chunks to tell")
    if timing_of(record).buffered:
        return Finding(
            "buffering",
            "problem",
            "all chunks came at once at the end",
            "a proxy buffers the stream; go around it, or set proxy_buffering off (nginx)",
        )
    return Finding("buffering", "ok", "chunks come as they are made")


def _speculation(
    info: TargetInfo, record: RequestRecord, moved: CounterSnapshot | None, how: str
) -> Finding:
    kind = f" ({info.method})" if info.method else ""
    length = f", K={info.draft_tokens}" if info.draft_tokens else ""
    drafted = record.drafting.drafted if record.drafting else None
    accepted = record.drafting.accepted if record.drafting else None
    if moved is not None and moved.drafted is not None:
        drafted, accepted = int(moved.drafted), int(moved.accepted or 0)
    if drafted:
        return Finding(
            "speculation",
            "ok",
            f"on{kind}{length}: {accepted} of {drafted} drafted tokens accepted in this request",
        )
    if info.speculative is False:
        return Finding("speculation", "ok", "off: this server can serve as the plain reference")
    if info.speculative:
        return Finding(
            "speculation",
            "warning",
            f"on{kind}{length}, but nothing was drafted here",
            "n-gram drafts need text that repeats; otherwise look at the server's log",
        )
    return Finding("speculation", "warning", "the server does not tell", how)


def _counters(
    info: TargetInfo,
    before: CounterSnapshot | None,
    after: CounterSnapshot | None,
    *,
    settled: bool,
    how_to_measure: str,
) -> Finding:
    if info.metrics_problem is not None:
        return Finding(
            "counters",
            "warning",
            info.metrics_problem,
            f"name the place with --metrics-url, or: {how_to_measure}",
        )
    if before is None or after is None:
        return Finding("counters", "warning", "could not be read", how_to_measure)
    notes = "; ".join(after.notes)
    if not settled:
        return Finding(
            "counters",
            "warning",
            "kept moving after our request ended",
            "something else uses the server, or its counters lag: measure on a quiet one",
        )
    what = "generated tokens" if after.drafts is None else "generated tokens and drafting"
    engines = f", {after.engines} engines added up" if after.engines > 1 else ""
    if after.generation_tokens is None and after.drafts is None:
        return Finding(
            "counters",
            "warning",
            notes or "reachable, but without the series needed",
            how_to_measure,
        )
    return Finding("counters", "ok", f"{what}{engines}" + (f" ({notes})" if notes else ""))


def _others(
    quiet: Sequence[CounterSnapshot], record: RequestRecord, moved: CounterSnapshot | None
) -> Finding:
    advice = "measure when it is quiet: other traffic slows the answers and enters the counters"
    if len(quiet) < 2:
        return Finding("other users", "warning", "cannot be seen without counters", advice)
    first, last = quiet[0], quiet[-1]
    made = (last.generation_tokens or 0) - (first.generation_tokens or 0)
    if made > 0 or (last.running or 0) > 0:
        return Finding(
            "other users",
            "problem",
            f"others use it: {made:.0f} tokens made while we sent "
            f"nothing, {last.running or 0:.0f} requests running",
            advice,
        )
    ours = record.completion_tokens
    if moved is not None and moved.generation_tokens is not None and ours is not None:
        extra = moved.generation_tokens - ours
        if extra > 1:
            return Finding(
                "other users",
                "problem",
                f"{extra:.0f} tokens beyond ours were made during our request",
                advice,
            )
    return Finding("other users", "ok", "none seen")


def _moved(before: CounterSnapshot | None, after: CounterSnapshot | None) -> CounterSnapshot | None:
    """Counter differences around our request; None where they cannot be had."""
    if before is None or after is None:
        return None

    def difference(one: float | None, two: float | None) -> float | None:
        if two is None:
            return None
        return two - (one or 0.0) if two >= (one or 0.0) else None

    return CounterSnapshot(
        drafts=difference(before.drafts, after.drafts),
        drafted=difference(before.drafted, after.drafted),
        accepted=difference(before.accepted, after.accepted),
        generation_tokens=difference(before.generation_tokens, after.generation_tokens),
    )
