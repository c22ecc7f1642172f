"""Other draft lengths predicted from the measured ones: by hand, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftmeter.analysis.draftlength import (
    Point,
    cost_at,
    law_of,
    next_to_measure,
    pass_cost_bracket,
    predict,
)

PAIRS = range(5)


def point(k, cost, positions, *, pairs=PAIRS, least=None):
    """A measured K whose requests are all alike."""
    tokens = [0.0, *(math.log1p(sum(positions[:n])) for n in range(1, k + 1))]
    return Point(
        draft_tokens=k,
        log_cost=dict.fromkeys(pairs, math.log(cost)),
        log_tokens=dict.fromkeys(pairs, tokens),
        accepted_at=list(positions),
        least_pass_cost=least,
    )


def geometric(alpha, k):
    return [alpha**i for i in range(1, k + 1)]


# --- the article (theory, section 3.4) -------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "plain_ms", "spec_ms", "cost", "even"),
    [(1 + 92 / 85, 13.89, 25.87, 1.862, 0.287), (1 + 2795 / 1304, 14.14, 23.99, 1.696, 0.232)],
    ids=["ja_chat", "code"],
)
def test_the_article_gives_its_step_costs_and_break_even_rates(
    tokens, plain_ms, spec_ms, cost, even
):
    from draftmeter.analysis.stepcost import break_even_rate, step_cost_value

    found = step_cost_value(tokens, 1000 / plain_ms, tokens * 1000 / spec_ms)
    assert found == pytest.approx(cost, abs=0.001)
    assert break_even_rate(found, 3) == pytest.approx(even, abs=0.001)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(0.571, (1.275, 1.295, 1.228)), (0.841, (1.494, 1.741, 1.853))],
    ids=["ja_chat", "code"],
)
def test_the_upper_end_of_the_bracket_is_the_line_of_the_theory(alpha, expected):
    """S(k) = E(k) / (1 + c k), c = (C - 1) / K = 0.232: theory's row, which it calls an upper bound."""
    measured = point(3, 1.696, geometric(alpha, 3))
    _, most = pass_cost_bracket(measured)
    assert most == pytest.approx(0.232, abs=0.001)
    for k, value in zip((1, 2, 3), expected, strict=True):
        upper = math.exp(measured.log_tokens[0][k]) / (1 + most * k)
        assert upper == pytest.approx(value, abs=0.002)
        found = predict([measured], k)
        assert found.low <= found.speedup <= upper * 1.0001
        assert found.high >= upper * 0.9999


def test_beyond_the_measured_k_is_bounded_by_what_a_position_can_bring():
    measured = point(3, 1.696, geometric(0.841, 3))
    found = predict([measured], 4)
    assert found.basis == "extrapolated"
    assert found.low < 1.890 < found.high  # theory's value at K = 4
    # At the very least nothing more is accepted; at most as much as at the third position.
    e3, a3 = 1 + sum(geometric(0.841, 3)), 0.841**3
    assert found.low == pytest.approx(e3 / (1.696 + 1.25 * 0.232), rel=0.001)
    assert found.high == pytest.approx((e3 + a3) / (1.696 + 0.116), rel=0.001)


# --- one K, by hand --------------------------------------------------------------------------


def test_the_measured_k_itself_is_what_was_measured():
    found = predict([point(3, 1.5, [0.8, 0.6, 0.4])], 3)
    assert found.speedup == pytest.approx(2.8 / 1.5)
    assert (found.low, found.high) == (pytest.approx(2.8 / 1.5), pytest.approx(2.8 / 1.5))
    assert found.basis == "measured"


def test_one_k_brackets_the_cost_of_a_pass():
    assert pass_cost_bracket(point(3, 1.6, [0.5] * 3)) == (pytest.approx(0.1), pytest.approx(0.2))
    known = point(3, 1.6, [0.5] * 3, least=0.15)
    assert pass_cost_bracket(known) == (pytest.approx(0.15), pytest.approx(0.2))
    impossible = point(3, 1.6, [0.5] * 3, least=0.7)
    assert pass_cost_bracket(impossible) == (pytest.approx(0.2), pytest.approx(0.2))
    free = point(3, 0.98, [0.5] * 3)
    assert pass_cost_bracket(free) == (0.0, 0.0)


def test_one_k_lies_between_the_ends_of_its_bracket():
    # C(1) is 1.6 - 2c: 1.2 with c = 0.2, 1.4 with c = 0.1; E(1) = 1.5.
    found = predict([point(3, 1.6, [0.5, 0.3, 0.2])], 1)
    assert 1.5 / 1.4 < found.speedup < 1.5 / 1.2
    assert found.speedup == pytest.approx(1.5 / math.sqrt(1.2 * 1.4))
    assert found.low == pytest.approx(1.5 / 1.4)
    assert found.high == pytest.approx(1.5 / (1.6 - 2 * 0.25))


def test_the_law_from_one_k_is_a_bracket():
    law = law_of([point(3, 1.6, [0.5] * 3)])
    assert (law.pass_cost.low, law.pass_cost.high) == (pytest.approx(0.1), pytest.approx(0.2))
    assert (law.fixed_cost.low, law.fixed_cost.high) == (pytest.approx(0), pytest.approx(0.3))
    assert law.residual is None


# --- two and more ----------------------------------------------------------------------------


def test_two_k_fix_the_law():
    law = law_of([point(1, 1.3, [0.7]), point(3, 1.5, [0.7, 0.5, 0.3])])
    assert law.fixed_cost.value == pytest.approx(0.2)
    assert law.pass_cost.value == pytest.approx(0.1)


def test_three_k_leave_a_residual():
    law = law_of([point(k, c, [0.5] * k) for k, c in ((1, 1.3), (2, 1.43), (3, 1.5))])
    # Least squares: slope 0.1, level 1.41 at the middle; distances 0.01, 0.02, 0.01.
    assert law.pass_cost.value == pytest.approx(0.1)
    assert law.residual == pytest.approx(0.02)


def test_between_two_k_lies_the_line():
    cost = cost_at([point(1, 1.3, [0.7]), point(3, 1.5, [0.7, 0.5, 0.3])], 2)
    assert cost.value == pytest.approx(1.4)
    assert (cost.low, cost.high) == (pytest.approx(1.35), pytest.approx(1.45))


def test_acceptance_that_moves_with_k_is_carried_over():
    """At K = 1 the first position is accepted more often than at K = 3 (field case 30a)."""
    one, three = point(1, 1.2, [0.8]), point(3, 1.4, [0.7, 0.5, 0.3])
    found = predict([one, three], 2)
    # Halfway between: E(2) = 2.2 times the square root of 1.8 / 1.7.
    assert found.tokens_per_step == pytest.approx(2.2 * math.sqrt(1.8 / 1.7))


def test_the_k_to_measure_next_is_the_shortest_when_the_longest_is_known():
    assert next_to_measure([point(3, 1.6, [0.7, 0.5, 0.3])], [1, 2, 3]) == 1
    both = [point(1, 1.3, [0.7]), point(3, 1.5, [0.7, 0.5, 0.3])]
    assert next_to_measure(both, [1, 3]) is None
    assert next_to_measure(both, [3, 4]) == 4


# --- coverage ---------------------------------------------------------------------------------

LAWS = {
    "no fixed cost": lambda k: 1 + 0.15 * k,
    "a fixed cost": lambda k: 1 + 0.2 + 0.08 * k,
    "bends down": lambda k: 1 + 0.45 * (1 - 0.6**k) / (1 - 0.6**3),
    "bends up": lambda k: 1 + 0.12 * k + 0.012 * k * k,
}
TRIALS = 400
REQUESTS = 10
MEASURED_KS = {"one": (3,), "two": (1, 4)}


def draws(rng, trials, requests, longest):
    """ln E(k) for k = 0..longest, by trial and request: drafts of requests that differ."""
    alpha = np.clip(rng.normal(0.7, 0.08, (trials, requests)), 0.05, 0.95)
    drafts = 80
    whole = np.zeros((trials, requests, longest + 1))
    survive = np.ones((trials, requests, drafts), dtype=bool)
    for i in range(1, longest + 1):
        survive &= rng.random((trials, requests, drafts)) < alpha[..., None]
        whole[..., i] = whole[..., i - 1] + survive.mean(axis=2)
    return np.log1p(whole)


def simulated(rng, law, ks, noise=0.03):
    """Points of one trial each, and the truth of ln S(k)."""
    longest = max(ks)
    truth_tokens = draws(np.random.default_rng(1), 200, 100, longest).mean(axis=(0, 1))
    truth = {k: truth_tokens[k] - math.log(law(k)) for k in range(1, longest + 1)}
    by_k = {k: draws(rng, TRIALS, REQUESTS, k) for k in ks}
    for trial in range(TRIALS):
        points = []
        for k in ks:
            costs = math.log(law(k)) + rng.normal(0, noise, REQUESTS)
            tokens = by_k[k][trial]
            gains = np.diff(np.expm1(tokens), axis=1).mean(axis=0)
            points.append(Point(k, dict(enumerate(costs)), dict(enumerate(tokens)), list(gains)))
        yield points, truth


@pytest.mark.parametrize("ks", MEASURED_KS.values(), ids=MEASURED_KS.keys())
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_intervals_contain_what_is_then_measured(law, ks):
    rng = np.random.default_rng(7)
    hits = dict.fromkeys(range(1, max(ks) + 1), 0)
    for points, truth in simulated(rng, law, ks):
        for k, value in truth.items():
            found = predict(points, k)
            hits[k] += math.log(found.low) <= value <= math.log(found.high)
    shares = {k: n / TRIALS for k, n in hits.items()}
    assert min(shares.values()) >= 0.93, shares
    # Where nothing is left open but sampling error, the interval is no wider than it says.
    assert all(shares[k] <= 0.975 for k in ks), shares


@pytest.mark.parametrize(("ks", "within"), [((3,), 0.05), ((1, 4), 0.02)], ids=["one K", "two K"])
def test_points_are_near_the_truth_where_the_law_holds(ks, within):
    """Without noise: 5 % from one K where s is a tenth to a third of what a step costs extra."""
    for fixed, slope in ((0.05, 0.13), (0.1, 0.11), (0.15, 0.1)):
        positions = [0.75, 0.55, 0.4, 0.3]
        points = [point(k, 1 + fixed + slope * k, positions[:k]) for k in ks]
        for k in range(1, max(ks) + 1):
            truth = (1 + sum(positions[:k])) / (1 + fixed + slope * k)
            assert predict(points, k).speedup == pytest.approx(truth, rel=within)
