"""Many streams at a time: what they got together, and where speculation stops paying."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from draftmeter.analysis.groups import CellKey, Group, plain_counterpart
from draftmeter.analysis.intervals import MINIMUM_CLUSTERS, mean_and_sd, t_quantile
from draftmeter.analysis.pairs import speedup_of
from draftmeter.record.results import Crossover, Estimate, Speedup, Tuning
from draftmeter.record.types import RequestRecord

SLICES = 5
"""Each block of load is cut into so many slices of time; their rates give the interval."""


def total_tok_s(records: Iterable[RequestRecord]) -> Estimate | None:
    """Tokens per second of all streams of a cell together, fillers included.

    ``records`` of one target, scenario and load. In each round, from the first measured request's
    start to the last one's, every stream is busy; that time is cut into slices, and the interval
    is Student's t over slices. None with unknown token counts, or where requests of a round did
    not replace each other.
    """
    by_round: dict[int, list[RequestRecord]] = {}
    for record in records:
        by_round.setdefault(record.round, []).append(record)
    rates = [rate for group in by_round.values() for rate in _slices(group)]
    if not rates:
        return None
    mean, sd = mean_and_sd(rates)
    if len(rates) < MINIMUM_CLUSTERS:
        return Estimate(mean, None, None)
    half = t_quantile(0.975, len(rates) - 1) * sd / math.sqrt(len(rates))
    return Estimate(mean, max(0.0, mean - half), mean + half)


def _slices(records: Sequence[RequestRecord]) -> list[float]:
    starts = [r.session_s for r in records if r.phase == "measure"]
    if not starts or any(r.error is None and r.tokens is None for r in records):
        return []
    begin, end = min(starts), max(starts)
    width = (end - begin) / SLICES
    if width <= 0:
        return []
    tokens = [0] * SLICES
    for r in records:
        for at_us, count in zip(r.at_us, r.tokens or [], strict=False):
            place = math.floor((r.session_s + at_us / 1e6 - begin) / width)
            if 0 <= place < SLICES:
                tokens[place] += count
    return [count / width for count in tokens]


@dataclass(frozen=True)
class _Step:
    """Speedup over the plain counterpart at one concurrency."""

    concurrency: int
    speedup: Speedup


def crossovers(
    groups: Mapping[CellKey, Group],
    reference: str,
    experiment: Mapping[str, Any],
    tuning: Sequence[Tuning],
) -> list[Crossover]:
    """Where each speculative target's speedup falls to 1, for each scenario and context."""
    rows: dict[tuple[str, str, int | None], list[_Step]] = {}
    for (target, scenario, concurrency, context), group in groups.items():
        plain = plain_counterpart(group, groups, reference)
        speedup = speedup_of(group.rates, plain.rates, experiment) if plain is not None else None
        if speedup is not None:
            rows.setdefault((target, scenario, context), []).append(_Step(concurrency, speedup))
    best = _best_lengths(groups, rows, tuning)
    return [
        _crossover(key, sorted(steps, key=lambda s: s.concurrency), best[key])
        for key, steps in rows.items()
        if len(steps) > 1
    ]


def _crossover(
    key: tuple[str, str, int | None], steps: Sequence[_Step], best: Mapping[int, int]
) -> Crossover:
    target, scenario, context = key
    at = _falls_to_one([(s.concurrency, s.speedup.ratio) for s in steps])
    known = [s for s in steps if s.speedup.low is not None and s.speedup.high is not None]
    low = _falls_to_one([(s.concurrency, s.speedup.low or 0.0) for s in known])
    high = _falls_to_one([(s.concurrency, s.speedup.high or 0.0) for s in known])
    first, last = steps[0], steps[-1]
    if at is not None:
        text = f"stops paying at about {at:.3g} streams"
    elif first.speedup.ratio < 1:
        text = f"does not pay at {first.concurrency}, the fewest streams measured"
    else:
        text = f"still pays at {last.concurrency}, the most streams measured"
    return Crossover(
        target=target,
        scenario=scenario,
        context_tokens=context,
        concurrency=at,
        low=low,
        high=high,
        text=text,
        schedule=schedule(best),
    )


def _falls_to_one(points: Sequence[tuple[int, float]]) -> float | None:
    """Where a curve first falls to 1, on a straight line over ln(streams); None: nowhere."""
    for (n, value), (more, after) in pairwise(points):
        if value >= 1 > after:
            share = (value - 1) / (value - after)
            return math.exp(math.log(n) + share * (math.log(more) - math.log(n)))
    return None


def _best_lengths(
    groups: Mapping[CellKey, Group],
    rows: Mapping[tuple[str, str, int | None], Sequence[_Step]],
    tuning: Sequence[Tuning],
) -> dict[tuple[str, str, int | None], dict[int, int]]:
    """The best K at each concurrency: predicted where positions are known, else own K or none."""
    told = {
        (t.target, t.scenario, t.context_tokens, t.concurrency): t.best_draft_tokens for t in tuning
    }
    found = {}
    for key, steps in rows.items():
        own = next((g.info.draft_tokens for k, g in groups.items() if (k[0], k[1], k[3]) == key), 0)
        found[key] = {
            s.concurrency: told.get((*key, s.concurrency), (own or 0) if s.speedup.ratio > 1 else 0)
            for s in steps
        }
    return found


def schedule(best: Mapping[int, int]) -> list[list[int]]:
    """VLLM's ``num_speculative_tokens_per_batch_size``: [from, to, K], neighbours of one K joined.

    Each measured concurrency stands for the batch sizes nearest to it on a logarithmic scale; the
    largest for all that lie beyond it up to twice its size.
    """
    levels = sorted(best)
    table: list[list[int]] = []
    begin = 1
    for place, level in enumerate(levels):
        last = place == len(levels) - 1
        end = 2 * level if last else math.floor(math.sqrt(level * levels[place + 1]))
        end = max(end, level)
        if table and table[-1][2] == best[level]:
            table[-1][1] = end
        else:
            table.append([begin, end, best[level]])
        begin = end + 1
    return table
