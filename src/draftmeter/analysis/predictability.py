"""How sure a model is of its next token, and what of low acceptance that explains.

A drafter that always proposes the likeliest token it knows (vLLM's MTP and EAGLE, llama.cpp's
draft models) is accepted with the probability the model gives to that token, so at best with the
model's largest one (theory, 4.1; Leviathan et al. 2023, 3.2). What is missing to 1 is the text's
uncertainty; what acceptance lacks beyond that is the drafter's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftmeter.analysis.groups import plain_counterpart
from draftmeter.analysis.intervals import (
    MINIMUM_CLUSTERS,
    clustered_ratio_interval,
    correlation_interval,
    difference_interval,
)
from draftmeter.analysis.tuning import first_position
from draftmeter.record.results import Estimate, Predictability

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from draftmeter.analysis.groups import CellKey, Group
    from draftmeter.record.types import RunData

LARGEST_VOCABULARY = 262_144
"""Bounds the tail's entropy from above; no vocabulary in use is larger (Gemma's is this)."""
DRAFTS_EVERY_STEP = 0.95
"""Below this share of steps with a draft, the drafter chose where: no mean over all tokens fits."""


@dataclass(frozen=True)
class Certainty:
    """One token: the largest probability, bounds of the entropy and of the tempered largest."""

    p_max: float
    entropy_low: float
    entropy_high: float
    ceiling_low: float | None
    ceiling_high: float | None


def certainty(
    logprobs: Sequence[float],
    temperature: float | None,
    vocabulary: int = LARGEST_VOCABULARY,
) -> Certainty | None:
    """What the likeliest tokens' log-probabilities say of one token; None where they are none.

    The tail of mass R = 1 - sum p_i adds the least entropy when it is as concentrated as its
    largest token allows, the most when it is uniform (theory, 4.3). That largest token is taken as
    the last but one listed: the last may be the token that was drawn, listed out of turn.
    ``temperature`` None: the server's own, unknown, and so is the ceiling.
    """
    p = sorted((math.exp(min(v, 0.0)) for v in logprobs if v <= 1e-3), reverse=True)
    p = [v for v in p if v > 0]
    if not p:
        return None
    largest = p[-2] if len(p) > 1 else p[-1]
    rest = max(0.0, 1 - math.fsum(p))
    others = max(1, vocabulary - len(p))
    head = -math.fsum(v * math.log(v) for v in p)
    whole = math.floor(rest / largest)
    over = rest - whole * largest
    low = head - whole * largest * math.log(largest) - (over * math.log(over) if over > 0 else 0)
    high = head - (rest * math.log(rest / others) if rest > 0 else 0)
    ceiling = _tempered(p, rest, largest, others, temperature)
    return Certainty(p[0], low, max(low, high), *ceiling)


def _tempered(
    p: Sequence[float], rest: float, largest: float, others: int, temperature: float | None
) -> tuple[float, float] | tuple[None, None]:
    """Bounds of the largest probability after p^(1/T), normalised again."""
    if temperature is None:
        return None, None
    if temperature <= 0:
        return 1.0, 1.0
    power = 1 / temperature
    top = p[0] ** power
    head = math.fsum(v**power for v in p)
    if top == 0:  # so cold that nothing but the likeliest is left
        return 1.0, 1.0
    spread = others * (rest / others) ** power
    packed = rest * largest ** (power - 1)
    least, most = sorted((spread, packed))
    return top / (head + most), top / (head + least)


@dataclass(frozen=True)
class _Asked:
    """A target's answers with log-probabilities on a scenario: per request, its tokens."""

    target: str
    scenario: str
    requests: list[tuple[int, list[Certainty]]]

    def mean(self, part: str) -> Estimate | None:
        """Mean over tokens of one field, with the request as the cluster."""
        values = [[getattr(c, part) for c in tokens] for _, tokens in self.requests]
        if any(v is None for tokens in values for v in tokens):
            return None
        return clustered_ratio_interval(
            [math.fsum(v) for v in values], [float(len(v)) for v in values]
        )

    def bounds(self, low: str, high: str) -> Estimate | None:
        """The middle of two bounds; the interval reaches from one's lower to the other's upper."""
        below, above = self.mean(low), self.mean(high)
        if below is None or above is None:
            return None
        value = (below.value + above.value) / 2
        if below.low is None or above.high is None:
            # Requests that all say the same (greedy: 1) leave no doubt but that of the bounds.
            same = len(self.requests) >= MINIMUM_CLUSTERS
            return Estimate(value, *((below.value, above.value) if same else (None, None)))
        return Estimate(value, below.low, above.high)


def predictabilities(groups: Mapping[CellKey, Group], data: RunData) -> list[Predictability]:
    """One entry for each asked target, scenario and drafter that works for the same model."""
    every = _asked(data)
    answered = {(asked.target, asked.scenario) for asked in every}
    found = []
    for asked in every:
        rows = [
            _row(asked, drafter)
            for drafter in _lowest_load(groups, asked.scenario)
            if asked.target == _who_answered(drafter, groups, data.reference, answered)
        ]
        found += [row for row in rows or [_row(asked, None)] if row is not None]
    return found


def _who_answered(
    drafter: Group,
    groups: Mapping[CellKey, Group],
    reference: str,
    answered: set[tuple[str, str]],
) -> str | None:
    """The target that told log-probabilities of a drafter's model: its plain counterpart first."""
    plain = plain_counterpart(drafter, groups, reference)
    names = (plain.key[0] if plain is not None else None, drafter.key[0])
    return next((n for n in names if n is not None and (n, drafter.key[1]) in answered), None)


def _asked(data: RunData) -> list[_Asked]:
    temperatures = {
        s["name"]: s.get("temperature", 0.7)
        for s in data.experiment.get("scenarios") or []
        if isinstance(s, dict) and "name" in s
    }
    found: dict[tuple[str, str], _Asked] = {}
    for record in data.records:
        if record.phase != "logprobs" or record.error is not None:
            continue
        temperature = temperatures.get(record.scenario)
        tokens = [
            c for tops in record.logprobs or () if (c := certainty(tops, temperature)) is not None
        ]
        if tokens:
            key = (record.target, record.scenario)
            found.setdefault(key, _Asked(*key, [])).requests.append((record.prompt, tokens))
    return list(found.values())


def _lowest_load(groups: Mapping[CellKey, Group], scenario: str) -> list[Group]:
    """Each target's speculative cell on a scenario: one stream, least context."""
    cells: dict[str, Group] = {}
    for key in sorted(groups, key=lambda k: -1 if k[3] is None else k[3]):
        if key[1] == scenario and key[2] == 1 and groups[key].drafting.drafting is not None:
            cells.setdefault(key[0], groups[key])
    return list(cells.values())


def _row(asked: _Asked, drafter: Group | None) -> Predictability | None:
    ceiling = asked.bounds("ceiling_low", "ceiling_high")
    first = first_position(drafter) if drafter is not None and _every_step(drafter) else None
    loss = None
    if ceiling is not None and first is not None and drafter is not None:
        told = sum(1 for c in drafter.drafting.by_request.values() if c.drafted)
        loss = difference_interval(first, told, ceiling, len(asked.requests))
    correlation = _correlation(asked, drafter) if drafter is not None else None
    p_max = asked.mean("p_max")
    entropy = asked.bounds("entropy_low", "entropy_high")
    if p_max is None or entropy is None:
        return None
    return Predictability(
        target=asked.target,
        scenario=asked.scenario,
        requests=len(asked.requests),
        tokens=sum(len(tokens) for _, tokens in asked.requests),
        p_max=p_max,
        entropy_nats=entropy,
        ceiling=ceiling,
        drafter=drafter.key[0] if drafter is not None else None,
        first_position=first,
        text_loss=_one_minus(ceiling),
        drafter_loss=loss,
        correlation=correlation,
        text=_text(ceiling, first, loss, drafter, len(asked.requests)),
    )


def _every_step(drafter: Group) -> bool:
    drafting = drafter.drafting.drafting
    steps = sum(n for _, n in drafter.steps.values())
    return bool(drafting and drafting.drafts and drafting.drafts >= DRAFTS_EVERY_STEP * steps)


def _one_minus(e: Estimate | None) -> Estimate | None:
    if e is None:
        return None
    return Estimate(
        1 - e.value,
        None if e.high is None else max(0.0, 1 - e.high),
        None if e.low is None else 1 - e.low,
    )


def _correlation(asked: _Asked, drafter: Group) -> Estimate | None:
    """Of each prompt's mean p_max with its acceptance rate."""
    sure: dict[int, list[float]] = {}
    for prompt, tokens in asked.requests:
        sure.setdefault(prompt, []).extend(c.p_max for c in tokens)
    sums: dict[int, tuple[int, int]] = {}
    for record in drafter.ok:
        told = drafter.drafting.by_request.get(record.id)
        if told is not None and told.drafted and told.accepted is not None:
            accepted, drafted = sums.get(record.prompt, (0, 0))
            sums[record.prompt] = (accepted + told.accepted, drafted + told.drafted)
    both = [p for p in sure if p in sums]
    return correlation_interval(
        [math.fsum(sure[p]) / len(sure[p]) for p in both], [sums[p][0] / sums[p][1] for p in both]
    )


def _text(
    ceiling: Estimate | None,
    first: Estimate | None,
    loss: Estimate | None,
    drafter: Group | None,
    requests: int,
) -> str:
    """What follows, as far as the intervals carry it."""
    if ceiling is None:
        return "the server's own temperature is not known: no ceiling; set the scenario's"
    if drafter is None:
        return "nothing of this model drafted here: no acceptance to compare with"
    if first is None or loss is None:
        return (
            "the drafter chose where to draft, or does not tell the first position: a mean over "
            "all tokens is no ceiling for it"
        )
    if requests < MINIMUM_CLUSTERS or loss.low is None or loss.high is None:
        return "too few requests to part the text's share from the drafter's"
    return _parted(1 - ceiling.value, loss.value, loss.low, loss.high)


def _parted(text: float, own: float, low: float, high: float) -> str:
    """The text's and the drafter's own share of what is rejected, the latter from low to high."""
    if high < 0:
        return (
            "accepted more often than a greedy drafter can be at this temperature: it samples its "
            "drafts, or the server cuts off unlikely tokens (top_k, top_p, min_p)"
        )
    if low <= 0:
        return "what is rejected is the text's uncertainty; no better drafter can be told from this"
    if own > text:
        return "most of what is rejected is the drafter's: a better trained one would help"
    return "most of what is rejected is the text's own uncertainty, and some of it the drafter's"
