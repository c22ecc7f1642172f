"""The records of a run, sorted into cells, with what several numbers of a cell are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftmeter.analysis.drafting import CellDrafting, CounterIndex, drafting_of, index_counters
from draftmeter.analysis.pairs import PairKey, pair_key, speeds
from draftmeter.analysis.stepcost import decode_steps
from draftmeter.analysis.timing import RequestTiming, timing_of
from draftmeter.record.types import RequestRecord, RunData, TargetInfo

CellKey = tuple[str, str, int, int | None]
"""Target, scenario, concurrency, context in tokens."""


@dataclass
class Group:
    """The records of a cell with what is worked out once for all its numbers.

    ``ok`` succeeded; ``rates`` are decode tok/s of those long enough, by pair; ``steps`` are
    (decode tokens, engine steps) of each request whose drafting is known, by pair.
    """

    key: CellKey
    info: TargetInfo
    records: list[RequestRecord]
    ok: list[RequestRecord]
    timings: list[RequestTiming]
    rates: dict[PairKey, float]
    drafting: CellDrafting
    steps: dict[PairKey, tuple[int, int]] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Nothing was drafted, and the server does not say that it speculates."""
        return self.info.speculative is not True and self.drafting.drafting is None


def groups_of(data: RunData) -> dict[CellKey, Group]:
    """Measured requests by cell, in the order of the experiment. Warm-up is not counted."""
    by_key: dict[CellKey, list[RequestRecord]] = {}
    for r in data.records:
        if r.phase == "measure":
            key = (r.target, r.scenario, r.concurrency, r.context_tokens)
            by_key.setdefault(key, []).append(r)
    scenarios = _rank([*names_of(data.experiment.get("scenarios")), *(k[1] for k in by_key)])
    targets = _rank([*names_of(data.experiment.get("targets")), *(k[0] for k in by_key)])
    ordered = sorted(
        by_key, key=lambda k: (scenarios[k[1]], k[2], -1 if k[3] is None else k[3], targets[k[0]])
    )
    counters = index_counters(data.counters)
    unknown = TargetInfo(engine="unknown")
    return {
        key: _group(key, data.environment.targets.get(key[0], unknown), by_key[key], counters)
        for key in ordered
    }


def _group(
    key: CellKey, info: TargetInfo, records: list[RequestRecord], counters: CounterIndex
) -> Group:
    ok = [r for r in records if r.error is None]
    group = Group(
        key=key,
        info=info,
        records=records,
        ok=ok,
        timings=[timing_of(r) for r in ok],
        rates=speeds(ok),
        drafting=drafting_of(ok, counters, info),
    )
    group.steps = _steps(group)
    return group


def _steps(group: Group) -> dict[PairKey, tuple[int, int]]:
    """Decode tokens and engine steps of each request whose accepted tokens are known."""
    found = {}
    off = group.info.speculative is False and group.drafting.drafting is None
    for record, timing in zip(group.ok, group.timings, strict=True):
        counts = group.drafting.by_request.get(record.id)
        accepted = 0 if off else counts.accepted if counts is not None else None
        if accepted is None or not timing.decode_tokens:
            continue
        drafts = counts.drafts if counts is not None else None
        steps = decode_steps(timing.decode_tokens, accepted, drafts)
        found[pair_key(record)] = (timing.decode_tokens, steps)
    return found


def plain_counterpart(
    group: Group, groups: Mapping[CellKey, Group], reference: str
) -> Group | None:
    """The cell that shows what a plain step takes: same scenario, same model, nothing drafted.

    The reference if it is one, else the first target that is. Another model's step is no measure.
    """
    if group.drafting.drafting is None:
        return None
    fitting = [
        other
        for other in groups.values()
        if other.key[1:] == group.key[1:]
        and other.plain
        and (None in (other.info.model, group.info.model) or other.info.model == group.info.model)
    ]
    return min(fitting, key=lambda other: other.key[0] != reference, default=None)


def names_of(part: Any) -> list[str]:
    """Names of targets or scenarios in a resolved experiment: a mapping, or a list."""
    if isinstance(part, Mapping):
        return [str(name) for name in part]
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [str(item["name"]) if isinstance(item, Mapping) and "name" in item else str(item)
                for item in part]  # fmt: skip
    return []


def _rank(names: Iterable[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(dict.fromkeys(names))}
