from __future__ import annotations

import pytest

from draftmeter.analysis.drafting import drafting_of, index_counters
from draftmeter.analysis.witnesses import from_counters, from_response, from_stream
from draftmeter.record.types import CounterRecord, DraftCounts, TargetInfo, Usage
from support.records import MTP3, PLAIN, QUIET, TOTAL_ONLY, readings, record

# vLLM 0.32.0 with MTP K=3, one request of 200 tokens: the captured counters before and after.
VLLM_BEFORE = {"drafts": 0.0, "drafted": 0.0, "accepted": 0.0, "accepted_at": [0.0, 0.0, 0.0],
               "created": 1.7961226846940691e09}  # fmt: skip
VLLM_AFTER = VLLM_BEFORE | {"drafts": 199.0, "drafted": 597.0}


def counted(drafts, accepted, *, k=3, positions=None, base=1000.0, tokens=None, created=7.0):
    """Counters that stood at ``base`` and moved by these; ``tokens`` generated in all."""
    after = {"drafts": base + drafts, "drafted": base + k * drafts, "accepted": base + accepted,
             "created": created}  # fmt: skip
    before = {"drafts": base, "drafted": base, "accepted": base, "created": 7.0}
    if positions:
        before["accepted_at"] = [base] * len(positions)
        after["accepted_at"] = [base + n for n in positions]
    if tokens is not None:
        before["generation_tokens"], after["generation_tokens"] = base, base + tokens
    return before, after


def codes(found):
    return [w.code for w in found.warnings]


def without_stream(r):
    """The same request from a server that only states the total."""
    return record(r.tokens, id=r.id, pair=r.pair, **TOTAL_ONLY,
                  drafting=r.drafting, usage=Usage(completion_tokens=sum(r.tokens)))  # fmt: skip


def one(r, counters, info=MTP3):
    return drafting_of([r], index_counters(counters), info)


def test_counters_are_the_difference_of_two_readings():
    # 51 tokens: one from the prefill, then 20 steps of 1, 2, 3 or 4: 30 accepted.
    chunks = [1] + [1] * 4 + [2] * 5 + [3] * 8 + [4] * 3
    r = without_stream(record(chunks))
    found = one(r, readings(0, *counted(20, 30, positions=[16, 11, 3], tokens=51)))
    d = found.drafting
    assert (d.witness, d.drafts, d.drafted, d.accepted) == ("counters", 20, 60, 30)
    assert d.rate == pytest.approx(0.5)
    assert d.tokens_per_step == pytest.approx(2.5)
    assert d.position_acceptance == pytest.approx([0.8, 0.55, 0.15])
    assert d.drafted_share == pytest.approx(30 / 51)
    assert (d.rate_low, d.witnesses_agree) == (None, None)
    assert codes(found) == []


def test_nothing_accepted_is_zero_and_its_witnesses_agree():
    # Field case 18, from the capture: 199 drafts, 0 of 597 accepted; the response says the same.
    told = DraftCounts(drafts=199, drafted=597, accepted=0)
    r = record([1] * 200, drafting=told, accepted_steps=[0] * 199, drafted_steps=[3] * 199)
    d = one(r, readings(0, VLLM_BEFORE, VLLM_AFTER)).drafting
    assert (d.drafted, d.accepted, d.rate, d.tokens_per_step) == (597, 0, 0.0, 1.0)
    assert d.position_acceptance == [0, 0, 0]
    assert d.witnesses_agree is True


def test_speculation_off_is_null_not_zero():
    # Field case 18: no spec_decode series at all; one token in every chunk.
    r = record([1] * 100)
    for info in (PLAIN, TargetInfo(engine="vllm", chunk_is_step=True)):
        found = one(r, readings(0, {"generation_tokens": 0.0}, {"generation_tokens": 100.0}), info)
        assert found.drafting is None
        assert codes(found) == []
    # llama.cpp has the series without speculation too, and they stand still.
    still = {"drafts": 0.0, "drafted": 0.0, "accepted": 0.0}
    info = TargetInfo(engine="llama.cpp", chunk_is_step=False)
    assert one(r, readings(0, still, still), info).drafting is None


def test_series_that_appear_after_the_first_draft_began_at_zero():
    after = {"drafts": 5.0, "drafted": 184.0, "accepted": 28.0}
    seen = from_counters(record([1] * 256), *readings(0, {}, after), None)
    assert seen.counts == DraftCounts(drafts=5, drafted=184, accepted=28)


@pytest.mark.parametrize(
    "after",
    [
        counted(-990, -980)[1],  # field case 14: counters fell
        counted(20, 30, created=8.0)[1],  # restarted, and already past the old values
        {"generation_tokens": 5.0},  # restarted, and nothing drafted yet
    ],
)
def test_a_restarted_server_gives_no_acceptance(after):
    before = counted(20, 30)[0]
    r = without_stream(record([1] * 51))
    found = one(r, readings(0, before, after))
    assert found.drafting is None
    assert "counters_reset" in codes(found)


def test_a_restart_in_one_request_leaves_the_others():
    rs = [without_stream(record([1] + [2] * 20, id=i, pair=i)) for i in range(3)]
    good = counted(20, 20)
    counters = [*readings(0, *good), *readings(1, good[1], good[0]), *readings(2, *good)]
    found = drafting_of(rs, index_counters(counters), MTP3)
    # Over the two covered requests only, tokens too: 40 of 120, 40 of 2 x 41 tokens.
    assert (found.drafting.accepted, found.drafting.drafted) == (40, 120)
    assert found.drafting.drafted_share == pytest.approx(40 / 82)
    assert set(found.by_request) == {0, 2}


def test_foreign_traffic_by_generated_tokens():
    # Field case 15: we got 41 tokens, the server made 300. The stream speaks instead.
    r = record([1] + [2] * 20)
    found = one(r, readings(0, *counted(150, 150, tokens=300)))
    assert "foreign_traffic" in codes(found)
    assert found.drafting.witness == "stream"
    assert (found.drafting.drafts, found.drafting.accepted) == (20, 20)
    assert found.drafting.witnesses_agree is False


def test_foreign_traffic_without_a_second_witness():
    # 41 tokens cannot hold 25 drafts with 25 accepted: 50 > 41 - 1 + 3 + 1 = 44.
    r = without_stream(record([1] + [2] * 20))
    found = one(r, readings(0, *counted(25, 25)))
    assert codes(found)[0] == "foreign_traffic"
    assert found.warnings[0].severity == "error"
    assert found.drafting is None


def test_foreign_traffic_on_a_plain_server_is_seen_too():
    moved = {"generation_tokens": 0.0}, {"generation_tokens": 260.0}
    assert codes(one(record([1] * 100), readings(0, *moved), PLAIN)) == ["foreign_traffic"]


def test_tokens_beyond_the_limit_are_no_foreign_traffic():
    # The last step may accept three tokens that are cut: 20 + 23 <= 41 - 1 + 3 + 1.
    r = record([1] + [2] * 20)
    found = one(r, readings(0, *counted(20, 23, tokens=41)))
    assert codes(found) == []
    assert found.drafting.witness == "counters"
    assert found.drafting.witnesses_agree is True


def test_witnesses_that_disagree_are_marked_and_the_response_is_used():
    # Counters of another server: 20 drafts, but only 4 accepted where the response says 20.
    told = DraftCounts(drafts=20, drafted=60, accepted=20)
    found = one(record([1] + [2] * 20, drafting=told), readings(0, *counted(20, 4)))
    assert codes(found) == ["witnesses_disagree"]
    assert (found.drafting.witness, found.drafting.accepted) == ("response", 20)
    assert found.drafting.witnesses_agree is False


def test_lagging_counters_are_not_believed():
    # Field case 16: 41 tokens came, the counter says 0 so far; or it never stood still.
    r = record([1] + [2] * 20)
    lagging = one(r, readings(0, *counted(0, 0, tokens=0)))
    moving = one(r, readings(0, *counted(20, 20), settled=False))
    for found in (lagging, moving):
        assert found.drafting.witness == "stream"
        assert codes(found) == ["counters_missing"]
        assert found.warnings[0].severity == "note"  # another witness spoke


def test_no_metrics_says_why():
    # Field case 17.
    info = TargetInfo(engine="vllm", metrics_problem="HTTP 404 at /metrics")
    found = one(record([1] * 50), [], info)
    assert found.drafting is None
    assert "HTTP 404 at /metrics" in found.warnings[0].text
    gone = [CounterRecord(target="t", request=0, moment="before", at=0.0, problem="HTTP 401")]
    assert "HTTP 401" in one(without_stream(record()), gone).warnings[0].text


def test_stream_by_hand():
    # Chunks after the first: 1, 2, 4, 3, 1 tokens -> accepted 0, 1, 3, 2, 0; at least 1: 3 of 5,
    # 2: 2 of 5, 3: 1 of 5.
    seen = from_stream(record([1, 1, 2, 4, 3, 1]), MTP3)
    assert seen.counts == DraftCounts(5, 15, 6, [3, 2, 1])


def test_stream_needs_one_chunk_per_step_and_speculation():
    r = record([1, 2, 2])
    assert from_stream(r, TargetInfo(engine="llama.cpp", chunk_is_step=False)).counts is None
    assert from_stream(r, TargetInfo(engine="?", chunk_is_step=None)).counts is None
    assert from_stream(r, PLAIN).counts is None
    assert from_stream(without_stream(r), MTP3).counts is None


def test_without_k_the_stream_gives_tokens_per_step_but_no_rate():
    d = one(record([1] + [2] * 20), [], TargetInfo(engine="vllm", chunk_is_step=True)).drafting
    assert (d.witness, d.tokens_per_step, d.drafted, d.rate) == ("stream", 2.0, None, None)


def test_a_chunk_longer_than_a_step_silences_the_stream():
    found = one(record([1, 2, 7, 2]), readings(0, *counted(5, 5)))
    assert found.drafting.witness == "counters"
    assert codes(found) == ["chunks_coalesced"]


def test_response_steps_give_positions():
    r = record([1, 3, 1, 2], drafting=DraftCounts(3, 7, 3), accepted_steps=[2, 0, 1],
               drafted_steps=[3, 1, 3])  # fmt: skip
    seen = from_response(r).counts
    assert seen.accepted_at == [2, 1]
    assert seen.drafted_at == [3, 2, 2]


def test_position_acceptance_counts_drafts_that_reached_it():
    # Field case 21: drafts of 3, 1 and 3 tokens; 2, 0 and 1 accepted: 2/3, 1/2, 0/2.
    r = record([1, 3, 1, 2], drafting=DraftCounts(3, 7, 3), accepted_steps=[2, 0, 1],
               drafted_steps=[3, 1, 3])  # fmt: skip
    info = TargetInfo(engine="x", speculative=True, metrics_problem="none")
    assert one(r, [], info).drafting.position_acceptance == pytest.approx([2 / 3, 1 / 2, 0])


def test_ngram_drafts_that_are_rare():
    # Field case 20: 9 drafts in 200 tokens, all of 27 drafted tokens accepted. A rate of 100 %
    # and 4 tokens per drafted step, but drafts made only 13.5 % of the text.
    info = TargetInfo(engine="llama.cpp", speculative=True, chunk_is_step=False)
    r = record([1] * 200, drafting=DraftCounts(drafted=27, accepted=27))
    d = one(r, readings(0, *counted(9, 27)), info).drafting
    assert (d.witness, d.rate, d.tokens_per_step) == ("counters", 1.0, 4.0)
    assert d.drafted_share == pytest.approx(0.135)
    assert d.witnesses_agree is True


def test_the_llamacpp_capture():
    # llama.cpp b11549, n-gram: timings say 184 drafted, 28 accepted; the counters add 5 drafts.
    info = TargetInfo(engine="llama.cpp", speculative=True, chunk_is_step=False)
    r = record([1] * 256, drafting=DraftCounts(drafted=184, accepted=28))
    zero = {"drafts": 0.0, "drafted": 0.0, "accepted": 0.0}
    after = {"drafts": 5.0, "drafted": 184.0, "accepted": 28.0}
    d = one(r, readings(0, zero, after), info).drafting
    assert d.rate == pytest.approx(28 / 184)
    assert d.tokens_per_step == pytest.approx(6.6)
    assert d.witnesses_agree is True
    # Without counters the number of drafts, and so tokens per drafted step, is unknown.
    alone = one(r, [], TargetInfo(engine="llama.cpp", speculative=True, metrics_problem="off"))
    assert (alone.drafting.rate, alone.drafting.tokens_per_step) == (28 / 184, None)


def test_engine_that_counts_steps_but_not_accepted_tokens():
    # Field case 21b: 41 tokens in 20 verifications; the first token came from the prefill.
    before = {"drafts": 3.0, "generation_tokens": 10.0}
    after = {"drafts": 23.0, "generation_tokens": 51.0}
    seen = from_counters(record([1] + [2] * 20), *readings(0, before, after), 3)
    assert seen.counts == DraftCounts(drafts=20, drafted=60, accepted=20)


def test_the_interval_is_by_request():
    # Three requests of 40 drafted, 10, 20, 30 accepted: r = 0.5 +- 0.62, cut to 0..1.
    rs = [
        record([1] * 50, id=i, pair=i, drafting=DraftCounts(drafted=40, accepted=n))
        for i, n in enumerate((10, 20, 30))
    ]
    d = drafting_of(rs, {}, QUIET).drafting
    assert (d.rate, d.rate_low, d.rate_high) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize(
    ("sizes", "drafts", "accepted", "positions"),
    [
        # vLLM 0.24.0 with MTP K=3, 512 tokens: how many chunks after the first carried 1, 2, 3
        # and 4 token_ids in the captured stream. Chat: accepted = 65 + 2 x 43 + 3 x 40.
        ((92, 65, 43, 40), 240, 271, [148 / 240, 83 / 240, 40 / 240]),
        # Code: accepted = 19 + 2 x 16 + 3 x 100.
        ((25, 19, 16, 100), 160, 351, [135 / 160, 116 / 160, 100 / 160]),
    ],
)
def test_the_vllm_captures_of_512_tokens(sizes, drafts, accepted, positions):
    chunks = [1] + [n for n, times in enumerate(sizes, 1) for _ in range(times)]
    assert sum(chunks) == 512
    d = one(record(chunks), [], MTP3).drafting
    assert (d.drafts, d.drafted, d.accepted) == (drafts, 3 * drafts, accepted)
    assert d.position_acceptance == pytest.approx(positions)
    assert d.tokens_per_step == pytest.approx(511 / drafts)


def test_ngram_drafts_of_vllm_are_made_in_few_steps_and_the_stream_does_not_contradict():
    # vLLM 0.32.0 on a CPU, ngram with K=4: 200 tokens in 200 chunks, 5 drafts, nothing accepted.
    info = TargetInfo(engine="vllm", speculative=True, draft_tokens=4, chunk_is_step=True)
    told = DraftCounts(drafts=5, drafted=20, accepted=0, accepted_at=[0, 0, 0, 0])
    r = record([1] * 200, drafting=told)
    before, after = counted(5, 0, k=4, positions=[0, 0, 0, 0], tokens=200)
    found = one(r, readings(0, before, after), info)
    assert found.drafting.witness == "counters"
    assert found.drafting.witnesses_agree is True
    assert (found.drafting.drafts, found.drafting.drafted) == (5, 20)
    assert codes(found) == []


def test_accepted_tokens_that_the_stream_does_not_show_contradict():
    info = TargetInfo(engine="vllm", speculative=True, draft_tokens=4, chunk_is_step=True)
    before, after = counted(30, 60, k=4, tokens=200)
    found = one(record([1] * 200), readings(0, before, after), info)
    assert found.drafting.witnesses_agree is False
