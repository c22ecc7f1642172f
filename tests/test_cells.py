from __future__ import annotations

import math
import random

import msgspec
import pytest

from draftmeter.analysis.cells import live, summarise
from draftmeter.analysis.stopping import pairs_wanted
from draftmeter.record.results import Results
from draftmeter.record.types import DraftCounts, RequestError, TargetInfo, Usage
from support.records import MTP3, PLAIN, QUIET, TOTAL_ONLY, UNCOUNTED, readings, record, run_of

INFOS = {"plain": PLAIN, "mtp": msgspec.structs.replace(MTP3, metrics_problem="off")}
INFOS["plain"] = msgspec.structs.replace(PLAIN, metrics_problem="off")


def plain(pair, *, gap_us=10_000, **more):
    """101 tokens, one each 10 ms: 100 tok/s."""
    fields = {"id": 100 + pair, "session_s": 2.0 * pair} | more
    return record([1] * 101, target="plain", pair=pair, gap_us=gap_us, **fields)


def mtp(pair, *, gap_us=14_000, chunks=None, **more):
    """101 tokens in 50 steps of 2 (1 of 3 accepted), 14 ms each: 100 / 0.7 s = 142.86 tok/s."""
    fields = {"id": 200 + pair, "session_s": 2.0 * pair + 1} | more
    return record(chunks or [1] + [2] * 50, target="mtp", pair=pair, gap_us=gap_us, **fields)


def both(n, **experiment):
    records = [r for pair in range(n) for r in (plain(pair), mtp(pair))]
    return run_of(records, INFOS, experiment=experiment)


def cell_of(results, target="mtp"):
    return next(c for c in results.cells if c.target == target)


def codes(cell):
    return {w.code for w in cell.warnings}


def test_the_whole_chain_by_hand():
    results = summarise(both(6))
    fast, slow = cell_of(results), cell_of(results, "plain")
    assert slow.decode_tok_s.median == pytest.approx(100)
    assert slow.decode_tok_s_article == pytest.approx(101)
    assert (slow.speedup, slow.drafting, slow.step_cost) == (None, None, None)
    assert slow.tokens_per_engine_step == 1
    assert slow.step_ms == pytest.approx(10)
    # 2 tokens each 14 ms against 1 each 10 ms: speedup 1.4286, C = 1.4, r* = 0.4 / 3.
    assert fast.decode_tok_s.median == pytest.approx(142.857, abs=1e-3)
    assert fast.speedup.ratio == pytest.approx(1.42857, abs=1e-5)
    assert fast.speedup.pairs == 6
    assert (fast.drafting.drafts, fast.drafting.drafted, fast.drafting.accepted) == (300, 900, 300)
    assert fast.tokens_per_engine_step == pytest.approx(2)
    assert fast.drafting.tokens_per_step == pytest.approx(2)
    assert fast.step_ms == pytest.approx(14)
    assert fast.step_cost.value == pytest.approx(1.4)
    assert fast.break_even_rate == pytest.approx(0.4 / 3)
    assert fast.completion_tokens == 606
    assert fast.ttft_ms.median == pytest.approx(50)
    assert (fast.ttft_ms.p95, fast.visible_ttft_ms) == (None, None)
    assert codes(fast) == {"position_dead"}  # 50 steps of exactly one accepted token
    assert codes(slow) == set()


def test_results_survive_json_and_keep_the_contract():
    results = summarise(both(3))
    text = msgspec.json.encode(results)
    assert msgspec.json.decode(text, type=Results) == results
    plain_data = msgspec.json.decode(text)
    assert plain_data["schema"] == "draftmeter.results/1"
    assert (plain_data["roofline"], plain_data["verdicts"]) == ([], [])
    assert plain_data["targets"]["mtp"]["draft_tokens"] == 3


def test_cells_come_in_the_order_of_the_experiment():
    records = [
        r for s in ("b", "a") for p in (0, 1) for r in (mtp(p, scenario=s), plain(p, scenario=s))
    ]
    run = run_of(records, INFOS, experiment={"scenarios": [{"name": "a"}, {"name": "b"}]})
    order = [(c.scenario, c.target) for c in summarise(run).cells]
    assert order == [("a", "plain"), ("a", "mtp"), ("b", "plain"), ("b", "mtp")]


def test_warmup_is_not_counted_and_errors_are():
    failed = RequestError(kind="http", message="overloaded", status=503)
    records = [plain(0, phase="warmup"), plain(1), plain(2),
               record([], target="plain", pair=3, id=9, error=failed)]  # fmt: skip
    cell = cell_of(summarise(run_of(records, INFOS)), "plain")
    assert (cell.requests, cell.errors) == (2, {"http": 1})
    warning = next(w for w in cell.warnings if w.code == "errors")
    assert warning.severity == "error"  # one in three
    assert "overloaded" in warning.text


def test_a_cell_in_which_everything_failed_is_null():
    failed = RequestError(kind="connect", message="refused")
    run = run_of([record([], target="plain", usage=None, tokens=None, error=failed)], INFOS)
    cell = cell_of(summarise(run), "plain")
    assert (cell.requests, cell.ttft_ms, cell.decode_tok_s, cell.completion_tokens) == (
        0,
        None,
        None,
        None,
    )
    assert (cell.step_ms, cell.tokens_per_engine_step) == (None, None)


def test_pairs_need_both_requests_long_enough():
    records = [r for p in range(4) for r in (plain(p), mtp(p))]
    records[1] = mtp(0, chunks=[1] + [2] * 5)  # 11 tokens: for acceptance, not for speed
    cell = cell_of(summarise(run_of(records, INFOS)))
    assert (cell.requests, cell.speed_requests, cell.speedup.pairs) == (4, 3, 3)
    assert cell.drafting.drafts == 155
    assert "short_answers" in codes(cell)


def test_different_pairs_are_never_compared():
    cell = cell_of(summarise(run_of([plain(0), plain(1), mtp(2), mtp(3)], INFOS)))
    assert cell.speedup is None
    assert "too_few_pairs" in codes(cell)


def test_a_pilot_gives_steins_interval():
    # Gaps of the plain target in the pilot pairs: ratios 1.26, 1.4, 1.54 x 100/70; later all 1.4.
    gaps = [9_000, 10_000, 11_000] + [10_000] * 6
    records = [r for p, gap in enumerate(gaps) for r in (plain(p, gap_us=gap), mtp(p))]
    d = [math.log(gap / 7_000) for gap in gaps]
    mean = sum(d) / 9
    first = sum(d[:3]) / 3
    s = math.sqrt(sum((v - first) ** 2 for v in d[:3]) / 2)
    two = {"requests": {"pilot": 3, "precision": 0.03}}
    staged = cell_of(summarise(run_of(records, INFOS, experiment=two))).speedup
    assert math.log(staged.high) == pytest.approx(mean + 4.302653 * s / 3, rel=1e-5)
    # With a fixed count all nine pairs give s: t_8 = 2.306.
    whole = math.sqrt(sum((v - mean) ** 2 for v in d) / 8)
    fixed = cell_of(summarise(run_of(records, INFOS))).speedup
    assert math.log(fixed.high) == pytest.approx(mean + 2.306004 * whole / 3, rel=1e-5)


def test_p95_from_twenty_requests():
    records = [plain(p, ttft_us=1000 * (p + 1)) for p in range(20)]
    ttft = cell_of(summarise(run_of(records, INFOS)), "plain").ttft_ms
    assert (ttft.median, ttft.low, ttft.high) == (10.5, 6, 15)
    assert ttft.p95 == pytest.approx(19.05)


def test_visible_ttft_where_there_was_reasoning():
    records = [plain(p, kinds="r" * 30 + "c" * 71) for p in range(3)]
    assert cell_of(summarise(run_of(records, INFOS)), "plain").visible_ttft_ms.median == 350


def test_step_cost_needs_a_plain_target_of_the_same_model():
    infos = INFOS | {
        "plain": TargetInfo(engine="vllm", model="moe", speculative=False, metrics_problem="off")
    }
    records = [r for p in range(3) for r in (plain(p), mtp(p))]
    cell = cell_of(summarise(run_of(records, infos)))
    assert cell.speedup.pairs == 3
    assert (cell.step_cost, cell.break_even_rate) == (None, None)
    assert "no_counterpart" in codes(cell)
    # A third target, plain and of that model, is the measure; the reference stays the other one.
    infos["dense"] = INFOS["plain"]
    dense = [record([1] * 101, target="dense", pair=p, id=300 + p, gap_us=20_000) for p in range(3)]
    cell = cell_of(summarise(run_of(records + dense, infos)))
    assert cell.speedup.ratio == pytest.approx(1.42857, abs=1e-5)
    assert cell.step_cost.value == pytest.approx(0.7)  # 14 ms against 20 ms


def test_rare_ngram_drafts_have_a_step_cost_but_no_break_even():
    # 100 decode tokens, 36 of them accepted in 4 drafts of 12: 64 steps, not 4.
    info = TargetInfo(
        engine="llama.cpp", model="m", speculative=True, draft_tokens=12, metrics_problem="off"
    )
    told = DraftCounts(drafts=4, drafted=48, accepted=36)
    records = [r for p in range(3) for r in
               (plain(p), record([1] * 101, target="mtp", pair=p, id=p, gap_us=8_000, drafting=told))]  # fmt: skip
    cell = cell_of(summarise(run_of(records, INFOS | {"mtp": info})))
    assert cell.drafting.tokens_per_step == 10
    assert cell.tokens_per_engine_step == pytest.approx(100 / 64)
    assert cell.step_cost.value == pytest.approx(100 / 64 * 0.8)
    assert cell.break_even_rate is None


def noisy(ratios):
    aa = []
    for pair, ratio in enumerate(ratios):
        for arm, gap in ((0, 10_000), (1, round(10_000 / ratio))):
            aa.append(plain(pair, gap_us=gap, phase="aa", arm=arm, id=10 * pair + arm))
    return aa


def test_machine_noise_is_mirrored_around_one():
    # ln ratios 0, 0.1, 0.2: mean 0.1, half 4.302653 x 0.1 / sqrt 3 = 0.248414 -> up to e^0.348414.
    results = summarise(run_of(noisy([1, math.exp(0.1), math.exp(0.2)]), INFOS))
    (noise,) = results.machine_noise
    assert noise.ratio == pytest.approx(math.exp(0.1), rel=1e-4)
    assert noise.high == pytest.approx(math.exp(0.348414), rel=1e-3)
    assert noise.low == pytest.approx(1 / noise.high)
    assert results.cells == []


def test_a_speedup_within_the_machines_noise_is_marked():
    # Field case 30c: noise up to e^0.348 = 1.417; 1.35x is inside, 1.4286x is not.
    aa = noisy([1, math.exp(0.1), math.exp(0.2)])
    for gap, marked in ((14_815, True), (14_000, False)):
        records = aa + [r for p in range(3) for r in (plain(p, id=50 + p), mtp(p, gap_us=gap))]
        found = codes(cell_of(summarise(run_of(records, INFOS))))
        assert ("within_machine_noise" in found) is marked


def test_answers_of_another_length_are_marked():
    # Field case 25.
    records = [r for p in range(3) for r in (plain(p), mtp(p, chunks=[1] + [2] * 100))]
    assert "outputs_differ" in codes(cell_of(summarise(run_of(records, INFOS))))


def test_answers_that_end_for_another_reason_are_marked():
    records = [r for p in range(3) for r in (plain(p), mtp(p, finish_reason="stop"))]
    assert "outputs_differ" in codes(cell_of(summarise(run_of(records, INFOS))))


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("client_busy", {"client_cpu": 0.95}),
        (
            "cached_prompt",
            {"usage": Usage(prompt_tokens=100, completion_tokens=101, cached_tokens=64)},
        ),
        ("tokens_unknown", UNCOUNTED),
        ("first_chunk_assumed", TOTAL_ONLY),
        ("buffered", {"at_us": [3_000_000 + 5 * i for i in range(101)]}),
    ],
)
def test_a_request_property_marks_the_cell(code, more):
    marked = cell_of(summarise(run_of([plain(p, **more) for p in range(3)], INFOS)), "plain")
    clean = cell_of(summarise(run_of([plain(p) for p in range(3)], INFOS)), "plain")
    assert codes(marked) == {code}
    assert codes(clean) == set()


def test_a_kept_cache_may_answer():
    usage = Usage(prompt_tokens=100, completion_tokens=101, cached_tokens=99)
    run = run_of([plain(p, usage=usage) for p in range(3)], INFOS, experiment={"cache": "keep"})
    assert codes(cell_of(summarise(run), "plain")) == set()


def test_a_buffered_stream_gives_neither_ttft_nor_speed():
    at_us = [3_000_000 + 5 * i for i in range(101)]
    cell = cell_of(summarise(run_of([plain(p, at_us=at_us) for p in range(3)], INFOS)), "plain")
    assert (cell.ttft_ms, cell.decode_tok_s) == (None, None)
    assert cell.warnings[0].severity == "error"


def test_drift_over_the_session():
    # 2 % slower with every request: marked. 0.1 %: not.
    for step, marked in ((200, True), (10, False)):
        records = [plain(p, gap_us=10_000 + step * p) for p in range(10)]
        found = codes(cell_of(summarise(run_of(records, INFOS)), "plain"))
        assert ("drift" in found) is marked


def test_scatter_is_no_drift():
    # Least squares by scipy's linregress: -12.2% over the session, but t = -1.17, below 3.36 (t_8, 1 %).
    gaps = [10_000, 12_000, 9_000, 11_500, 10_500, 12_000, 9_500, 12_500, 11_000, 12_200]
    records = [plain(p, gap_us=gap) for p, gap in enumerate(gaps)]
    assert codes(cell_of(summarise(run_of(records, INFOS)), "plain")) == set()


def drafted(told, **more):
    info = msgspec.structs.replace(INFOS["mtp"], chunk_is_step=False)
    records = [mtp(p, drafting=told, **TOTAL_ONLY, **more) for p in range(3)]
    return cell_of(summarise(run_of(records, INFOS | {"mtp": info}, reference="mtp")))


def test_quiet_failures_of_speculation():
    # Field cases 18 and 21d.
    assert "accepted_nothing" in codes(drafted(DraftCounts(50, 150, 0, [0, 0, 0])))
    assert "nothing_drafted" in codes(drafted(DraftCounts(0, 0, 0)))
    assert "position_dead" in codes(drafted(DraftCounts(50, 150, 70, [40, 30, 0])))
    assert "drafts_shorter" in codes(drafted(DraftCounts(50, 50, 40)))
    fine = {"first_chunk_assumed"}
    assert codes(drafted(DraftCounts(50, 150, 70, [40, 20, 10]))) == fine


def test_nothing_drafted_is_no_rate():
    drafting = drafted(DraftCounts(0, 0, 0)).drafting
    assert (drafting.drafts, drafting.rate, drafting.tokens_per_step) == (0, None, None)


def test_a_loop_with_high_acceptance_is_marked():
    cell = drafted(DraftCounts(25, 75, 75, [25] * 3), pieces=["The same sentence again. "] * 51)
    assert "repeating_text" in codes(cell)


def test_a_run_without_its_reference_says_so():
    results = summarise(run_of([mtp(0)], INFOS))
    assert [w.code for w in results.warnings] == ["no_reference"]
    assert [w.code for w in summarise(run_of([], INFOS)).warnings] == ["nothing_measured"]


def test_pairs_wanted_takes_the_target_that_varies_most():
    # Ten pairs; ln ratio +-0.05 in turn: s = 0.05 sqrt(10/9), (2.26216 s / ln 1.03)^2 = 16.27 -> 17.
    steady = [record([1] * 101, target="x", pair=p, id=p) for p in range(10)]
    wild = [mtp(p, gap_us=round(20_000 * math.exp(0.05 * (-1) ** p))) for p in range(10)]
    base = [plain(p) for p in range(10)]
    assert pairs_wanted(base + steady, "plain", 0.03) == 10
    assert pairs_wanted(base + steady + wild, "plain", 0.03) == 17
    # Alone: the precision of the target's own rate.
    assert pairs_wanted(wild, "mtp", 0.03) == 17


def test_live_is_a_running_estimate():
    told = DraftCounts(drafted=60, accepted=15)
    records = [mtp(p, drafting=told) for p in range(3)]
    now = live(records, [plain(p) for p in range(3)])
    assert now.decode_tok_s == pytest.approx(142.857, abs=1e-3)
    assert now.rate == pytest.approx(0.25)
    assert now.speedup == pytest.approx(1.42857, abs=1e-5)
    assert now.speedup_low == pytest.approx(1.42857, abs=1e-5)
    empty = live([], [])
    assert (empty.requests, empty.decode_tok_s, empty.rate, empty.speedup) == (0, None, None, None)


def test_unknown_servers_without_counts_still_give_ttft():
    run = run_of([plain(p, **UNCOUNTED) for p in range(6)],
                 {"plain": QUIET})  # fmt: skip
    cell = cell_of(summarise(run), "plain")
    assert (cell.ttft_ms.median, cell.ttft_ms.low) == (50, 50)
    assert (cell.decode_tok_s, cell.completion_tokens, cell.step_ms) == (None, None, None)


def odd_record(rng, number):
    """Anything that the types allow, however little sense it makes."""
    n = rng.choice([0, 1, 2, 9, 40, 80])
    steps = [rng.choice([0, 0, 1, 10_000]) for _ in range(n)]
    count = [None, 0, 1, 7, 100]
    usage = Usage(completion_tokens=rng.choice([None, 0, 1, 5, 200, 10**9]), prompt_tokens=0)
    told = DraftCounts(*(rng.choice(count) for _ in range(3)), rng.choice([None, [], [1, 0]]))
    return record(
        [rng.randint(0, 5) for _ in range(n)],
        target=rng.choice(["plain", "mtp"]),
        id=number,
        pair=rng.randint(0, 3),
        phase=rng.choice(["measure", "aa"]),
        arm=rng.choice([None, 0, 1]),
        at_us=[100 + sum(steps[: i + 1]) for i in range(n)],
        tokens=rng.choice([None, [2] * n, [1] * (n + 1)]),
        usage=rng.choice([None, usage]),
        drafting=rng.choice([None, told]),
        accepted_steps=rng.choice([None, [], [1, 2]]),
        drafted_steps=rng.choice([None, [], [3, 1]]),
    )


def odd_readings(rng, number):
    def snapshot():
        values = [rng.choice([None, 0.0, 50.0, 100.0]) for _ in range(3)]
        names = ("drafts", "accepted", "generation_tokens")
        return dict(zip(names, values, strict=True)) | {"accepted_at": rng.choice([None, [1.0]])}

    return readings(number, snapshot(), snapshot(), target=rng.choice(["plain", "mtp"]))


def test_no_record_however_odd_breaks_the_analysis_or_gives_an_infinite_number():
    rng = random.Random(3)
    for _ in range(150):
        records = [odd_record(rng, i) for i in range(rng.randint(0, 14))]
        counters = [c for i in range(14) for c in odd_readings(rng, i)]
        infos = {"plain": TargetInfo(engine="e"), "mtp": rng.choice([MTP3, PLAIN, QUIET])}
        results = summarise(run_of(records, infos, counters=counters))
        # msgspec writes null for a number that is not finite: a loss would show here.
        assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


def test_a_request_far_below_the_others_is_named():
    # 10 ms a token in five requests, 40 ms in one
    records = [plain(p, gap_us=40_000 if p == 3 else 10_000) for p in range(6)]
    (warning,) = (
        w
        for w in cell_of(summarise(run_of(records, INFOS)), "plain").warnings
        if w.code == "outliers"
    )
    assert "1 of 6 requests" in warning.text
    assert "25 against 100 tok/s" in warning.text
