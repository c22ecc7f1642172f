"""Which token was free and which was paid for, against walks done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftmeter.analysis.steps import steps_of
from draftmeter.measure.request import Answer, _Reader
from draftmeter.record.types import TargetInfo
from support.records import MTP3, PLAIN, QUIET, record

LLAMA = TargetInfo(engine="llamacpp", speculative=True, chunk_is_step=False)
CAPTURES = Path(__file__).parent / "captures"


def test_a_rise_of_the_accepted_count_opens_a_step():
    # Prefill's token; a step of 1; one of 1 + 2 accepted; one of 1; one of 1 + 1 accepted.
    told = [0, 0, 2, 2, 2, 2, 3, 3]
    found = steps_of(record([1] * 8, accepted_so_far=told), LLAMA)
    assert found.tokens == (1, 1, 3, 1, 2)
    assert [p.free for p in found.parts] == [0, 0, 1, 1, 0, 0, 1, 0]
    assert [p.step for p in found.parts] == [0, 1, 2, 2, 2, 3, 4, 4]
    assert [p.begins for p in found.parts] == [True, True, True, False, False, True, True, False]
    assert (found.free, found.paid, found.cut) == (3, 5, 0)
    # Steps begin at tokens 0, 1, 2, 5, 6, which came 10 ms apart.
    assert found.gaps_ms == pytest.approx([10, 10, 30, 10])


def test_a_draft_that_goes_beyond_the_end_is_cut():
    # The last step accepted four; the answer ended after two of its five tokens.
    found = steps_of(record([1, 1, 1], accepted_so_far=[0, 4, 4]), LLAMA)
    assert found.tokens == (1, 2)
    assert (found.free, found.paid, found.cut) == (2, 1, 2)


def test_a_chunk_that_spans_two_steps():
    # A character held back: two tokens in one chunk, the first ends a step of three.
    found = steps_of(record([1, 1, 1, 2, 1], accepted_so_far=[0, 2, 2, 3, 3]), LLAMA)
    assert found.tokens == (1, 3, 2)
    assert [(p.free, p.paid) for p in found.parts] == [(0, 1), (1, 0), (1, 0), (1, 1), (0, 1)]
    assert [p.begins for p in found.parts] == [True, True, False, False, False]


def test_the_token_that_ends_the_answer_has_no_count_of_its_own():
    found = steps_of(record([1, 1, 1, 1], accepted_so_far=[0, 1, 1]), LLAMA)
    assert found.tokens == (1, 2, 1)


def test_counts_that_stayed_at_zero_are_all_paid():
    found = steps_of(record([1] * 5, accepted_so_far=[]), LLAMA)
    assert (found.free, found.paid, found.tokens) == (0, 5, (1,) * 5)


def test_a_chunk_is_a_step_where_the_engine_says_so():
    # vLLM: the first chunk is the prefill's, in each other one all tokens but one were drafted.
    found = steps_of(record([1, 4, 1, 2]), MTP3)
    assert [p.free for p in found.parts] == [0, 3, 0, 1]
    assert (found.free, found.paid, found.tokens) == (4, 4, (1, 4, 1, 2))


def test_what_was_read_together_cannot_be_told_apart():
    assert "several steps" in steps_of(record([1, 4, 8, 2]), MTP3)


def test_without_speculation_every_token_is_paid_for():
    found = steps_of(record([1, 1, 1]), PLAIN)
    assert (found.free, found.paid) == (0, 3)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "openai does not tell"),
        ({"tokens": None}, "does not say how many tokens"),
        ({"at_us": [], "tokens": []}, "no tokens"),
    ],
)
def test_where_the_engine_does_not_tell_there_is_a_reason(more, reason):
    assert reason in steps_of(record([1, 2], **more), QUIET)


def test_the_reader_keeps_the_running_count():
    # A llama.cpp b11549 stream with draft counts in its timings, as that server sent them.
    answer = Answer()
    reader = _Reader(answer)
    reader.feed((CAPTURES / "llamacpp-b11549-drafting-per-token.sse").read_bytes(), 1)
    told = answer.accepted_so_far
    assert told is not None
    assert len(told) == len(answer.at_us)
    assert told == sorted(told)
    assert told[-1] == answer.final.timings.draft_n_accepted > 0
    rec = record(
        answer.tokens, accepted_so_far=told, pieces=answer.pieces, kinds="".join(answer.kinds)
    )
    found = steps_of(rec, LLAMA)
    assert found.free + found.cut == told[-1]
    assert found.free + found.paid == sum(answer.tokens)
