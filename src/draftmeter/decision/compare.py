"""Two runs of the same experiment: what changed, by interval, and whether a gate lets it pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from draftmeter.analysis.groups import CellKey, Group, groups_of
from draftmeter.analysis.intervals import (
    clustered_ratio_interval,
    difference_interval,
    log_ratio_interval,
)
from draftmeter.analysis.pairs import pair_key
from draftmeter.record.results import Estimate
from draftmeter.record.types import RunData

SCHEMA = "draftmeter.comparison/1"

Metric = Literal["slower", "acceptance", "ttft"]
Outcome = Literal["pass", "fail", "undecided", "not asked"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one cell, B against A.

    ``change``: for slower the ratio of decode tok/s, for ttft of TTFT (both B/A, paired by
    prompt), for acceptance the difference of rates (B - A). ``limit`` is where the gate closes,
    in the same unit; None where it was not asked for.
    """

    metric: Metric
    target: str
    scenario: str
    concurrency: int
    context_tokens: int | None
    pairs: int
    change: float | None
    low: float | None
    high: float | None
    limit: float | None
    outcome: Outcome
    more_pairs: int | None
    text: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Run B against run A (the baseline), cell by cell."""

    schema: str
    baseline: str
    candidate: str
    changes: list[Change]
    notes: list[str]


@dataclass(frozen=True)
class _Seen:
    """What is compared of one cell: values of both runs by prompt."""

    key: CellKey
    a: Group
    b: Group


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Why two resolved experiments must not be compared; empty where nothing stands against it."""
    found = [
        f"{key} differs: {_short(a.get(key))} and {_short(b.get(key))}"
        for key in ("cache", "concurrency", "context")
        if a.get(key) != b.get(key)
    ]
    ours, theirs = (
        {s["name"]: s for s in e.get("scenarios", []) if isinstance(s, Mapping)} for e in (a, b)
    )
    if set(ours) != set(theirs):
        found.append(f"scenarios differ: {_short(sorted(ours))} and {_short(sorted(theirs))}")
    for name in sorted(set(ours) & set(theirs)):
        one, two = ours[name], theirs[name]
        for key in ("prompts", "max_tokens", "temperature", "thinking", "extra_body"):
            if one.get(key) == two.get(key):
                continue
            values = (
                "" if key == "prompts" else f": {_short(one.get(key))} and {_short(two.get(key))}"
            )
            found.append(f"{key} of {name} differ{values}")
    return found


def _short(value: Any) -> str:
    return repr(value)[:60]


def compare(a: RunData, b: RunData, limits: Mapping[Metric, float]) -> Comparison:
    """Every cell both runs have. A single target on each side is compared whatever its name."""
    one, two = groups_of(a), groups_of(b)
    names = {k[0] for k in one}, {k[0] for k in two}
    renamed = ""
    if len(names[0]) == len(names[1]) == 1 and names[0] != names[1]:
        (old,), (new,) = names
        two = {(old, *k[1:]): g for k, g in two.items()}
        renamed = f"target {old!r} is compared with target {new!r}"
    shared = [_Seen(key, one[key], two[key]) for key in one if key in two]
    missing = sorted({k[0] for k in one.keys() ^ two.keys()})
    notes = [renamed] if renamed else []
    if missing:
        notes.append(f"not measured alike in both runs, left out: {', '.join(missing)}")
    if int(a.experiment.get("rounds") or 1) < 2:
        notes.append("each server was started once: a change from start to start is not seen")
    changes = [_change(metric, seen, limits.get(metric)) for seen in shared for metric in _METRICS]
    return Comparison(
        schema=SCHEMA,
        baseline=a.environment.run_id,
        candidate=b.environment.run_id,
        changes=changes,
        notes=notes,
    )


def _change(metric: Metric, seen: _Seen, limit: float | None) -> Change:
    value, pairs = _METRICS[metric](seen)
    closed = None if limit is None else _closed(metric, limit)
    outcome, more = _outcome(metric, value, closed, pairs)
    target, scenario, concurrency, context = seen.key
    return Change(
        metric=metric,
        target=target,
        scenario=scenario,
        concurrency=concurrency,
        context_tokens=context,
        pairs=pairs,
        change=None if value is None else value.value,
        low=None if value is None else value.low,
        high=None if value is None else value.high,
        limit=closed,
        outcome=outcome,
        more_pairs=more,
        text=_text(metric, value, outcome, more),
    )


def _closed(metric: Metric, limit: float) -> float:
    """The gate's limit in the unit of the change: 5 % slower is a ratio of 0.95."""
    return {"slower": 1 - limit, "acceptance": -limit, "ttft": 1 + limit}[metric]


def _outcome(
    metric: Metric, value: Estimate | None, limit: float | None, pairs: int
) -> tuple[Outcome, int | None]:
    """Fail where the whole interval lies beyond the limit, pass where none of it does."""
    if limit is None:
        return "not asked", None
    if value is None or value.low is None or value.high is None:
        return "undecided", None
    good, bad = value.low >= limit, value.high < limit
    if metric == "ttft":
        good, bad = value.high <= limit, value.low > limit
    if good or bad:
        return ("pass" if good else "fail"), None
    distance = abs(value.value - limit)
    half = (value.high - value.low) / 2
    more = math.ceil(pairs * (half / distance) ** 2) - pairs if distance > 0 else None
    return "undecided", max(1, more) if more is not None and more <= 10_000 else None


def _decode(seen: _Seen) -> tuple[Estimate | None, int]:
    return _ratio(seen, seen.a.rates, seen.b.rates)


def _ttft(seen: _Seen) -> tuple[Estimate | None, int]:
    one, two = (
        {
            pair_key(r): t.ttft_ms
            for r, t in zip(g.ok, g.timings, strict=True)
            if t.ttft_ms and not t.buffered
        }
        for g in (seen.a, seen.b)
    )
    return _ratio(seen, one, two)


def _ratio(
    seen: _Seen, one: Mapping[Any, float], two: Mapping[Any, float]
) -> tuple[Estimate | None, int]:
    """Geometric mean of B/A over prompts, Student t on logs; pairs by prompt."""
    a, b = _by_prompt(seen.a, one), _by_prompt(seen.b, two)
    d = [math.log(b[key] / a[key]) for key in a if key in b]
    return log_ratio_interval(d), len(d)


def _by_prompt(group: Group, values: Mapping[Any, float]) -> dict[tuple[int, int], float]:
    """Values by prompt and how often it had come before: the same in runs of any seed."""
    found: dict[tuple[int, int], float] = {}
    times: dict[int, int] = {}
    for record in sorted(group.ok, key=lambda r: r.pair):
        value = values.get(pair_key(record))
        if value is not None:
            times[record.prompt] = times.get(record.prompt, -1) + 1
            found[record.prompt, times[record.prompt]] = value
    return found


def _acceptance(seen: _Seen) -> tuple[Estimate | None, int]:
    """Difference of acceptance rates: two clustered intervals, joined as Welch does."""
    (a, na), (b, nb) = _rate(seen.a), _rate(seen.b)
    if a is None or b is None:
        return None, 0
    return difference_interval(a, na, b, nb), min(na, nb)


def _rate(group: Group) -> tuple[Estimate | None, int]:
    """Acceptance, and how many requests tell it."""
    told = [c for c in group.drafting.by_request.values() if c.drafted]
    return clustered_ratio_interval(
        [c.accepted or 0 for c in told], [c.drafted or 0 for c in told]
    ), len(told)


_METRICS: dict[Metric, Callable[[_Seen], tuple[Estimate | None, int]]] = {
    "slower": _decode,
    "acceptance": _acceptance,
    "ttft": _ttft,
}


def _text(metric: Metric, value: Estimate | None, outcome: Outcome, more: int | None) -> str:
    if value is None:
        return "not measured in both runs"
    points = metric == "acceptance"
    parts = [v for v in (value.value, value.low, value.high) if v is not None]
    shown = [f"{100 * v:+.1f}" for v in parts] if points else [f"{v:.3f}" for v in parts]
    text = f"{shown[0]}{' points' if points else 'x'}"
    if len(shown) == 3:
        text += f" ({shown[1]} to {shown[2]})"
    if outcome == "undecided":
        text += f"; about {more} more pairs would settle it" if more else "; too few requests"
    return text


def refused(changes: Iterable[Change], *, strict: bool = False) -> bool:
    """Does the gate stay closed? ``strict``: also where it cannot be told."""
    closed = ("fail", "undecided") if strict else ("fail",)
    return any(c.outcome in closed for c in changes)


def worst(changes: Sequence[Change]) -> Outcome:
    """Fail before undecided before pass."""
    outcomes = {c.outcome for c in changes}
    order: tuple[Outcome, ...] = ("fail", "undecided", "pass")
    return next((o for o in order if o in outcomes), "not asked")
