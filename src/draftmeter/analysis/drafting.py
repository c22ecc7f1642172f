"""A cell's drafting: its witnesses compared, one of them chosen, and the numbers made from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from draftmeter.analysis.intervals import clustered_ratio_interval
from draftmeter.analysis.witnesses import (
    Fault,
    Testimony,
    agree,
    agrees_with_stream,
    from_counters,
    from_response,
    from_stream,
    longest_draft,
    too_many,
)
from draftmeter.record.results import Drafting, Warn
from draftmeter.record.types import CounterRecord, DraftCounts, RequestRecord, TargetInfo

WitnessName = Literal["counters", "response", "stream"]

CounterIndex = Mapping[tuple[str, int], Mapping[str, CounterRecord]]
"""(target, request) -> its reading "before" and "after"."""


@dataclass(frozen=True)
class CellDrafting:
    """The drafting of a cell, and of each of its requests by id, from the same witness."""

    drafting: Drafting | None
    by_request: dict[int, DraftCounts]
    warnings: list[Warn]


def index_counters(counters: Iterable[CounterRecord]) -> CounterIndex:
    """Readings by the request they were taken around."""
    index: dict[tuple[str, int], dict[str, CounterRecord]] = {}
    for reading in counters:
        index.setdefault((reading.target, reading.request), {})[reading.moment] = reading
    return index


def drafting_of(
    records: Sequence[RequestRecord], counters: CounterIndex, info: TargetInfo
) -> CellDrafting:
    """Drafting over the requests of a cell (those that succeeded).

    The witness that can be believed for most requests is used, counters before response before
    stream where they are equal; all sums are over the requests it covers. Counters are not
    believed for a request where another witness contradicts them or where they hold more than
    it can have caused. Around requests that overlap, counters can't be told apart and are not used.
    """
    longest = longest_draft(info, records)
    seen = {r.id: _testimonies(r, counters, info) for r in records}
    if info.speculative is None and not any(
        t["stream"].counts and t["stream"].counts.accepted for t in seen.values()
    ):
        # One token in every chunk is what a server without speculation sends, too.
        seen = {key: {**t, "stream": Testimony()} for key, t in seen.items()}
    foreign, contradicted, compared = set(), set(), set()
    for record in records:
        told = seen[record.id]
        counted = told["counters"]
        if too_many(counted.counts, counted.generated, record.completion_tokens, longest):
            foreign.add(record.id)
        verdict = _consistent(told, longest)
        if verdict is not None:
            compared.add(record.id)
        if verdict is False:
            contradicted.add(record.id)
    witness, chosen = _choose(seen, foreign | contradicted)
    warnings = _warnings(seen, foreign, contradicted, info, len(records))
    if witness is None or (
        info.speculative is not True and not any(map(_drafted, chosen.values()))
    ):
        # Counters that stand still on a server that does not speculate are no "0 % accepted".
        return CellDrafting(None, {} if witness is None else chosen, warnings)
    agreed = None if not compared else not contradicted
    covered = [r for r in records if r.id in chosen]
    return CellDrafting(_numbers(witness, covered, chosen, agreed), chosen, warnings)


def _testimonies(
    record: RequestRecord, counters: CounterIndex, info: TargetInfo
) -> dict[WitnessName, Testimony]:
    readings = counters.get((record.target, record.id), {})
    counted = Testimony()
    if record.concurrency == 1 and (readings or info.metrics_problem is None):
        counted = from_counters(
            record, readings.get("before"), readings.get("after"), info.draft_tokens
        )
    return {
        "counters": counted,
        "response": from_response(record),
        "stream": from_stream(record, info),
    }


def _consistent(told: Mapping[WitnessName, Testimony], longest: int | None) -> bool | None:
    """Does every other witness agree with the first one there is? None with only one."""
    counted, response, stream = (told[n].counts for n in ("counters", "response", "stream"))
    first = counted or response
    if (
        first is None
        or (response is None and stream is None)
        or (counted is None and stream is None)
    ):
        return None
    checks = []
    if counted is not None and response is not None:
        checks.append(agree(counted, response, longest))
    if stream is not None:
        checks.append(agrees_with_stream(first, stream, longest))
    return all(checks)


def _choose(
    seen: Mapping[int, Mapping[WitnessName, Testimony]], doubted: set[int]
) -> tuple[WitnessName | None, dict[int, DraftCounts]]:
    best: tuple[WitnessName | None, dict[int, DraftCounts]] = (None, {})
    names: tuple[WitnessName, ...] = ("counters", "response", "stream")
    for name in names:
        cover = {
            key: counts
            for key, told in seen.items()
            if (counts := told[name].counts) is not None
            and not (name == "counters" and key in doubted)
        }
        if len(cover) > len(best[1]):
            best = (name, cover)
    return best


def _drafted(counts: DraftCounts) -> bool:
    return bool(counts.drafts or counts.drafted or counts.accepted)


def _numbers(
    witness: WitnessName,
    records: Sequence[RequestRecord],
    chosen: Mapping[int, DraftCounts],
    agreed: bool | None,
) -> Drafting:
    counts = [chosen[r.id] for r in records]
    drafts, drafted = total(c.drafts for c in counts), total(c.drafted for c in counts)
    accepted = total(c.accepted for c in counts)
    completion = total(r.completion_tokens for r in records)
    rate = None
    if drafted and accepted is not None:
        rate = clustered_ratio_interval(
            [c.accepted or 0 for c in counts], [c.drafted or 0 for c in counts]
        )
    low, high = (rate.low, rate.high) if rate else (None, None)
    return Drafting(
        witness=witness,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        rate=rate.value if rate else None,
        rate_low=None if low is None else max(0.0, low),
        rate_high=None if high is None else min(1.0, high),
        tokens_per_step=1 + accepted / drafts if drafts and accepted is not None else None,
        position_acceptance=position_acceptance(counts),
        drafted_share=min(1.0, accepted / completion)
        if completion and accepted is not None
        else None,
        witnesses_agree=agreed,
    )


def position_acceptance(counts: Sequence[DraftCounts]) -> list[float] | None:
    """a_i = accepted_at[i] / drafts; / drafts that reached i where lengths vary and are known.

    Requests that drafted nothing have no positions and take no part. None where a request that
    did draft does not tell its positions. (Field case 21.)
    """
    drafting = [c for c in counts if _drafted(c)]
    drafts = total(c.drafts for c in drafting)
    if not drafts or any(c.accepted_at is None for c in drafting):
        return None
    accepted = _columns([c.accepted_at or [] for c in drafting])
    if any(c.drafted_at is not None for c in drafting):
        reached = _columns([c.drafted_at or [c.drafts or 0] * len(accepted) for c in drafting])
        pairs = zip_longest(accepted, reached, fillvalue=0)
        return [hit / tried if tried else 0.0 for hit, tried in pairs]
    return [hit / drafts for hit in accepted]


def total(values: Iterable[int | None]) -> int | None:
    """The sum, or None when one of the values is unknown: a partial sum is worse than none."""
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    return sum(value for value in known if value is not None)


def _columns(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _warnings(
    seen: Mapping[int, Mapping[WitnessName, Testimony]],
    foreign: set[int],
    contradicted: set[int],
    info: TargetInfo,
    requests: int,
) -> list[Warn]:
    found = []
    faults = Counter(told["counters"].fault for told in seen.values())
    if faults["reset"]:
        found.append(Warn(
            "counters_reset",
            f"the server restarted during {faults['reset']} of {requests} requests (its counters "
            "fell): those are not in the acceptance; look at the server's log for the reason",
        ))  # fmt: skip
    if foreign:
        found.append(Warn(
            "foreign_traffic",
            f"in {len(foreign)} of {requests} requests the counters hold more than they can have "
            "caused: someone else uses the server; measure on a quiet one",
            "error",
        ))  # fmt: skip
    others = contradicted - foreign
    if others:
        found.append(Warn(
            "witnesses_disagree",
            f"counters, response and stream differ beyond counting error in {len(others)} of "
            f"{requests} requests; measure again on a quiet server, and check that the "
            "metrics address belongs to this server and counts this model only",
        ))  # fmt: skip
    if info.speculative is not False:
        found += _missing(seen, faults, requests, info.metrics_problem)
    coalesced = sum(told["stream"].fault == "coalesced" for told in seen.values())
    if coalesced:
        found.append(Warn(
            "chunks_coalesced",
            f"{coalesced} of {requests} responses had several steps in one chunk: the stream is "
            "no witness there; use counters, or set the server's stream interval to 1",
            "note",
        ))  # fmt: skip
    return found


def _missing(
    seen: Mapping[int, Mapping[WitnessName, Testimony]],
    faults: Counter[Fault | None],
    requests: int,
    metrics_problem: str | None,
) -> list[Warn]:
    """One warning for all requests whose counters say nothing; a note where others spoke."""
    gone = faults["missing"] + faults["unsettled"]
    silent = sum(not any(t.counts for t in told.values()) for told in seen.values())
    if metrics_problem is not None and silent:
        return [Warn(
            "counters_missing",
            f"drafting is unknown in {silent} of {requests} requests: {metrics_problem}; "
            "name the place of the counters with metrics_url",
        )]  # fmt: skip
    if not gone:
        return []
    details = [t["counters"].detail for t in seen.values() if t["counters"].detail]
    why = f" ({details[0]})" if details else ""
    return [Warn(
        "counters_missing",
        f"no usable counters around {gone} of {requests} requests, {faults['unsettled']} of them "
        f"still moving{why}; check the metrics address, and that nobody else uses the server",
        "warning" if silent else "note",
    )]  # fmt: skip
