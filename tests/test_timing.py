from __future__ import annotations

import pytest

from draftmeter.analysis.timing import timing_of
from draftmeter.record.types import Usage
from support.records import TOTAL_ONLY, UNCOUNTED, record


def test_tokens_not_chunks_per_second():
    # Field case 1: 130 tokens in 50 chunks, first to last 1.000 s. First chunk 1 token:
    # 129 tokens after it in 1.000 s = 129 tok/s (the article's formula: 130); never 50 or 49.
    tokens = [1] + [3] * 31 + [2] * 18
    assert (sum(tokens), len(tokens)) == (130, 50)
    at_us = [80_000 + i * 1_000_000 // 49 for i in range(50)]
    timing = timing_of(record(tokens, at_us=at_us))
    assert timing.decode_s == pytest.approx(1.0)
    assert timing.decode_tok_s == pytest.approx(129)
    assert timing.decode_tok_s_article == pytest.approx(130)
    assert timing.ttft_ms == pytest.approx(80)


def test_tokens_of_the_first_chunk_belong_to_ttft():
    # Field case 2: 4 + 20 x 2 = 44 tokens, 20 gaps of 10 ms: (44-4)/0.2 = 200 tok/s.
    timing = timing_of(record([4] + [2] * 20))
    assert timing.first_chunk_tokens == 4
    assert not timing.first_chunk_assumed
    assert timing.decode_tok_s == pytest.approx(200)


def test_chunks_read_together_with_the_first_are_not_decoding():
    # Two chunks in the first read: 1 + 3 tokens at 50 ms, then 40 more in 0.4 s = 100 tok/s.
    at_us = [50_000] + [50_000 + 10_000 * i for i in range(41)]
    timing = timing_of(record([1, 3] + [1] * 40, at_us=at_us))
    assert timing.first_chunk_tokens == 4
    assert timing.decode_tok_s == pytest.approx(100)


def test_a_token_without_text_is_a_token_with_a_time():
    # Field case 4: the first and the last chunk carry ids but no text yet.
    pieces = ["", *["あ"] * 39, ""]
    timing = timing_of(record([1] * 41, pieces=pieces, kinds="e" + "c" * 39 + "e"))
    assert timing.ttft_ms == pytest.approx(50)
    assert timing.visible_ttft_ms == pytest.approx(60)
    assert timing.decode_tok_s == pytest.approx(100)  # 40 tokens in 0.4 s


def test_reasoning_is_decode_and_visible_ttft_is_the_first_content():
    # Field case 6: 30 reasoning tokens from 50 ms on, one each 10 ms, then content at 350 ms.
    timing = timing_of(record([1] * 41, kinds="r" * 30 + "c" * 11))
    assert timing.ttft_ms == pytest.approx(50)
    assert timing.visible_ttft_ms == pytest.approx(350)
    assert timing.decode_tok_s == pytest.approx(100)


def test_without_content_there_is_no_visible_ttft():
    assert timing_of(record([1] * 40, kinds="t" * 40)).visible_ttft_ms is None


def test_without_any_count_there_is_no_rate():
    # Field case 7: chunks are not tokens.
    timing = timing_of(record([1] * 50, **UNCOUNTED))
    assert timing.completion_tokens is None
    assert timing.decode_tok_s is None
    assert timing.decode_tok_s_article is None
    assert "no token counts" in timing.reason
    assert timing.ttft_ms == pytest.approx(50)
    assert not timing.long_enough


def test_with_only_the_total_the_first_chunk_is_taken_for_one_token_and_says_so():
    # 130 tokens, 50 chunks 20 ms apart: 129 / 0.98 s.
    timing = timing_of(
        record([1] * 50, gap_us=20_000, **TOTAL_ONLY,
               usage=Usage(completion_tokens=130))
    )  # fmt: skip
    assert timing.first_chunk_assumed
    assert timing.decode_tok_s == pytest.approx(129 / 0.98)


def test_usage_wins_over_the_sum_of_chunks_and_the_contradiction_is_kept():
    # Chunks say 101, usage says 111: 110 after the first in 1.0 s.
    timing = timing_of(record([1] * 101, usage=Usage(completion_tokens=111)))
    assert timing.completion_tokens == 111
    assert timing.decode_tok_s == pytest.approx(110)
    assert "101" in timing.notes[0]
    assert "111" in timing.notes[0]


def test_the_end_of_the_stream_is_not_the_last_token():
    # Field case 11b: [DONE] three seconds later changes nothing.
    assert timing_of(record(done_us=4_050_000)) == timing_of(record(done_us=1_050_001))


def test_a_short_answer_is_not_long_enough_for_speed():
    # Field case 10; the floor is 32 completion tokens.
    assert not timing_of(record([1] * 7)).long_enough
    assert not timing_of(record([1] * 31)).long_enough
    assert timing_of(record([1] * 32)).long_enough
    assert timing_of(record([1] * 7), long_enough=5).long_enough


@pytest.mark.parametrize("tokens", [[1], [40]])
def test_one_chunk_has_no_decode_time(tokens):
    timing = timing_of(record(tokens))
    assert timing.decode_tok_s is None
    assert timing.reason


def test_no_tokens_at_all():
    timing = timing_of(record([], usage=None))
    assert (timing.ttft_ms, timing.decode_tok_s) == (None, None)


def test_a_buffered_stream_has_no_rate():
    # Field case 11: 100 chunks within 1 ms after two seconds.
    timing = timing_of(record([1] * 100, ttft_us=2_000_000, gap_us=10))
    assert timing.buffered
    assert timing.decode_tok_s is None
    assert "held back" in timing.reason


def test_a_first_chunk_that_escaped_the_buffer_does_not_hide_it():
    at_us = [60_000] + [2_000_000 + 10 * i for i in range(99)]
    assert timing_of(record([1] * 100, at_us=at_us)).buffered


@pytest.mark.parametrize(
    "at_us",
    [
        [900_000 + 700 * i for i in range(40)],  # long prompt, then 1400 tok/s: fast but real
        [50_000, *(50_000 + 300_000 * (1 + i // 48) for i in range(96))],  # accepted 48 at a time
        [1_000 + 10 * i for i in range(100)],  # a stand-in that answers at once: half is decode
        [2_000_000, 2_000_010, 2_000_020],  # three chunks say nothing
    ],
)
def test_a_fast_server_is_not_a_buffer(at_us):
    assert not timing_of(record([1] * len(at_us), at_us=at_us)).buffered


def test_text_that_repeats_at_the_end_is_a_loop():
    # Field case 21d: 8 x 24 characters.
    pieces = ["So here is my answer. "] + ["I am happy to help you. "] * 8
    assert timing_of(record([6] * 9, pieces=pieces)).looped


def test_ordinary_text_is_no_loop():
    text = "".join(f"{i}. item number {i * i}, which costs {i * 7 % 13} coins\n" for i in range(60))
    assert not timing_of(record([400] * 1, pieces=[text])).looped
    assert not timing_of(record([40], pieces=["Title\n" + "=" * 40])).looped
