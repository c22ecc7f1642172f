"""A policy and the numbers of a run: verdicts by interval, and what to run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from draftmeter.analysis.groups import CellKey, Group, groups_of
from draftmeter.analysis.intervals import quantile_interval
from draftmeter.analysis.pairs import speedup_of
from draftmeter.record.results import Cell, Estimate, Results, Verdict
from draftmeter.record.types import RunData

Outcome = Literal["pass", "fail", "undecided"]

AGAINST = {"min_speedup": "over", "max_slowdown": "than"}
"""Rules on a ratio, and the key that names the other target."""
MOST_MORE = 10_000
"""More requests than this are no plan: then the rule cannot be settled by measuring longer."""


@dataclass(frozen=True)
class Policy:
    """What is demanded, by scenario and rule.

    ``traffic`` is each scenario's share of the tokens (equal where empty); ``candidates`` are the
    targets to judge; where empty, those that no rule names as the one to compare with.
    """

    rules: Mapping[str, Mapping[str, Any]]
    traffic: Mapping[str, float]
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class _Case:
    """One rule on one target's cell."""

    rule: str
    limit: float
    against: str | None
    cell: Cell
    group: Group
    groups: Mapping[CellKey, Group]
    data: RunData


def policy_of(experiment: Mapping[str, Any]) -> Policy:
    """The policy in a resolved experiment (or in plain data of the same form)."""
    return Policy(
        rules=experiment.get("policy") or {},
        traffic=experiment.get("traffic") or {},
        candidates=tuple(experiment.get("candidates") or ()),
    )


def candidates_of(policy: Policy, targets: Iterable[str]) -> list[str]:
    """The targets that are judged, in the order of the run."""
    known = list(targets)
    if policy.candidates:
        return [t for t in known if t in policy.candidates]
    named = {
        limit[AGAINST[rule]]
        for rules in policy.rules.values()
        for rule, limit in rules.items()
        if rule in AGAINST
    }
    return [t for t in known if t not in named] or known


def verdicts(data: RunData, results: Results, policy: Policy) -> list[Verdict]:
    """Every rule for every candidate, judged in each of its cells of that scenario."""
    groups = groups_of(data)
    wanted = candidates_of(policy, results.targets)
    found = []
    for cell in results.cells:
        rules = policy.rules.get(cell.scenario, {})
        if cell.target not in wanted:
            continue
        key = (cell.target, cell.scenario, cell.concurrency, cell.context_tokens)
        for rule, limit in rules.items():
            against = limit[AGAINST[rule]] if rule in AGAINST else None
            if against == cell.target:
                continue
            value = _limit(rule, limit)
            found.append(_verdict(_Case(rule, value, against, cell, groups[key], groups, data)))
    return found


def refused(found: Sequence[Verdict]) -> bool:
    """No candidate is free of failed rules: the policy cannot be met by what was measured."""
    targets = {v.target for v in found}
    return bool(targets) and all(
        any(v.outcome == "fail" for v in found if v.target == target) for target in targets
    )


def _limit(rule: str, limit: Any) -> float:
    """A rule's limit as a number; of a slowdown, the ratio that must remain (0.55 -> 0.45)."""
    if rule == "max_slowdown":
        return float(1 - limit["by"])
    return float(limit["by"] if rule == "min_speedup" else limit)


def _verdict(case: _Case) -> Verdict:
    if case.rule in AGAINST:
        return _ratio(case)
    if case.rule == "min_tok_s":
        spread = case.cell.decode_tok_s
        value = None if spread is None else Estimate(spread.median, spread.low, spread.high)
        n = case.cell.speed_requests
        return _judged(case, value, n, atleast=True, unit="tok/s", what="median decode speed")
    if case.rule == "max_errors":
        return _errors(case)
    visible = case.rule.startswith("visible")
    times = [
        t
        for timing in case.group.timings
        if (t := timing.visible_ttft_ms if visible else timing.ttft_ms) is not None
        and not timing.buffered
    ]
    value = quantile_interval(times, 0.95)
    name = "95th percentile of the visible TTFT" if visible else "95th percentile of the TTFT"
    return _judged(case, value, len(times), atleast=False, unit="ms", what=name)


def _ratio(case: _Case) -> Verdict:
    key: CellKey = (case.against or "", *case.group.key[1:])
    other = case.groups.get(key)
    speedup = None
    if other is not None:
        speedup = speedup_of(case.group.rates, other.rates, case.data.experiment)
    value = None if speedup is None else Estimate(speedup.ratio, speedup.low, speedup.high)
    pairs = speedup.pairs if speedup is not None else 0
    return _judged(case, value, pairs, atleast=True, unit="x", what=f"speed over {case.against}")


def _errors(case: _Case) -> Verdict:
    """Failed requests of this run: a count, or below 1 a share. It is a fact, not an estimate."""
    failed = sum(case.cell.errors.values())
    total = failed + case.cell.requests
    share = 0 < case.limit < 1
    measured = failed / total if share and total else float(failed)
    outcome: Outcome = "pass" if measured <= case.limit else "fail"
    shown = f"{failed} of {total} requests failed"
    return _made(case, Estimate(measured, None, None), outcome, None, shown)


def _judged(
    case: _Case, value: Estimate | None, n: int, *, atleast: bool, unit: str, what: str
) -> Verdict:
    """Pass or fail where the whole interval lies on one side of the limit, else undecided."""
    if value is None:
        return _made(case, None, "undecided", None, f"{what} was not measured")
    bound = f"{'at least' if atleast else 'at most'} {_figure(case.limit, unit)}"
    shown = f"{what} {_figure(value.value, unit)}"
    if value.low is None or value.high is None:
        return _made(case, value, "undecided", None, f"{shown}, too few requests for an interval; "
                     f"{bound} is asked for")  # fmt: skip
    shown += f" ({_figure(value.low, '')}-{_figure(value.high, '')}), {bound} is asked for"
    good = value.low >= case.limit if atleast else value.high <= case.limit
    bad = value.high < case.limit if atleast else value.low > case.limit
    if good or bad:
        return _made(case, value, "pass" if good else "fail", None, shown)
    more = _more(value, case.limit, n, logs=unit != "tok/s")
    shown += f"; about {more} more requests like these would settle it" if more else (
        "; too near the limit to be settled by measuring longer")  # fmt: skip
    return _made(case, value, "undecided", more, shown)


def _more(value: Estimate, limit: float, n: int, *, logs: bool) -> int | None:
    """Requests to add until the interval's end would reach the limit: it shrinks as 1/sqrt n."""
    if value.low is None or value.high is None or limit <= 0 or value.low <= 0:
        return None
    scale = math.log if logs else float
    middle, distance = scale(value.value), abs(scale(value.value) - scale(limit))
    end = value.low if value.value > limit else value.high
    half = abs(scale(end) - middle)
    if distance <= 0:
        return None
    more = math.ceil(n * (half / distance) ** 2) - n
    return max(1, more) if more <= MOST_MORE else None


def _made(
    case: _Case, value: Estimate | None, outcome: Outcome, more: int | None, text: str
) -> Verdict:
    return Verdict(
        scenario=case.cell.scenario,
        target=case.cell.target,
        rule=case.rule,
        against=case.against,
        concurrency=case.cell.concurrency,
        context_tokens=case.cell.context_tokens,
        limit=case.limit,
        measured=None if value is None else value.value,
        low=None if value is None else value.low,
        high=None if value is None else value.high,
        outcome=outcome,
        more_requests=more,
        text=text,
    )


def _figure(value: float, unit: str) -> str:
    text = f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
    return text + ("x" if unit == "x" else f" {unit}" if unit else "")
