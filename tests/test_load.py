"""Sweeps over concurrency and context: by hand, and against servers whose load is known."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.records import record

from draftmeter import api
from draftmeter.analysis.load import schedule, total_tok_s
from draftmeter.errors import UsageError
from draftmeter.experiment.filler import filler
from draftmeter.experiment.load import experiment_of
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target
from draftmeter.measure.ask import with_context

PROMPTS = [[Message(role="user", content=f"Question {i}: say something.")] for i in range(6)]
LAW = [0.8, 0.6, 0.4]


def experiment(targets, *, tokens=64, count=6, **more):
    return Experiment(
        name="load",
        reference="plain",
        targets={name: Target(name=name, **how) for name, how in targets.items()},
        scenarios=[Scenario(name="talk", prompts=PROMPTS, max_tokens=tokens)],
        requests=Requests(count=count),
        seed=9,
        **more,
    )


@pytest.fixture
def servers(serve):
    """A speculative step verifies four tokens, so each other stream costs it four times as much."""
    common = {"step_ms": 4.0, "prefill_ms": 8, "completion_tokens": 64, "load_ms": 0.6,
              "spin_ms": 0.5}  # fmt: skip
    spec = {"fixed_ms": 0.5, "per_draft_ms": 0.5, "draft_tokens": 3, "position_acceptance": LAW}
    return {"plain": {"url": serve(**common).url}, "mtp": {"url": serve(**common, **spec).url}}


def truth(streams):
    """Speedup by the set law: 2.8 tokens for a step that costs C(streams)."""
    others = streams - 1
    return 2.8 * (4 + 0.6 * others) / (6 + 4 * 0.6 * others)


def test_speculation_stops_paying_where_the_servers_say_so(tmp_path, servers):
    path, results = api.run(experiment(servers, concurrency=[1, 4, 16]), tmp_path / "r")
    cells = {(c.target, c.concurrency): c for c in results.cells}
    assert {key[1] for key in cells} == {1, 4, 16}
    for streams in (1, 4, 16):
        assert cells["mtp", streams].speedup.ratio == pytest.approx(truth(streams), rel=0.15)
        assert cells["mtp", streams].drafting.rate == pytest.approx(0.6, abs=0.08)
    assert cells["plain", 1].total_tok_s is None
    # 16 streams, a token each in 4 + 15 x 0.6 ms, less what prefill takes of a request's time
    total = cells["plain", 16].total_tok_s
    assert total.low <= total.value <= total.high
    assert 0.6 * 16 / 0.013 < total.value < 1.1 * 16 / 0.013
    (crossing,) = results.crossovers
    assert 5 < crossing.concurrency < 14  # by the law 8.2; from 4 and 16 on a log scale 9.6
    assert crossing.low is None or crossing.low <= crossing.concurrency
    assert crossing.schedule[0][0] == 1
    assert crossing.schedule[0][2] >= 1
    assert crossing.schedule[-1][2] == 0
    measured = [r for r in api.load(path).records if r.phase == "measure"]
    counts = Counter((r.target, r.concurrency) for r in measured)
    assert counts["mtp", 4] == 8
    assert counts["mtp", 16] == 32  # two for each stream
    by_pair = Counter((r.target, r.concurrency, r.pair) for r in measured)
    assert set(by_pair.values()) == {1}


def test_as_many_streams_are_busy_as_asked_for(tmp_path, servers):
    path, _ = api.run(
        experiment({"plain": servers["plain"]}, concurrency=[4], rounds=1), tmp_path / "r"
    )
    records = api.load(path).records
    starts = [r.session_s for r in records if r.phase == "measure"]
    moment = (min(starts) + max(starts)) / 2
    busy = [r for r in records if r.session_s <= moment < r.session_s + (r.done_us or 0) / 1e6]
    assert len(busy) == 4


def test_resume_measures_only_what_is_missing_under_load(tmp_path, servers):
    plan = experiment({"plain": servers["plain"]}, concurrency=[1, 3], rounds=2)
    path, whole = api.run(plan, tmp_path / "r")
    file = path / "requests.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]))
    _, resumed = api.resume(path)
    assert [(c.concurrency, c.requests) for c in resumed.cells] == [
        (c.concurrency, c.requests) for c in whole.cells
    ]
    _, again = api.resume(path)
    assert again == resumed


def test_context_stands_before_the_prompt_and_is_as_long_as_asked_for(tmp_path, serve):
    server = serve(step_ms=1, prefill_ms=2, completion_tokens=40)
    plan = experiment({"plain": {"url": server.url}}, count=3, context=[256, 2048])
    _, results = api.run(plan, tmp_path / "r")
    assert [c.context_tokens for c in results.cells] == [256, 2048]
    asked = server.truth()["requests"]
    for tokens in (256, 2048):
        # The known server takes four characters for a token.
        lengths = [
            r["prompt_tokens"] for r in asked if 0.8 * tokens < r["prompt_tokens"] < 1.25 * tokens
        ]
        assert len(lengths) == 3
    last = asked[-1]["body"]["messages"][-1]["content"]
    assert last.startswith("[")  # the mark that keeps the prefix cache from answering
    assert "Background notes" in last
    assert last.endswith("say something.")


def test_more_context_than_a_server_takes_is_said_before_it_is_sent(tmp_path, serve):
    server = serve(step_ms=1, prefill_ms=2, completion_tokens=40)
    plan = experiment({"plain": {"url": server.url}}, context=[32768])
    with pytest.raises(UsageError, match="takes 32768 tokens of context"):
        api.run(plan, tmp_path / "r")


# --- by hand ----------------------------------------------------------------------------------


def test_filler_is_the_same_every_time_and_as_long_as_asked_for():
    assert filler(0) == ""
    assert filler(500) == filler(500)
    assert 500 <= len(filler(500).split()) < 540
    assert filler(900).startswith(filler(400)[:400])
    messages = [Message(role="system", content="Be kind."), Message(role="user", content="Hi")]
    assert [m.content for m in with_context(messages, "X ")] == ["Be kind.", "X Hi"]


def test_total_throughput_is_that_of_all_streams_while_all_are_busy():
    """Two streams, ten tokens a second each, requests of 2 s one after the other."""
    records = []
    for stream in (0, 1):
        for turn in range(4):
            records.append(record(
                [1] * 20, ttft_us=100_000, gap_us=100_000, pair=len(records), concurrency=2,
                session_s=2.0 * turn + stream, done_us=2_000_000,
            ))  # fmt: skip
    found = total_tok_s(records)
    assert found.value == pytest.approx(20, rel=0.12)
    assert found.low <= 20 <= found.high + 1
    assert total_tok_s([r for r in records if r.pair == 0]) is None


def test_the_table_by_batch_size_joins_neighbours_and_leaves_no_gap():
    assert schedule({1: 3, 4: 3, 16: 1, 64: 0}) == [[1, 8, 3], [9, 32, 1], [33, 128, 0]]
    assert schedule({1: 2, 2: 0}) == [[1, 1, 2], [2, 4, 0]]
    assert schedule({8: 3}) == [[1, 16, 3]]


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [("concurrency", [16, 1, 4, 4], [1, 4, 16]), ("concurrency", 8, [8]),
     ("context", ["8k", 1024, "1k"], [1024, 8192])],
)  # fmt: skip
def test_levels_are_read(key, value, found, tmp_path):
    plan = experiment_of({"targets": {"a": {"url": "http://x"}}, "scenarios": ["en_chat"],
                          key: value}, tmp_path)  # fmt: skip
    assert getattr(plan, key) == found


@pytest.mark.parametrize(
    ("key", "value"), [("concurrency", [0]), ("concurrency", []), ("concurrency", [10**6]),
                       ("context", ["much"]), ("context", ["9999999k"]), ("context", [True])],
)  # fmt: skip
def test_senseless_levels_are_refused(key, value, tmp_path):
    with pytest.raises(UsageError, match=key):
        experiment_of({"targets": {"a": {"url": "http://x"}}, "scenarios": ["en_chat"],
                       key: value}, tmp_path)  # fmt: skip
