"""Intervals: each formula once, with where it comes from. All are two-sided, 95 % by default.

Their coverage was simulated; the simulations are kept as tests (tests/test_coverage.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from draftmeter.record.results import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

MINIMUM_CLUSTERS = 3
"""No interval below three pairs or requests: one degree of freedom says nothing useful."""

MINIMUM_FOR_MEDIAN = 6
"""P(all six values on one side of the median) = 2/64 < 5 %; with five it is 2/32."""

MINIMUM_FOR_CORRELATION = 4
"""Fisher's standard error is 1 / sqrt(n - 3)."""

Z95 = 1.959964
_LARGEST_LOG = 700.0


def t_quantile(p: float, df: float) -> float:
    """The p-quantile of Student's t with ``df`` degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats would cost half a second of start-up

    return float(stdtrit(df, p))


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1); the latter is 0 for one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def log_ratio_interval(d: Sequence[float], level: float = 0.95) -> Estimate | None:
    """Geometric mean ratio from paired log ratios d_i: exp(mean +- t_{n-1} s / sqrt n).

    Student's t on logs of paired ratios; coverage 0.945-0.954 at n = 3..20 (theory, 6.3).
    None without pairs; no bounds below three.
    """
    return stein_interval(d, (), level)


def stein_interval(
    stage1: Sequence[float], stage2: Sequence[float], level: float = 0.95
) -> Estimate | None:
    """Ratio after Stein's two stages: exp(mean of all +- t_{n0-1} s_1 / sqrt n).

    s_1 and n0 are the first stage's alone; the second stage only adds to the mean. So the
    coverage holds although n was chosen by looking at s_1 (Stein, Ann. Math. Stat. 16, 1945).
    With an empty second stage this is the plain t interval.
    """
    n0, n = len(stage1), len(stage1) + len(stage2)
    if n == 0:
        return None
    mean = math.fsum([*stage1, *stage2]) / n
    if n0 < MINIMUM_CLUSTERS:
        return Estimate(_exp(mean), None, None)
    half = t_quantile((1 + level) / 2, n0 - 1) * mean_and_sd(stage1)[1] / math.sqrt(n)
    return Estimate(_exp(mean), _exp(mean - half), _exp(mean + half))


def clustered_ratio_interval(
    x: Sequence[float], n: Sequence[float], level: float = 0.95
) -> Estimate | None:
    """Ratio of sums r = sum x / sum n, where whole clusters (requests) were sampled.

    Linearised: e_i = x_i - r n_i, SE = sqrt(m/(m-1) sum e_i^2) / sum n, r +- t_{m-1} SE
    (Cochran, Sampling Techniques, 3rd ed., ch. 6). Coverage 0.94-0.95 for 3..40 requests where
    Wilson's interval on tokens has 0.42-0.44 (theory, 6.3). Clusters with n_i = 0 tell nothing
    and are left out. None when nothing is left; no bounds below three clusters, nor where every
    cluster says exactly 0 or exactly 1, for the variation cannot be seen there.
    """
    pairs = [(a, b) for a, b in zip(x, n, strict=True) if b > 0]
    if not pairs:
        return None
    m, whole = len(pairs), math.fsum(b for _, b in pairs)
    r = math.fsum(a for a, _ in pairs) / whole
    if m < MINIMUM_CLUSTERS or all(a == 0 for a, _ in pairs) or all(a == b for a, b in pairs):
        return Estimate(r, None, None)
    squares = math.fsum((a - r * b) ** 2 for a, b in pairs)
    half = t_quantile((1 + level) / 2, m - 1) * math.sqrt(m / (m - 1) * squares) / whole
    return Estimate(r, r - half, r + half)


def difference_interval(
    a: Estimate, clusters_a: int, b: Estimate, clusters_b: int, level: float = 0.95
) -> Estimate:
    """B - a of two clustered rates: their standard errors joined as Welch does.

    SE^2 = SE_a^2 + SE_b^2, degrees of freedom (SE_a^2 + SE_b^2)^2 / sum SE^4 / (m - 1) (Welch,
    Biometrika 34, 1947). No bounds where one of them has none, unless it is an interval of no
    width. ``clusters_*`` are the requests behind each.
    """
    value = b.value - a.value
    errors = []
    for e, m in ((a, clusters_a), (b, clusters_b)):
        if e.low is None or e.high is None or m < 2:
            return Estimate(value, None, None)
        errors.append((e.high - e.low) / 2 / t_quantile((1 + level) / 2, m - 1))
    squares = errors[0] ** 2 + errors[1] ** 2
    if squares == 0:
        return Estimate(value, None, None)
    df = squares**2 / (errors[0] ** 4 / (clusters_a - 1) + errors[1] ** 4 / (clusters_b - 1))
    half = t_quantile((1 + level) / 2, df) * math.sqrt(squares)
    return Estimate(value, value - half, value + half)


def correlation_interval(x: Sequence[float], y: Sequence[float]) -> Estimate | None:
    """Pearson's r with Fisher's interval: tanh(atanh r +- 1.96 / sqrt(n - 3)), 95 %.

    None below four points, or where one of them does not vary (Fisher, Metron 1, 1921).
    """
    n = len(x)
    if n < MINIMUM_FOR_CORRELATION:
        return None
    (mx, sx), (my, sy) = mean_and_sd(x), mean_and_sd(y)
    if sx == 0 or sy == 0:
        return None
    r = math.fsum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / ((n - 1) * sx * sy)
    z = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    half = Z95 / math.sqrt(n - 3)
    return Estimate(r, math.tanh(z - half), math.tanh(z + half))


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """An interval for the median from order statistics: (x_(k), x_(n+1-k)).

    k is the largest with P(Bin(n, 1/2) <= k-1) <= (1-level)/2, whatever the distribution
    (David & Nagaraja, Order Statistics, 7.1). Conservative, since k is whole. None where even
    the extremes do not reach the level (95 %: below six values).
    """
    n = len(values)
    if n == 0:
        return None
    from numpy import arange
    from scipy.special import bdtr

    below = bdtr(arange(n // 2), n, 0.5)
    k = int((below <= (1 - level) / 2).sum())
    if k == 0:
        return None
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]


def quantile_interval(values: Sequence[float], q: float, level: float = 0.95) -> Estimate | None:
    """The q-quantile (0.95: the 95th percentile) of positive values, with its interval.

    Order statistics where there are enough values for them (72 for q = 0.95); below that the
    values are taken for lognormal, as latencies nearly are: exp(m + s k), k from the noncentral t
    distribution with n-1 degrees of freedom (Hahn & Meeker, Statistical Intervals, 4.4). No bounds
    below three values.
    """
    n = len(values)
    if n == 0 or min(values) <= 0:
        return None
    from scipy.special import bdtr, nctdtrit, ndtri

    ordered = sorted(values)
    tail = (1 - level) / 2
    ranks = [float(bdtr(k, n, q)) for k in range(n)]  # P(at most k values lie below the quantile)
    lower = sum(p <= tail for p in ranks)
    upper = next((k for k, p in enumerate(ranks) if p >= 1 - tail), None)
    if lower >= 1 and upper is not None:
        return Estimate(percentile(values, 100 * q), ordered[lower - 1], ordered[upper])
    logs = [math.log(v) for v in values]
    mean, sd = mean_and_sd(logs)
    z = float(ndtri(q))
    if n < MINIMUM_CLUSTERS:
        return Estimate(_exp(mean + z * sd), None, None)
    root = math.sqrt(n)
    low, high = (float(nctdtrit(n - 1, z * root, p)) / root for p in (tail, 1 - tail))
    return Estimate(_exp(mean + z * sd), _exp(mean + low * sd), _exp(mean + high * sd))


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0..100), interpolated linearly between order statistics.

    Hyndman & Fan's type 7, as numpy and most tools compute it.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _exp(x: float) -> float:
    return math.exp(min(x, _LARGEST_LOG))
