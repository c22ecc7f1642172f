"""What makes a cell doubtful, each with what to do about it.

Every check is one small function from what was seen to at most one warning.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from draftmeter.analysis.intervals import MINIMUM_CLUSTERS, t_quantile
from draftmeter.analysis.pairs import pair_key, speed_of
from draftmeter.analysis.timing import LONG_ENOUGH_TOKENS, RequestTiming
from draftmeter.record.results import Cell, MachineNoise, Warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.record.types import RequestRecord, TargetInfo

CLIENT_BUSY = 0.8
CACHED_TOKENS_MATTER = 64
DRIFT = 0.05
OUTLIER = 0.5
LENGTHS_DIFFER = 1.5
FINISHES_DIFFER = 1 / 3
STEP_TIME_DIFFERS = 0.10
DEAD_AFTER_DRAFTS = 20


@dataclass(frozen=True)
class Seen:
    """A cell and what it was made from.

    ``reference`` are the reference's successful requests of the same scenario, None for the
    reference itself; ``no_counterpart``: it speculates, and no plain target has its model.
    """

    cell: Cell
    info: TargetInfo
    records: Sequence[RequestRecord]
    ok: Sequence[RequestRecord]
    timings: Sequence[RequestTiming]
    reference: Sequence[RequestRecord] | None
    noise: MachineNoise | None
    no_counterpart: bool
    cache_bust: bool


def all_of(seen: Seen) -> list[Warn]:
    """Every warning that applies, the gravest kinds first."""
    checks = (
        _errors, _buffered, _tokens_unknown, _short_answers, _too_few_pairs, _outputs_differ,
        _within_machine_noise, _outliers, _drift, _client_busy, _cached_prompt, _nothing_drafted,
        _accepted_nothing, _position_dead, _drafts_shorter, _repeating_text,
        _first_chunk_assumed, _counts_differ, _step_time_differs, _no_counterpart,
    )  # fmt: skip
    return [warning for check in checks if (warning := check(seen)) is not None]


def _errors(seen: Seen) -> Warn | None:
    failed = [r.error for r in seen.records if r.error is not None]
    if not failed:
        return None
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(e.kind for e in failed).most_common())
    return Warn(
        "errors",
        f"{len(failed)} of {len(seen.records)} requests failed ({kinds}): "
        f"{failed[0].message[:200]}; look at the server's log before believing the rest",
        "error" if len(failed) * 5 > len(seen.records) else "warning",
    )


def _buffered(seen: Seen) -> Warn | None:
    held = sum(t.buffered for t in seen.timings)
    if not held:
        return None
    return Warn(
        "buffered",
        f"{held} of {len(seen.ok)} streams were held back and came at once: their TTFT and "
        "speed are unknown; go around the proxy, or switch its buffering off "
        "(nginx: proxy_buffering off)",
        "error" if held * 2 > len(seen.ok) else "warning",
    )


def _tokens_unknown(seen: Seen) -> Warn | None:
    unknown = sum(t.completion_tokens is None for t in seen.timings)
    if not unknown:
        return None
    return Warn(
        "tokens_unknown",
        f"the server states no token counts for {unknown} of {len(seen.ok)} requests, and chunks "
        "are not tokens: no decode rate; update the server so that it honours "
        "stream_options.include_usage",
    )


def _short_answers(seen: Seen) -> Warn | None:
    short = sum(t.completion_tokens is not None and not t.long_enough for t in seen.timings)
    if not short:
        return None
    return Warn(
        "short_answers",
        f"{short} of {len(seen.ok)} answers have fewer than {LONG_ENOUGH_TOKENS} tokens and count "
        "for acceptance, not for speed; ask for longer ones if speed matters here",
        "warning" if seen.cell.speed_requests < MINIMUM_CLUSTERS else "note",
    )


def _too_few_pairs(seen: Seen) -> Warn | None:
    pairs = seen.cell.speedup.pairs if seen.cell.speedup is not None else 0
    if seen.reference is None or pairs >= MINIMUM_CLUSTERS:
        return None
    return Warn(
        "too_few_pairs",
        f"only {pairs} pairs of requests can be compared with the reference: there is no interval "
        f"below {MINIMUM_CLUSTERS}; measure more (requests: count or budget, or --resume)",
    )


def _outputs_differ(seen: Seen) -> Warn | None:
    """Field case 25: 128-token answers against 2048-token ones are no comparison."""
    theirs = {pair_key(r): r for r in seen.reference or ()}
    both = [(r, theirs[pair_key(r)]) for r in seen.ok if pair_key(r) in theirs]
    if len(both) < MINIMUM_CLUSTERS:
        return None
    ours = sum(r.completion_tokens or 0 for r, _ in both) / len(both)
    other = sum(r.completion_tokens or 0 for _, r in both) / len(both)
    if ours and other and max(ours, other) > LENGTHS_DIFFER * min(ours, other):
        return Warn(
            "outputs_differ",
            f"answers have {ours:.0f} tokens on average, the reference's {other:.0f}: not the same "
            "work; check max_tokens, template and thinking on both, or fix the length "
            "(ignore_eos)",
        )
    finishes = Counter(r.finish_reason for r, _ in both)
    finishes.subtract(Counter(r.finish_reason for _, r in both))
    moved = sum(n for n in finishes.values() if n > 0) / len(both)
    if moved <= FINISHES_DIFFER:
        return None
    return Warn(
        "outputs_differ",
        f"{moved:.0%} of the answers end for another reason than the reference's (stop, length): "
        "not the same work; check stop tokens, template and max_tokens on both",
    )


def _within_machine_noise(seen: Seen) -> Warn | None:
    speedup, noise = seen.cell.speedup, seen.noise
    if speedup is None or noise is None or noise.low is None or noise.high is None:
        return None
    if not noise.low <= speedup.ratio <= noise.high:
        return None
    return Warn(
        "within_machine_noise",
        f"the speedup of {speedup.ratio:.2f}x lies within what the reference differs from itself "
        f"({noise.low:.2f}-{noise.high:.2f}x): not a speedup on this machine; quieten it or "
        "measure more",
    )


def _outliers(seen: Seen) -> Warn | None:
    """Requests far below the cell's median rate. Drafting varies with the text: more is allowed."""
    rates = [v for r in seen.ok if (v := speed_of(r)) is not None]
    if len(rates) < MINIMUM_CLUSTERS:
        return None
    middle = median(rates)
    bound = OUTLIER if seen.cell.drafting is None else OUTLIER / 2
    slow = [v for v in rates if v < bound * middle]
    if not slow:
        return None
    return Warn(
        "outliers",
        f"{len(slow)} of {len(rates)} requests ran far below the median speed (slowest "
        f"{min(slow):.3g} against {middle:.3g} tok/s): something else used the machine; "
        "measure again when it is quiet",
    )


def _drift(seen: Seen) -> Warn | None:
    """Least squares of ln(rate) on session time: more than 5 % over the session, t test at 1 %."""
    points = [(r.session_s, math.log(v)) for r in seen.ok if (v := speed_of(r)) is not None]
    n = len(points)
    if n < 6:
        return None
    x0, y0 = (math.fsum(p[i] for p in points) / n for i in (0, 1))
    sxx = math.fsum((x - x0) ** 2 for x, _ in points)
    if sxx <= 0:
        return None
    slope = math.fsum((x - x0) * (y - y0) for x, y in points) / sxx
    residual = math.fsum((y - y0 - slope * (x - x0)) ** 2 for x, y in points)
    error = math.sqrt(residual / (n - 2) / sxx)
    xs = [x for x, _ in points]
    change = math.expm1(slope * (max(xs) - min(xs)))
    if abs(change) <= DRIFT or abs(slope) <= t_quantile(0.995, n - 2) * error:
        return None
    return Warn(
        "drift",
        f"decode speed changed by {change:+.0%} from the first to the last request: heat, power "
        "limit or another load; let the machine settle and measure again",
    )


def _client_busy(seen: Seen) -> Warn | None:
    shares = [r.client_cpu for r in seen.ok if r.client_cpu is not None]
    if not shares or median(shares) <= CLIENT_BUSY:
        return None
    return Warn(
        "client_busy",
        f"draftmeter itself used {median(shares):.0%} of a core: token times may be late; measure "
        "from an idle machine or a faster core",
    )


def _cached_prompt(seen: Seen) -> Warn | None:
    if not seen.cache_bust:
        return None
    cached = sum(
        r.usage is not None
        # A chat template's own beginning is the same in every prompt and may be cached.
        and (r.usage.cached_tokens or 0) >= CACHED_TOKENS_MATTER
        and (r.usage.cached_tokens or 0) * 2 > (r.usage.prompt_tokens or math.inf)
        for r in seen.ok
    )
    if not cached:
        return None
    return Warn(
        "cached_prompt",
        f"in {cached} of {len(seen.ok)} requests more than half of the prompt came from the prefix "
        "cache although every prompt is new: TTFT is too good; switch prefix caching off, "
        "or say cache: keep if this is wanted",
    )


def _nothing_drafted(seen: Seen) -> Warn | None:
    drafting = seen.cell.drafting
    if seen.info.speculative is not True or drafting is None or drafting.drafts or drafting.drafted:
        return None
    if drafting.drafts is None and drafting.drafted is None:
        return None
    return Warn(
        "nothing_drafted",
        "speculation is configured, but nothing was drafted: n-gram drafts need text that repeats; "
        "with a draft head or model, look for it in the server's log",
    )


def _accepted_nothing(seen: Seen) -> Warn | None:
    """Field case 18."""
    drafting = seen.cell.drafting
    if drafting is None or drafting.accepted != 0 or not (drafting.drafts or drafting.drafted):
        return None
    if drafting.drafts and drafting.drafts < 0.5 * (seen.cell.completion_tokens or 0):
        return Warn(
            "accepted_nothing",
            f"0 of {drafting.drafted or '?'} drafted tokens were accepted, and few steps drafted "
            "at all: n-gram drafts need text that repeats itself or the prompt",
        )
    return Warn(
        "accepted_nothing",
        f"0 of {drafting.drafted or '?'} drafted tokens were accepted: usually "
        "the draft head is missing from the checkpoint or was mis-quantised by its exporter (keep "
        "mtp.* out of quantisation), or the draft model's tokenizer differs",
    )


def _position_dead(seen: Seen) -> Warn | None:
    drafting = seen.cell.drafting
    if drafting is None or not drafting.accepted or (drafting.drafts or 0) < DEAD_AFTER_DRAFTS:
        return None
    dead = [i for i, rate in enumerate(drafting.position_acceptance or []) if rate == 0]
    if not dead:
        return None
    return Warn(
        "position_dead",
        f"no token was ever accepted at position {dead[0] + 1} of a draft or later: drafts longer "
        f"than {dead[0]} only cost time; use {dead[0]} draft tokens"
        + ("" if "ngram" in (seen.info.method or "") else ", and check the draft head"),
    )


def _drafts_shorter(seen: Seen) -> Warn | None:
    drafting, k = seen.cell.drafting, seen.info.draft_tokens
    if drafting is None or not k or not drafting.drafts or drafting.drafted is None:
        return None
    mean = drafting.drafted / drafting.drafts
    if mean >= 0.95 * k:
        return None
    return Warn(
        "drafts_shorter",
        f"drafts hold {mean:.1f} tokens on average, not the {k} configured: the server shortens "
        "them, so there is no break-even rate for a full draft",
        "note",
    )


def _repeating_text(seen: Seen) -> Warn | None:
    """Field case 21d: text that repeats is accepted nearly always and says nothing of real text."""
    looped = sum(t.looped for t in seen.timings)
    drafting = seen.cell.drafting
    if not looped or drafting is None:
        return None
    rate = "unknown" if drafting.rate is None else f"{drafting.rate:.0%}"
    high = drafting.rate is not None and drafting.rate >= 0.9
    return Warn(
        "repeating_text",
        f"{looped} of {len(seen.ok)} answers end in a passage repeated over and over (acceptance "
        f"{rate}): loops are easy to draft; shorten max_tokens, drop ignore_eos, or sample warmer",
        "warning" if high or looped * 4 >= len(seen.ok) else "note",
    )


def _first_chunk_assumed(seen: Seen) -> Warn | None:
    used = [t for t in seen.timings if t.first_chunk_assumed and t.decode_tok_s is not None]
    if not used:
        return None
    n = median(t.completion_tokens or 0 for t in used)
    text = "only the total number of tokens is known, so the first chunk is taken for one token"
    if seen.info.draft_tokens and n > 1:
        bound = seen.info.draft_tokens / (n - 1)
        text += f"; if it held a whole draft, the speed is up to {bound:.1%} too high"
    return Warn("first_chunk_assumed", text + "; a server that sends token ids settles it", "note")


def _counts_differ(seen: Seen) -> Warn | None:
    notes = [note for t in seen.timings for note in t.notes]
    if not notes:
        return None
    return Warn("counts_differ", f"in {len(notes)} of {len(seen.ok)} requests {notes[0]}", "note")


def _step_time_differs(seen: Seen) -> Warn | None:
    """Field case 21c: the engine's own clock is an independent check of the time of a step."""
    ours, theirs = seen.cell.step_ms, seen.cell.server_step_ms
    if ours is None or theirs is None or seen.cell.concurrency > 1:
        return None
    if abs(ours / theirs - 1) <= STEP_TIME_DIFFERS:
        return None
    return Warn(
        "step_time_differs",
        f"a step takes {ours:.3g} ms as the stream shows it, {theirs:.3g} ms by the engine's own "
        "clock: something between the two holds tokens back; measure from the server's host",
    )


def _no_counterpart(seen: Seen) -> Warn | None:
    if not seen.no_counterpart:
        return None
    return Warn(
        "no_counterpart",
        "no target runs the same model without speculation, so there is no step cost: add one, "
        "served under the same model name",
        "note",
    )
