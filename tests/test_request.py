"""One request against a server that knows what it sent and when (same clock on Linux)."""

import statistics

import pytest

from draftmeter.analysis.timing import timing_of
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target, Timeouts
from draftmeter.measure.ask import Task, ask_once, send_on_ladder, settle_rung
from draftmeter.measure.http import open_session
from draftmeter.measure.probe import connect, scrape

HELLO = [Message(role="user", content="hello")]
QUICK = Timeouts(connect_s=2, first_token_s=1.0, stall_s=1.0, total_s=20)


async def ask(server, *, max_tokens=64, count=1, timeouts=QUICK, **target):
    scenario = Scenario(name="s", prompts=[HELLO], max_tokens=max_tokens)
    goal = Target(name="t", url=server.url, **target)
    plan = Experiment(
        name="x", reference="t", targets={"t": goal}, scenarios=[scenario],
        requests=Requests(count=1), timeouts=timeouts, seed=1,
    )  # fmt: skip
    async with open_session() as http:
        live = await connect(http, goal, server.url)
        records = []
        for number in range(count):
            record = await ask_once(
                http, live, scenario, plan, Task(pair=number, prompt=0),
                    number=number, session_s=0.0,
            )  # fmt: skip
            records.append(record)
    return records if count > 1 else records[0]


def truths(server):
    return server.truth()["requests"]


async def test_chunks_tokens_and_times_are_those_the_server_sent(serve):
    # K=3, several tokens per chunk, 4 in the first, a role-only chunk 40 ms before the first text
    server = serve(
        draft_tokens=3, position_acceptance=[0.8, 0.6, 0.4], first_chunk_tokens=4,
        role_chunk_ms=40, prefill_ms=60, step_ms=10, completion_tokens=200,
    )  # fmt: skip
    record = await ask(server, max_tokens=200)
    (truth,) = truths(server)
    assert record.token_source == "token_ids"
    assert record.tokens == truth["tokens"]
    assert record.completion_tokens == 200
    sent = [(t - truth["received_ns"]) / 1e6 for t in truth["sent_ns"]]
    timing = timing_of(record)
    assert timing.ttft_ms == pytest.approx(sent[0], abs=1.0)
    rate = (200 - 4) / ((sent[-1] - sent[0]) / 1e3)
    assert timing.decode_tok_s == pytest.approx(rate, rel=0.005)


async def test_ttft_and_pace_over_several_requests(serve):
    server = serve(prefill_ms=30, step_ms=5, completion_tokens=100)
    records = await ask(server, count=6, max_tokens=100)
    errors_ms, ratios = [], []
    for record, truth in zip(records, truths(server), strict=True):
        sent = truth["sent_ns"]
        timing = timing_of(record)
        errors_ms.append(timing.ttft_ms - (sent[0] - truth["received_ns"]) / 1e6)
        ratios.append(timing.decode_tok_s / (99 / ((sent[-1] - sent[0]) / 1e9)))
    assert abs(statistics.median(errors_ms)) < 1.0
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.005)


async def test_other_traffic_on_the_same_connection_leaves_no_times_behind(serve):
    server = serve(prefill_ms=30, completion_tokens=40)
    goal = Target(name="t", url=server.url)
    async with open_session() as http:
        live = await connect(http, goal, server.url)
        for _ in range(3):
            await scrape(http, live)
            answer = await send_on_ladder(
                http, live, HELLO, Scenario(name="s", prompts=[HELLO], max_tokens=40), QUICK
            )
            assert 28_000 < answer.at_us[0] < answer.at_us[-1] <= answer.done_us


async def test_a_late_usage_line_is_not_decode_time(serve):
    server = serve(usage_delay_ms=300, step_ms=4, completion_tokens=50)
    record = await ask(server)
    assert record.done_us - record.at_us[-1] > 250_000
    assert timing_of(record).decode_tok_s == pytest.approx(250, rel=0.05)


async def test_reasoning_is_decode_and_visible_ttft_comes_after_it(serve):
    server = serve(reasoning_tokens=10, step_ms=10, prefill_ms=20, completion_tokens=40)
    record = await ask(server)
    timing = timing_of(record)
    assert record.kinds == "r" * 10 + "c" * 30
    assert timing.visible_ttft_ms - timing.ttft_ms == pytest.approx(100, abs=5)


async def test_a_token_without_text_has_its_time(serve):
    server = serve(style="japanese", completion_tokens=64)
    record = await ask(server)
    assert sum(record.tokens) == 64
    assert "e" in record.kinds
    assert len(record.at_us) == len(record.tokens) == len(record.pieces) == len(record.kinds)


@pytest.mark.parametrize("more", [{"crlf": True}, {"keepalive_ms": 3}, {"style": "hostile"}])
async def test_other_forms_of_the_same_stream(serve, more):
    server = serve(completion_tokens=64, **more)
    record = await ask(server)
    assert record.error is None
    assert (record.completion_tokens, sum(record.tokens)) == (64, 64)


async def test_without_token_ids_the_running_usage_counts(serve):
    server = serve(
        token_ids=False, draft_tokens=2, position_acceptance=[0.7, 0.5], completion_tokens=90
    )
    goal = Target(name="t", url=server.url)
    async with open_session() as http:
        live = await connect(http, goal, server.url)
        await settle_rung(http, live, QUICK)
        answer = await send_on_ladder(
            http, live, HELLO, Scenario(name="s", prompts=[HELLO], max_tokens=90), QUICK
        )
    assert answer.token_source == "running_usage"
    assert answer.tokens == truths(server)[-1]["tokens"]


async def test_a_field_the_server_refuses_is_left_out(serve):
    server = serve(refuse_fields=["return_token_ids"], continuous_usage=True)
    record = await ask(server)
    assert record.error is None
    assert record.token_source == "running_usage"


async def test_only_the_final_usage(serve):
    server = serve(token_ids=False, continuous_usage=False)
    record = await ask(server)
    assert (record.tokens, record.token_source, record.completion_tokens) == (
        None,
        "final_usage",
        64,
    )


async def test_no_counts_at_all(serve):
    server = serve(token_ids=False, continuous_usage=False, include_usage=False)
    record = await ask(server)
    assert (record.token_source, record.completion_tokens) == (None, None)
    assert timing_of(record).decode_tok_s is None


@pytest.mark.parametrize(
    ("kind", "expected", "words"),
    [
        ("error_in_stream", "stream", "EngineCore"),
        ("close_midstream", "closed", ""),
        ("reset", "closed", ""),
        ("http_500", "http", ""),
        ("http_429", "http", ""),
        ("html_error", "http", ""),
        ("stall", "stall", "nothing came for 1 s"),
        ("no_first_token", "first_token_timeout", "no token within 1 s"),
        ("not_streaming", "not_streaming", "plain JSON"),
        ("garbage_json", "protocol", ""),
        ("huge_line", "too_large", ""),
    ],
)
async def test_every_fault_is_an_error_with_the_servers_words(serve, kind, expected, words):
    server = serve(fault={"request": 0, "kind": kind, "after_chunks": 5})
    record = await ask(server)
    assert record.error is not None
    assert record.error.kind == expected, record.error
    assert words in record.error.message
    if kind == "http_429":
        assert record.error.retry_after_s is not None
    if kind in ("close_midstream", "stall", "error_in_stream", "reset"):
        assert len(record.at_us) >= 4  # what came before is kept


async def test_a_buffering_proxy_is_seen(serve):
    server = serve(fault={"request": "all", "kind": "buffered"}, completion_tokens=64)
    record = await ask(server)
    assert record.error is None
    assert timing_of(record).buffered
