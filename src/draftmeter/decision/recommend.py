"""What to run: one target per scenario, and one for all of them, with what each choice costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftmeter.analysis.groups import CellKey, Group, groups_of
from draftmeter.analysis.pairs import speedup_of
from draftmeter.decision.policy import Policy, candidates_of
from draftmeter.record.results import Recommendation, Results, Speedup, Verdict
from draftmeter.record.types import RunData


@dataclass(frozen=True)
class _View:
    """A run as the recommendations see it: cells at the lowest load, and what failed."""

    data: RunData
    groups: Mapping[CellKey, Group]
    speeds: Mapping[tuple[str, str], float]
    load: Mapping[str, tuple[int, int | None]]
    failed: frozenset[tuple[str, str]]
    undecided: frozenset[tuple[str, str]]

    def over(self, one: str, other: str, scenario: str) -> Speedup | None:
        """Speed of one target over another's on a scenario."""
        load = self.load[scenario]
        a, b = (self.groups.get((t, scenario, *load)) for t in (one, other))
        if a is None or b is None:
            return None
        return speedup_of(a.rates, b.rates, self.data.experiment)


def recommendations(
    data: RunData, results: Results, policy: Policy, found: Sequence[Verdict]
) -> list[Recommendation]:
    """For each scenario the fastest candidate that fails no rule; then one server for all.

    Hard rules come first, speed second. Two that cannot be told apart: the plain one is named.
    """
    view = _view(data, results, found)
    wanted = candidates_of(policy, results.targets)
    scenarios = list(dict.fromkeys(c.scenario for c in results.cells))
    advice = [_for_scenario(view, results, s, wanted) for s in scenarios]
    if len(scenarios) > 1:
        advice.append(_for_all(view, results, policy, scenarios, wanted))
    return advice


def _view(data: RunData, results: Results, found: Sequence[Verdict]) -> _View:
    load: dict[str, tuple[int, int | None]] = {}
    for c in results.cells:
        at = (c.concurrency, c.context_tokens)
        load[c.scenario] = min(load.get(c.scenario, at), at, key=lambda x: (x[0], x[1] or 0))
    speeds = {
        (c.target, c.scenario): c.decode_tok_s.median
        for c in results.cells
        if c.decode_tok_s is not None and load[c.scenario] == (c.concurrency, c.context_tokens)
    }
    return _View(
        data=data,
        groups=groups_of(data),
        speeds=speeds,
        load=load,
        failed=frozenset((v.target, v.scenario) for v in found if v.outcome == "fail"),
        undecided=frozenset((v.target, v.scenario) for v in found if v.outcome == "undecided"),
    )


def _for_scenario(
    view: _View, results: Results, scenario: str, wanted: Sequence[str]
) -> Recommendation:
    measured = [t for t in wanted if (t, scenario) in view.speeds]
    allowed = [t for t in measured if (t, scenario) not in view.failed]
    if not allowed:
        why = "meets the policy" if measured else "gave a speed"
        return Recommendation(
            scenario=scenario,
            target=None,
            text=f"{scenario}: none of {_names(wanted)} {why}.",
            accepted_costs=[],
        )
    best = _fastest(view, results, scenario, allowed)
    text = f"{scenario}: run {best}"
    if results.reference != best:
        over = view.over(best, results.reference, scenario)
        text += f", {_figure(over)} the speed of {results.reference}" if over else ""
    if (best, scenario) in view.undecided:
        text += "; some rules are still undecided"
    return Recommendation(
        scenario=scenario,
        target=best,
        text=f"{text}.",
        accepted_costs=_costs(view, results, best, [scenario]),
    )


def _fastest(view: _View, results: Results, scenario: str, allowed: Sequence[str]) -> str:
    best = max(allowed, key=lambda t: view.speeds[t, scenario])
    info = results.targets.get(best)
    if info is None or info.method is None:
        return best
    for other in allowed:
        plain = results.targets.get(other)
        if other == best or plain is None or plain.method is not None:
            continue
        over = view.over(best, other, scenario)
        if over is not None and (over.low is None or over.low <= 1):
            return other  # not shown to be faster: the simpler one
    return best


def _for_all(
    view: _View, results: Results, policy: Policy, scenarios: Sequence[str], wanted: Sequence[str]
) -> Recommendation:
    """The candidate with the least time per token over the traffic, of those that fail nowhere."""
    shares = {s: policy.traffic.get(s, 0.0 if policy.traffic else 1.0) for s in scenarios}
    everywhere = [t for t in wanted if all((t, s) in view.speeds for s in scenarios)]
    allowed = [t for t in everywhere if not any((t, s) in view.failed for s in scenarios)]
    if not allowed:
        return Recommendation(
            scenario=None,
            target=None,
            text=f"One server for all: none of {_names(wanted)} meets the policy everywhere.",
            accepted_costs=[],
        )
    whole = sum(shares.values()) or 1.0
    ms = {t: 1000 * sum(shares[s] / whole / view.speeds[t, s] for s in scenarios) for t in allowed}
    best = min(allowed, key=lambda t: ms[t])
    weights = "shares of the traffic as given" if policy.traffic else "all scenarios alike"
    return Recommendation(
        scenario=None,
        target=best,
        text=f"One server for all: {best}, {ms[best]:.3g} ms per token ({weights}).",
        accepted_costs=_costs(view, results, best, scenarios),
    )


def _costs(view: _View, results: Results, best: str, scenarios: Sequence[str]) -> list[str]:
    """Where the choice is slower than another target that was measured, and by how much."""
    found = []
    for scenario in scenarios:
        others = [t for t in results.targets if t != best and (t, scenario) in view.speeds]
        slower = [
            (over.ratio, t, over)
            for t in others
            if (over := view.over(best, t, scenario)) is not None
            and over.high is not None
            and over.high < 1
        ]
        if slower:
            _, other, over = min(slower, key=lambda item: item[0])
            found.append(f"{scenario}: accepts {_figure(over)} the speed of {other}")
    return found


def _figure(over: Speedup) -> str:
    if over.low is None or over.high is None:
        return f"{over.ratio:.2f}x"
    return f"{over.ratio:.2f}x ({over.low:.2f}-{over.high:.2f})"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
