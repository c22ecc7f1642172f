from collections import Counter

from draftmeter.measure.order import abba, blocks, nonce, prompt_of, share, turns


def test_each_pair_of_pairs_is_abba():
    for quad in range(20):
        one = abba(["a", "b"], 2 * quad, "s", seed=5)
        two = abba(["a", "b"], 2 * quad + 1, "s", seed=5)
        assert sorted(one) == ["a", "b"]
        assert two == tuple(reversed(one))


def test_the_first_direction_is_drawn_from_the_seed():
    firsts = [abba(["a", "b"], 2 * q, "s", seed=5)[0] for q in range(40)]
    assert 8 < firsts.count("a") < 32
    assert firsts == [abba(["a", "b"], 2 * q, "s", seed=5)[0] for q in range(40)]
    assert firsts != [abba(["a", "b"], 2 * q, "s", seed=6)[0] for q in range(40)]


def test_a_linear_drift_falls_on_both_targets_alike():
    # position in time summed per target over complete ABBA groups: equal, whatever was drawn
    when = {"a": 0, "b": 0}
    place = 0
    for pair in range(12):
        for name in abba(["a", "b"], pair, "s", seed=1):
            when[name] += place
            place += 1
    assert when["a"] == when["b"]


def test_every_prompt_once_before_any_again():
    drawn = [prompt_of(pair, 7, "s", seed=3) for pair in range(21)]
    for cycle in range(3):
        assert sorted(drawn[7 * cycle : 7 * cycle + 7]) == list(range(7))


def test_the_order_of_one_scenario_does_not_hang_on_the_others():
    alone = {t.pair: t for t in (turns(p, [("s", 5)], ["a", "b"], 9)[0] for p in range(6))}
    both = [t for p in range(6) for t in turns(p, [("s", 5), ("z", 4)], ["a", "b"], 9)]
    assert {t.pair: t for t in both if t.scenario == "s"} == alone


def test_blocks_alternate_and_share_out_all_pairs():
    assert blocks(["a", "b"], 0) == ("a", "b")
    assert blocks(["a", "b"], 1) == ("b", "a")
    pairs = [p for r in range(3) for p in share(10, 3, r)]
    assert pairs == list(range(10))


def test_nonces_differ_between_pairs_and_arms_and_repeat_with_the_seed():
    marks = [nonce(1, "s", p, e) for p in range(50) for e in ("", "aa0", "aa1")]
    assert max(Counter(marks).values()) == 1
    assert nonce(1, "s", 3) == nonce(1, "s", 3) != nonce(2, "s", 3)
