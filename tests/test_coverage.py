"""Do the intervals cover? Simulated from fixed seeds; 3000 replicates give +-0.008 (two sigma)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftmeter.analysis.intervals import (
    clustered_ratio_interval,
    log_ratio_interval,
    median_interval,
    stein_interval,
)
from draftmeter.analysis.stepcost import step_cost
from draftmeter.analysis.stopping import pairs_needed

REPLICATES = 3000


def covered(intervals, truth):
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def bounds(estimates):
    return [(e.low, e.high) for e in estimates]


@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_speedup(n):
    # True ratio 1.12; pairs differ by 4 %.
    d = np.random.default_rng(n).normal(math.log(1.12), 0.04, (REPLICATES, n))
    assert 0.93 < covered(bounds(map(log_ratio_interval, d.tolist())), 1.12) < 0.97


def drafted_requests(rng, m):
    """(accepted, drafted) of m requests of about 60 drafts, K = 3.

    Requests differ in the chance alpha that a token is accepted (SD 0.107 around 0.57), and
    within a draft a token counts only if all before it were accepted.
    """
    alpha = np.clip(rng.normal(0.57, 0.107, (REPLICATES, m)), 0.05, 0.95)
    drafts = rng.integers(45, 76, (REPLICATES, m))
    first = rng.binomial(drafts, alpha)
    second = rng.binomial(first, alpha)
    return first + second + rng.binomial(second, alpha), 3 * drafts


def true_rate():
    alpha = np.clip(np.random.default_rng(1).normal(0.57, 0.107, 1_000_000), 0.05, 0.95)
    return float(np.mean(alpha + alpha**2 + alpha**3) / 3)


@pytest.mark.parametrize("m", [3, 5, 8, 12, 20, 40])
def test_acceptance_by_request(m):
    x, n = drafted_requests(np.random.default_rng(100 + m), m)
    found = map(clustered_ratio_interval, x.tolist(), n.tolist())
    assert 0.93 < covered(bounds(found), true_rate()) < 0.97


@pytest.mark.parametrize("m", [3, 8, 40])
def test_tokens_are_not_independent(m):
    # Wilson's interval on tokens, which other tools would give, covers less than half the time.
    x, n = (a.sum(axis=1) for a in drafted_requests(np.random.default_rng(200 + m), m))
    z, p = 1.959964, x / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert covered(zip(centre - half, centre + half, strict=True), true_rate()) < 0.6


@pytest.mark.parametrize(
    ("n", "exact"),
    # 1 - 2 P(Bin(n, 1/2) <= k-1) with k = 1, 2, 6, 10: the level is kept, seldom met exactly.
    [(6, 0.96875), (10, 0.97852), (20, 0.95861), (30, 0.95723)],
)
def test_median(n, exact):
    values = np.random.default_rng(300 + n).lognormal(4.0, 0.5, (REPLICATES, n))
    got = covered(map(median_interval, values.tolist()), math.exp(4.0))
    assert got == pytest.approx(exact, abs=0.012)


@pytest.mark.parametrize("n0", [5, 10, 15])
def test_two_stages(n0):
    # Pairs differ by 5 %, wanted +-3 %: n is chosen after seeing the pilot, and still it covers.
    rng = np.random.default_rng(400 + n0)
    found = []
    for _ in range(REPLICATES):
        pilot = rng.normal(math.log(1.45), 0.05, n0).tolist()
        rest = rng.normal(math.log(1.45), 0.05, pairs_needed(pilot, 0.03) - n0).tolist()
        found.append(stein_interval(pilot, rest))
    assert 0.93 < covered(bounds(found), 1.45) < 0.97
    assert max(e.high / e.value for e in found) <= 1.03 + 1e-9


def spec_requests(rng, m, cost):
    """Tokens per step and log speedup of m pairs: step times differ by 3 %, skewed to slow ones."""
    x, n = drafted_requests(rng, m)
    per_step = 1 + 3 * x / n
    noise = np.log(rng.gamma(30.0, 1 / 30.0, per_step.shape)) * 0.03 / math.sqrt(1 / 30)
    return per_step, np.log(per_step) - math.log(cost) - (noise - noise.mean())


@pytest.mark.parametrize("m", [3, 5, 10, 20])
def test_step_cost(m):
    per_step, d = spec_requests(np.random.default_rng(500 + m), m, 1.70)
    found = map(step_cost, per_step.tolist(), d.tolist())
    assert 0.93 < covered(bounds(found), 1.70) < 0.97


def test_step_cost_is_sharper_than_its_parts():
    # A request with many accepted tokens is fast for that reason: without the covariance the
    # interval would be the speedup's and the tokens per step's added up, several times wider.
    per_step, d = spec_requests(np.random.default_rng(6), 10, 1.70)
    both = [step_cost(a, b) for a, b in zip(per_step.tolist(), d.tolist(), strict=True)]
    alone = [log_ratio_interval(row) for row in d.tolist()]
    width = np.mean([math.log(e.high / e.low) for e in both])
    assert width * 3 < np.mean([math.log(e.high / e.low) for e in alone])
