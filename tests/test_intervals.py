from __future__ import annotations

import math
from statistics import median

import pytest

from draftmeter.analysis.intervals import (
    clustered_ratio_interval,
    log_ratio_interval,
    median_interval,
    percentile,
    stein_interval,
    t_quantile,
)
from draftmeter.analysis.stepcost import (
    break_even_rate,
    decode_steps,
    step_cost,
    step_cost_value,
    step_ms,
)
from draftmeter.analysis.stopping import pairs_needed


def test_t_quantiles_from_the_printed_table():
    assert t_quantile(0.975, 2) == pytest.approx(4.3027, abs=1e-4)
    assert t_quantile(0.975, 9) == pytest.approx(2.2622, abs=1e-4)
    assert t_quantile(0.995, 9) == pytest.approx(3.2498, abs=1e-4)


def test_log_ratio_interval_by_hand():
    # d = ln 1.8, ln 2.0, ln 2.2: mean 0.689797, s 0.100378 -> half 4.30265 x 0.100378/sqrt 3 = 0.249352
    got = log_ratio_interval([math.log(1.8), math.log(2.0), math.log(2.2)])
    assert got.value == pytest.approx(math.exp(0.689797), rel=1e-5)
    assert got.low == pytest.approx(math.exp(0.689797 - 0.249352), rel=1e-4)
    assert got.high == pytest.approx(math.exp(0.689797 + 0.249352), rel=1e-4)


def test_no_interval_below_three_pairs():
    assert log_ratio_interval([]) is None
    two = log_ratio_interval([0.0, math.log(4)])
    assert two.value == pytest.approx(2)
    assert (two.low, two.high) == (None, None)


def test_stein_uses_the_first_stage_for_the_width_and_all_for_the_mean():
    # Stage 1: 0, 0.1, 0.2 (s = 0.1, df 2); stage 2: six of 0.1 -> mean 0.1,
    # half = 4.30265 x 0.1 / sqrt 9 = 0.143422, although the nine values vary less.
    got = stein_interval([0.0, 0.1, 0.2], [0.1] * 6)
    assert math.log(got.value) == pytest.approx(0.1)
    assert math.log(got.high) - 0.1 == pytest.approx(0.143422, rel=1e-4)


def test_clustered_interval_by_hand():
    # x = 10, 20, 30 of n = 40, 40, 40: r = 0.5; e = -10, 0, 10; SE = sqrt(1.5 x 200)/120 = 0.144338;
    # half = 4.30265 x 0.144338 = 0.621036.
    got = clustered_ratio_interval([10, 20, 30], [40, 40, 40])
    assert got.value == pytest.approx(0.5)
    assert got.high - got.value == pytest.approx(0.621036, rel=1e-4)


def test_clusters_that_drafted_nothing_do_not_count():
    assert clustered_ratio_interval([1, 2, 0], [4, 4, 0]).low is None
    assert clustered_ratio_interval([0, 0], [0, 0]) is None


def test_all_zero_or_all_one_has_no_interval():
    # Field case 18: 0 of 597 is 0 %, but "0 % to 0 %" would be a claim.
    nothing = clustered_ratio_interval([0, 0, 0], [199, 199, 199])
    assert (nothing.value, nothing.low, nothing.high) == (0, None, None)
    assert clustered_ratio_interval([5, 6, 7], [5, 6, 7]).high is None


def test_median_interval_ranks_from_the_printed_table():
    # Exact ranks for 95 %: n=6 -> (1, 6), n=10 -> (2, 9), n=15 -> (4, 12), n=20 -> (6, 15), n=30 -> (10, 21).
    assert median_interval([1, 2, 3, 4, 5]) is None
    for n, low, high in [(6, 1, 6), (10, 2, 9), (15, 4, 12), (20, 6, 15), (30, 10, 21)]:
        assert median_interval(list(range(n, 0, -1))) == (low, high)


def test_percentile_interpolates():
    # 20 values 1..20: place 0.95 x 19 = 18.05 -> 19.05.
    assert percentile(range(1, 21), 95) == pytest.approx(19.05)
    assert percentile([3.0], 95) == 3.0
    assert percentile([4, 1, 3], 50) == median([4, 1, 3])


def test_pairs_needed_by_hand():
    # Ten pilots with s = 0.05: sum of squares 9 x 0.0025; t_9 = 2.26216, h = ln 1.03 = 0.0295588:
    # (2.26216 x 0.05 / 0.0295588)^2 = 14.64 -> 15.
    half = 0.05 * math.sqrt(9 / 10)
    pilot = [half, -half] * 5
    assert pairs_needed(pilot, 0.03) == 15
    assert pairs_needed(pilot, 0.10) == 10  # 1.41, but never below the pilot
    assert pairs_needed([0.1, 0.2], 0.03) == 2
    with pytest.raises(ValueError, match="above 0"):
        pairs_needed(pilot, 0.0)


def test_the_articles_step_cost_and_break_even():
    # 92/255 in 85 drafts at 72.0 and 80.5 tok/s; 2795/3912 in 1304 drafts at 70.7 and 131.0, K = 3.
    chat = step_cost_value(1 + 92 / 85, 72.0, 80.5)
    code = step_cost_value(1 + 2795 / 1304, 70.7, 131.0)
    assert chat == pytest.approx(1.862, abs=5e-4)
    assert code == pytest.approx(1.696, abs=6e-4)
    assert break_even_rate(chat, 3) == pytest.approx(0.287, abs=5e-4)
    assert break_even_rate(code, 3) == pytest.approx(0.232, abs=5e-4)
    assert step_ms(1 + 92 / 85, 80.5) == pytest.approx(25.87, abs=0.01)


def test_a_dear_step_has_a_break_even_above_one():
    # Field case 22: 96.6 % of K=1 accepted, 342 -> 128 tok/s: C = 1.966 x 342/128 = 5.25; r* = 4.25.
    cost = step_cost_value(1.966, 342, 128)
    assert cost == pytest.approx(5.253, abs=1e-3)
    assert break_even_rate(cost, 1) > 1


def test_step_cost_does_not_move_with_acceptance():
    # The same step, 1.7 plain ones, in requests of 1.5 to 3 tokens per step: C is 1.7 in each.
    per_step = [1.5, 2.0, 2.5, 3.0]
    got = step_cost(per_step, [math.log(al / 1.7) for al in per_step])
    assert got.value == pytest.approx(1.7)
    assert got.low == pytest.approx(1.7)
    assert got.high == pytest.approx(1.7)


def test_steps_are_tokens_less_accepted_but_never_fewer_than_drafts():
    # Field case 21c. 100 decode tokens, 50 accepted in 50 drafts.
    assert decode_steps(100, 50, 50) == 50
    assert decode_steps(100, 28, 5) == 72  # five drafts, the other 67 steps drafted nothing
    assert decode_steps(100, 53, 50) == 50  # three accepted beyond the limit were never sent
    assert decode_steps(100, 50, None) == 50
