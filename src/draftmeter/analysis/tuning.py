"""The best draft length for each speculative target and scenario, from the cells of a run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from draftmeter.analysis.draftlength import (
    Point,
    law_of,
    next_to_measure,
    predict,
    shared_pairs,
)
from draftmeter.analysis.groups import CellKey, Group, plain_counterpart
from draftmeter.analysis.intervals import clustered_ratio_interval
from draftmeter.analysis.pairs import log_ratios, pair_key
from draftmeter.record.results import DraftLength, Estimate, Tuning
from draftmeter.record.types import DraftCounts, Environment, TargetInfo

NEAR_OPTIMUM = 0.01
"""Draft lengths whose speedups differ by less than 1 % are equally good."""


@dataclass(frozen=True)
class Measured:
    """A speculative cell whose step cost and position acceptance are known."""

    group: Group
    plain: Group
    point: Point


def tunings(groups: Mapping[CellKey, Group], reference: str, env: Environment) -> list[Tuning]:
    """One entry for each speculative cell with a plain counterpart and known positions.

    Targets of the same engine, model and method with other K, measured on the same scenario, fix
    the law of the step cost together.
    """
    measured = [m for g in groups.values() if (m := _measured(g, groups, reference, env))]
    found = []
    for one in measured:
        family = {
            other.point.draft_tokens: other
            for other in measured
            if other is one or _same_family(one.group, other.group)
        }
        family[one.point.draft_tokens] = one
        members = [family[k] for k in sorted(family)]
        found.append(_tuning(one, members))
    return found


def _same_family(one: Group, other: Group) -> bool:
    """The same but for K; an unknown method is taken for the same."""
    a, b = one.info, other.info
    return (
        one.key[1:] == other.key[1:]
        and (a.engine, a.model) == (b.engine, b.model)
        and (a.method == b.method or None in (a.method, b.method))
        and a.draft_tokens != b.draft_tokens
    )


def _measured(
    group: Group, groups: Mapping[CellKey, Group], reference: str, env: Environment
) -> Measured | None:
    plain = plain_counterpart(group, groups, reference)
    k = draft_length(group)
    if plain is None or k is None:
        return None
    counts = {pair_key(r): group.drafting.by_request.get(r.id) for r in group.ok}
    ratios = log_ratios(group.rates, plain.rates)
    log_cost: dict[Hashable, float] = {}
    log_tokens: dict[Hashable, Sequence[float]] = {}
    sums, steps = [0.0] * k, 0
    for pair, ratio in ratios.items():
        told = counts.get(pair)
        if told is None or pair not in group.steps:
            continue
        known = _log_tokens(told, group.steps[pair], k)
        if known is None:
            return None
        log_cost[pair], log_tokens[pair] = known[-1] - ratio, known
        sums = [a + b for a, b in zip(sums, _positions(told, k), strict=True)]
        steps += group.steps[pair][1]
    if not log_cost:
        return None
    accepted_at = [s / steps for s in sums]
    least = _least_pass_cost(group.info, plain, env)
    return Measured(group, plain, Point(k, log_cost, log_tokens, accepted_at, least))


def draft_length(group: Group) -> int | None:
    """K of a cell: as configured, or the longest draft that was counted."""
    if group.drafting.drafting is None:
        return None
    if group.info.draft_tokens is not None:
        return group.info.draft_tokens
    positions = group.drafting.drafting.position_acceptance
    return len(positions) if positions else None


def _positions(told: DraftCounts, k: int) -> list[int]:
    accepted = list(told.accepted_at or [])[:k]
    return accepted + [0] * (k - len(accepted))


def _log_tokens(told: DraftCounts, steps: tuple[int, int], k: int) -> list[float] | None:
    """Ln of tokens per engine step, had only the first 0..K positions been drafted.

    The share of accepted tokens that lie at the first k positions is applied to what the steps
    really gave, so that the last value is the measured one. None: positions are not told.
    """
    tokens, count = steps
    gained = tokens / count - 1
    if told.accepted and told.accepted_at is None:
        return None
    upto = [0, *accumulate(_positions(told, k))]
    whole = upto[-1]
    return [math.log1p(gained * (part / whole if whole else 0.0)) for part in upto]


def _least_pass_cost(info: TargetInfo, plain: Group, env: Environment) -> float | None:
    """Time of the bytes of one draft pass, in plain steps; None without a known bandwidth."""
    size = info.step
    if size is None or size.draft_bytes is None or not size.draft_tokens:
        return None
    if env.bandwidth_gb_s is None or not plain.rates:
        return None
    seconds = size.draft_bytes / size.draft_tokens / (env.bandwidth_gb_s * 1e9)
    return seconds * math.exp(
        math.fsum(math.log(rate) for rate in plain.rates.values()) / len(plain.rates)
    )


def _tuning(one: Measured, family: Sequence[Measured]) -> Tuning:
    points = [m.point for m in family]
    if not shared_pairs(points):
        family, points = [one], [one.point]
    largest = points[-1].draft_tokens
    predicted = [predict(points, k) for k in range(1, largest + 2)]
    best = _best(predicted)
    also = _also_good(predicted, best)
    law = law_of(points)
    target, scenario, concurrency, context = one.group.key
    return Tuning(
        target=target,
        scenario=scenario,
        concurrency=concurrency,
        context_tokens=context,
        measured_draft_tokens=one.point.draft_tokens,
        best_draft_tokens=best,
        also_good=also,
        predicted=predicted,
        fixed_cost=law.fixed_cost,
        pass_cost=law.pass_cost,
        residual=law.residual,
        first_position={
            str(m.point.draft_tokens): first
            for m in family
            if (first := first_position(m.group)) is not None
        },
        next_draft_tokens=next_to_measure(points, [best, *also]),
        flags={},
        notes=_notes(family, predicted, best),
    )


def _best(predicted: Sequence[DraftLength]) -> int:
    """K with the highest speedup among those not extrapolated; 0 where none is above 1."""
    known = [p for p in predicted if p.basis != "extrapolated"]
    top = max(known, key=lambda p: p.speedup)
    return top.draft_tokens if top.speedup > 1 else 0


def _also_good(predicted: Sequence[DraftLength], best: int) -> list[int]:
    """Other K, 0 included, whose interval reaches the best one's, or which are within 1 %."""
    at = {p.draft_tokens: (p.speedup, p.low, p.high) for p in predicted}
    at[0] = (1.0, 1.0, 1.0)
    value, low, _ = at[best]
    return [
        k
        for k in sorted(at)
        if k != best
        and (
            at[k][0] >= value * (1 - NEAR_OPTIMUM)
            or (low is not None and (high := at[k][2]) is not None and high >= low)
        )
    ]


def first_position(group: Group) -> Estimate | None:
    """Acceptance at the first position: accepted_at[0] / drafts, the request is the cluster."""
    told = [c for c in group.drafting.by_request.values() if c.drafts and c.accepted_at is not None]
    return clustered_ratio_interval(
        [(c.accepted_at or [0])[0] if c.accepted_at else 0 for c in told],
        [c.drafts or 0 for c in told],
    )


def _notes(family: Sequence[Measured], predicted: Sequence[DraftLength], best: int) -> list[str]:
    notes = []
    if len(family) == 1:
        notes.append(
            "one measured K fixes only the whole step cost: what a shorter draft saves is "
            "bracketed, and acceptance at a position may move with K"
        )
    value = next((p.speedup for p in predicted if p.draft_tokens == best), 1.0)
    beyond = predicted[-1]
    if beyond.basis == "extrapolated" and beyond.speedup > value * (1 + NEAR_OPTIMUM):
        notes.append(
            f"K = {beyond.draft_tokens} may bring more; it was not measured, and what lies beyond "
            "the longest measured draft is a guess"
        )
    moved = _moved(family)
    return [*notes, moved] if moved else notes


def _moved(family: Sequence[Measured]) -> str | None:
    """Whether acceptance at the first position differs between measured K (field case 30a)."""
    firsts = [(m.point.draft_tokens, first_position(m.group)) for m in family]
    known = [(k, e) for k, e in firsts if e is not None and e.low is not None]
    for i, (k, a) in enumerate(known):
        for other, b in known[i + 1 :]:
            if (a.low or 0) > (b.high or 1) or (b.low or 0) > (a.high or 1):
                return (
                    f"acceptance at the first position moves with K: {a.value:.0%} at K = {k}, "
                    f"{b.value:.0%} at K = {other}"
                )
    return None
