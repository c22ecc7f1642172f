"""What other draft lengths would bring, from the ones that were measured. Pure arithmetic.

Position acceptance gives tokens per step for every k up to a measured K:
E(k) = 1 + (accepted tokens at the first k positions) / steps. The step's cost is taken as
C(k) = 1 + s + c k (theory, section 3): s is what having speculation on costs at all, c one more
drafted token. One measured K fixes only C(K), so c is bracketed; two fix both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from draftmeter.analysis.intervals import MINIMUM_CLUSTERS, mean_and_sd, t_quantile
from draftmeter.record.results import DraftLength, Estimate

LEAST_PASS_SHARE = 0.5
"""Without a roofline, a draft pass is taken to cost at least half of (C - 1) / K."""
BENDING = 0.25
"""From one K, a token may cost a quarter more than (C - 1) / K: costs can bend upwards."""
CURVATURE = 0.5
"""Next to a measured K, one token may cost half more or less than the mean between two of them."""


@dataclass(frozen=True)
class Point:
    """One measured K, by pair of requests (this target's and the plain one's).

    Attributes:
        draft_tokens: K.
        log_cost: ln C of each pair.
        log_tokens: ln E(k) of each pair for k = 0..K; the last is of all steps as they were.
        accepted_at: accepted tokens per step at positions 1..K, over all pairs.
        least_pass_cost: bytes of one draft pass / bandwidth / plain step; None: not known.
    """

    draft_tokens: int
    log_cost: Mapping[Hashable, float]
    log_tokens: Mapping[Hashable, Sequence[float]]
    accepted_at: Sequence[float]
    least_pass_cost: float | None = None

    @property
    def cost(self) -> float:
        """C(K): the geometric mean over pairs."""
        return math.exp(math.fsum(self.log_cost.values()) / len(self.log_cost))


@dataclass(frozen=True)
class Cost:
    """C(k) as a sum over measured points: ``value`` = base + sum of share x C(K).

    ``low``/``high`` bound what the model leaves open; sampling error is not in them.
    """

    value: float
    low: float
    high: float
    shares: tuple[tuple[int, float], ...]


def pass_cost_bracket(point: Point) -> tuple[float, float]:
    """The least and the most one drafted token can cost, seen from one measured K.

    At most (C - 1) / K, when having speculation on costs nothing by itself; at least the bytes
    of a draft pass, or half of that most.
    """
    most = max(0.0, (point.cost - 1) / point.draft_tokens)
    least = point.least_pass_cost
    return min(most, LEAST_PASS_SHARE * most if least is None else least), most


def cost_at(points: Sequence[Point], k: int) -> Cost:
    """The step cost at ``k`` drafted tokens, and how far the model leaves it open.

    From one K: C(k) = C(K) - c (K - k) with c in its bracket, a quarter more where the cost bends
    upwards. From several: the line through the two that lie around k (or nearest to it), give or
    take half of its slope per token of distance to the nearer one.
    """
    nearest = min(points, key=lambda p: abs(p.draft_tokens - k))
    if nearest.draft_tokens == k:
        return Cost(nearest.cost, nearest.cost, nearest.cost, ((k, 1.0),))
    if len(points) == 1:
        return _cost_from_one(points[0], k)
    one, two = _around(points, k)
    width = two.draft_tokens - one.draft_tokens
    share = (k - one.draft_tokens) / width
    value = one.cost * (1 - share) + two.cost * share
    distance = abs(k - nearest.draft_tokens)
    slack = CURVATURE * distance * abs(two.cost - one.cost) / width
    shares = ((one.draft_tokens, 1 - share), (two.draft_tokens, share))
    return Cost(value, max(value - slack, _FLOOR), value + slack, shares)


_FLOOR = 0.05


def _cost_from_one(point: Point, k: int) -> Cost:
    least, most = pass_cost_bracket(point)
    away = k - point.draft_tokens
    ends = sorted((point.cost + least * away, point.cost + most * away))
    bent = point.cost + (1 + BENDING) * most * away
    low, high = (bent, ends[1]) if away < 0 else (ends[0], bent)
    value = math.sqrt(max(ends[0], _FLOOR) * ends[1])
    # How C(k) moves with C(K): both ends of the bracket do so differently; the middle is taken.
    relative = LEAST_PASS_SHARE if point.least_pass_cost is None else 0.0
    slope = 1 + away / point.draft_tokens * (1 + relative) / 2
    return Cost(value, max(low, _FLOOR), max(high, _FLOOR), ((point.draft_tokens, slope),))


def _around(points: Sequence[Point], k: int) -> tuple[Point, Point]:
    above = next((i for i, p in enumerate(points) if p.draft_tokens > k), len(points) - 1)
    above = max(1, above)
    return points[above - 1], points[above]


def tokens_at(points: Sequence[Point], k: int, pair: Hashable) -> float:
    """Ln E(k) of one pair of requests, from the position acceptance of the next larger K.

    Acceptance at a position moves with K (field case 30a): what it was off by at the next smaller
    measured K is carried over, in proportion to the distance.
    """
    upper = next(p for p in points if p.draft_tokens >= k)
    value = upper.log_tokens[pair][k]
    lower = [p for p in points if p.draft_tokens < k]
    if not lower or upper.draft_tokens == k:
        return value
    below = lower[-1]
    off = below.log_tokens[pair][below.draft_tokens] - upper.log_tokens[pair][below.draft_tokens]
    share = (k - below.draft_tokens) / (upper.draft_tokens - below.draft_tokens)
    return value + (1 - share) * off


def predict(points: Sequence[Point], k: int) -> DraftLength:
    """Speedup at ``k`` drafted tokens, with an interval of sampling error and model together.

    ln S(k) = mean of ln E_i(k) - ln C(k). Delta method: pair i moves it by
    z_i = ln E_i(k) - sum of w ln C_i(K), w = share x C(K) / C(k); Student t on z. The ends of
    C(k) are added to both sides. ``points`` in order of K, all with the same pairs.
    """
    largest = points[-1]
    inside = min(k, largest.draft_tokens)
    cost = cost_at(points, k)
    at = {p.draft_tokens: p for p in points}
    pairs = shared_pairs(points)
    tokens = [tokens_at(points, inside, pair) for pair in pairs]
    further, most = _beyond(largest, k, math.exp(mean_and_sd(tokens)[0]))
    z = [
        e - sum(w * at[n].cost / cost.value * at[n].log_cost[pair] for n, w in cost.shares)
        for e, pair in zip(tokens, pairs, strict=True)
    ]
    middle = mean_and_sd(tokens)[0] + further
    low = high = None
    if len(pairs) >= MINIMUM_CLUSTERS:
        half = t_quantile(0.975, len(pairs) - 1) * mean_and_sd(z)[1] / math.sqrt(len(pairs))
        low = math.exp(middle - further - half) / cost.high
        high = math.exp(middle - further + most + half) / cost.low
    measured = any(p.draft_tokens == k for p in points)
    return DraftLength(
        draft_tokens=k,
        speedup=math.exp(middle) / cost.value,
        low=low,
        high=high,
        tokens_per_step=math.exp(middle),
        step_cost=cost.value,
        basis="measured" if measured else "extrapolated" if k > inside else "predicted",
    )


def _beyond(point: Point, k: int, tokens: float) -> tuple[float, float]:
    """Ln of what positions beyond K add to E: likely, and at most.

    A further position is accepted no more often than the last one known; likely, it falls by the
    same factor again.
    """
    if k <= point.draft_tokens or not point.accepted_at:
        return 0.0, 0.0
    last = point.accepted_at[-1]
    before = point.accepted_at[-2] if len(point.accepted_at) > 1 else 1.0
    ratio = min(1.0, last / before) if before > 0 else 0.0
    away = k - point.draft_tokens
    likely = sum(last * ratio**i for i in range(1, away + 1))
    return math.log1p(likely / tokens), math.log1p(away * last / tokens)


def shared_pairs(points: Sequence[Point]) -> list[Hashable]:
    """Pairs that every point has, in the order of the first."""
    return [key for key in points[0].log_cost if all(key in p.log_cost for p in points)]


@dataclass(frozen=True)
class Law:
    """1 + s + c K through the measured step costs; brackets from one K."""

    fixed_cost: Estimate
    pass_cost: Estimate
    residual: float | None


def law_of(points: Sequence[Point]) -> Law:
    """S and c: bracketed from one K, solved from two, least squares from three on."""
    if len(points) == 1:
        return _bracketed_law(points[0])
    n = len(points)
    mean = sum(p.draft_tokens for p in points) / n
    spread = sum((p.draft_tokens - mean) ** 2 for p in points)
    slopes = [(p.draft_tokens - mean) / spread for p in points]
    levels = [1 / n - mean * w for w in slopes]
    slope = _combined(points, slopes)
    level = _combined(points, levels)
    residual = None
    if n > 2:
        line = [level.value + slope.value * p.draft_tokens for p in points]
        residual = max(abs(p.cost - at) for p, at in zip(points, line, strict=True))
    shifted = Estimate(
        level.value - 1,
        None if level.low is None else level.low - 1,
        None if level.high is None else level.high - 1,
    )
    return Law(shifted, slope, residual)


def _bracketed_law(point: Point) -> Law:
    least, most = pass_cost_bracket(point)
    k, cost = point.draft_tokens, point.cost
    error = _combined([point], [1.0])
    spare = 0.0 if error.high is None else error.high - cost
    known = error.high is not None
    middle = (least + most) / 2
    return Law(
        Estimate(
            cost - 1 - middle * k,
            min(0.0, cost - 1 - most * k) - spare if known else None,
            cost - 1 - least * k + spare if known else None,
        ),
        Estimate(
            middle,
            max(0.0, least - spare / k) if known else None,
            most + spare / k if known else None,
        ),
        None,
    )


def _combined(points: Sequence[Point], weights: Sequence[float]) -> Estimate:
    """A weighted sum of step costs with its interval: Student t on the pairs' influence."""
    value = sum(w * p.cost for w, p in zip(weights, points, strict=True))
    pairs = shared_pairs(points)
    if len(pairs) < MINIMUM_CLUSTERS:
        return Estimate(value, None, None)
    influence = [
        sum(w * p.cost * p.log_cost[pair] for w, p in zip(weights, points, strict=True))
        for pair in pairs
    ]
    half = t_quantile(0.975, len(pairs) - 1) * mean_and_sd(influence)[1] / math.sqrt(len(pairs))
    return Estimate(value, value - half, value + half)


def next_to_measure(points: Sequence[Point], contenders: Sequence[int]) -> int | None:
    """The one K whose measurement would leave the least open between the contenders.

    Counted is what the model leaves open of ln S, since more requests narrow the rest. None when
    every contender was measured.
    """
    largest = points[-1].draft_tokens
    known = {p.draft_tokens for p in points}
    wanted = [k for k in contenders if k > 0]
    options = [k for k in range(1, largest + 2) if k not in known]
    if not options or all(k in known for k in wanted):
        return None

    def left_open(measured: Sequence[Point]) -> float:
        return sum(_open_width(measured, k) for k in wanted)

    return min(options, key=lambda k: (left_open(_with_guess(points, k)), k))


def _open_width(points: Sequence[Point], k: int) -> float:
    cost = cost_at(points, k)
    tokens = math.exp(mean_and_sd([t[-1] for t in points[-1].log_tokens.values()])[0])
    return math.log(cost.high / cost.low) + _beyond(points[-1], k, tokens)[1]


def _with_guess(points: Sequence[Point], k: int) -> list[Point]:
    """The points with one more, where the model puts it now."""
    cost = cost_at(points, k).value
    source = points[-1]
    positions = list(source.accepted_at[:k])
    positions += positions[-1:] * (k - len(positions))
    guess = Point(
        draft_tokens=k,
        log_cost=dict.fromkeys(source.log_cost, math.log(cost)),
        log_tokens={
            key: [*t[: k + 1], *[t[-1]] * (k + 1 - len(t))] for key, t in source.log_tokens.items()
        },
        accepted_at=positions,
    )
    return sorted([*points, guess], key=lambda p: p.draft_tokens)
