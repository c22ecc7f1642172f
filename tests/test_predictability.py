"""How sure a model is of its next token: values by hand, known servers, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftmeter import api
from draftmeter.analysis.intervals import correlation_interval, difference_interval
from draftmeter.analysis.predictability import certainty
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target
from draftmeter.measure.events import Note
from draftmeter.record.folder import load
from draftmeter.record.results import Estimate
from draftmeter.report.predictability import predictability_lines

PROMPTS = [[Message(role="user", content=f"Question {i}: say something.")] for i in range(8)]
HALF_QUARTER = [math.log(0.5), math.log(0.25)]


def test_entropy_bounds_by_hand():
    # head ln 2 / 2 + ln 4 / 4; tail 1/4: one token more, or two of 1/8 each
    seen = certainty(HALF_QUARTER, 1.0, vocabulary=4)
    assert seen.p_max == pytest.approx(0.5)
    assert seen.entropy_low == pytest.approx(1.5 * math.log(2))
    assert seen.entropy_high == pytest.approx(1.75 * math.log(2))
    assert (seen.ceiling_low, seen.ceiling_high) == (pytest.approx(0.5), pytest.approx(0.5))


@pytest.mark.parametrize(
    ("temperature", "low", "high"),
    [
        # 1/4 over 1/4 + 1/16 + tail, which is 2/64 if uniform and 1/8 if packed
        (0.5, 0.25 / 0.4375, 0.25 / 0.34375),
        (2.0, 0.369398, 0.453082),
        (0.0, 1.0, 1.0),
        (1e-4, 1.0, 1.0),
    ],
)
def test_ceiling_at_a_temperature_by_hand(temperature, low, high):
    seen = certainty(HALF_QUARTER, temperature, vocabulary=4)
    assert (seen.ceiling_low, seen.ceiling_high) == (
        pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6),
    )  # fmt: skip


def test_nothing_is_made_of_what_is_no_probability():
    assert certainty([], 1.0) is None
    assert certainty([5.0, float("nan")], 1.0) is None
    assert certainty([-9999.0], 1.0) is None
    assert certainty([0.0, -9999.0], 1.0).entropy_low == 0.0
    assert certainty(HALF_QUARTER, None).ceiling_low is None


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=25, max_size=60),
    st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    st.integers(0, 100),
)
def test_bounds_hold_for_any_distribution(weights, temperature, drawn):
    p = sorted((w / sum(weights) for w in weights), reverse=True)
    told = p[:20]
    # vLLM puts the drawn token first and cuts the list at 20
    place = drawn % len(p)
    told = told if place < 20 else [*p[:19], p[place]]
    seen = certainty([math.log(v) for v in told], temperature, vocabulary=len(p))
    entropy = -sum(v * math.log(v) for v in p)
    tempered = [v ** (1 / temperature) for v in p]
    assert seen.entropy_low - 1e-9 <= entropy <= seen.entropy_high + 1e-9
    assert seen.ceiling_low - 1e-9 <= tempered[0] / sum(tempered) <= seen.ceiling_high + 1e-9
    assert seen.p_max == pytest.approx(p[0])


def test_correlation_by_hand():
    # r = 4 / 5; atanh 0.8 = 1.098612, one degree of freedom: +- 1.959964
    found = correlation_interval([1, 2, 3, 4], [1, 3, 2, 4])
    assert found.value == pytest.approx(0.8)
    assert found.low == pytest.approx(math.tanh(1.098612 - 1.959964), abs=1e-6)
    assert found.high == pytest.approx(math.tanh(1.098612 + 1.959964), abs=1e-6)
    assert correlation_interval([1, 2, 3], [1, 2, 3]) is None
    assert correlation_interval([1, 1, 1, 1], [1, 2, 3, 4]) is None


def test_difference_by_hand():
    # both +- 0.1 from 5 requests: t_4 = 2.776, SE 0.036 each, joined 0.0509 with 8 df: t = 2.306
    found = difference_interval(Estimate(0.5, 0.4, 0.6), 5, Estimate(0.7, 0.6, 0.8), 5)
    assert found.value == pytest.approx(0.2)
    assert found.high - found.value == pytest.approx(2.306 * math.sqrt(2) * 0.1 / 2.776, rel=1e-3)
    unknown = difference_interval(Estimate(0.5, None, None), 1, Estimate(0.7, 0.6, 0.8), 5)
    assert (unknown.low, unknown.high) == (None, None)


def experiment(targets, **more):
    return Experiment(
        name="p",
        reference="plain",
        targets={name: Target(name=name, url=server.url) for name, server in targets.items()},
        scenarios=[Scenario(name="talk", prompts=PROMPTS, max_tokens=96, temperature=1.0)],
        requests=Requests(count=8),
        seed=5,
        predictability=True,
        **more,
    )


FAST = {"step_ms": 2.0, "prefill_ms": 4, "completion_tokens": 96}


def drafting(serve, law):
    return serve(**FAST, draft_tokens=len(law), position_acceptance=law, seed=3)


def test_the_drafters_share_is_found(tmp_path, serve):
    plain = serve(**FAST, probabilities=[0.8, 0.1, 0.05, 0.05])
    path, results = api.run(
        experiment({"plain": plain, "mtp": drafting(serve, [0.4, 0.2])}), tmp_path / "r"
    )
    (row,) = results.predictability
    assert (row.target, row.drafter, row.requests, row.tokens) == ("plain", "mtp", 8, 8 * 96)
    assert row.p_max.value == pytest.approx(0.8, abs=1e-4)
    assert row.ceiling.value == pytest.approx(0.8, abs=1e-4)
    by_hand = -(0.8 * math.log(0.8) + 0.1 * math.log(0.1) + 0.1 * math.log(0.05))
    assert row.entropy_nats.value == pytest.approx(by_hand, abs=1e-3)
    assert row.first_position.low < 0.4 < row.first_position.high
    assert row.drafter_loss.low < 0.4 < row.drafter_loss.high
    assert "drafter's" in row.text
    asked = [r for r in load(path).records if r.phase == "logprobs"]
    assert {r.target for r in asked} == {"plain"}
    assert sorted(r.prompt for r in asked) == list(range(8))
    # asked apart: the timed requests have none, and nothing else is made of these
    assert all(r.logprobs is None for r in load(path).records if r.phase != "logprobs")
    assert {c.requests for c in results.cells} == {8}
    assert plain.truth()["requests"][-1]["body"]["top_logprobs"] == 20
    assert "drafter's" in predictability_lines(results)[0]


def test_a_perfect_drafter_leaves_the_text(tmp_path, serve):
    plain = serve(**FAST, probabilities=[0.6, 0.4])
    servers = {"plain": plain, "mtp": drafting(serve, [0.6])}
    _, results = api.run(experiment(servers), tmp_path / "r")
    (row,) = results.predictability
    assert row.drafter_loss.low < 0 < row.drafter_loss.high
    assert "text's uncertainty" in row.text


def test_fewer_are_asked_for_where_twenty_are_too_many(tmp_path, serve):
    plain = serve(**FAST, probabilities=[0.7, 0.3], most_logprobs=5)
    path, results = api.run(experiment({"plain": plain}), tmp_path / "r")
    assert results.predictability[0].requests == 8
    refused = [r for r in load(path).records if r.error is not None]
    assert len(refused) == 1
    assert refused[0].phase == "logprobs"


def test_a_server_that_refuses_costs_a_note_and_no_figure(tmp_path, serve):
    notes = []
    plain = serve(**FAST, refuse_fields=["logprobs"])
    path, results = api.run(
        experiment({"plain": plain}), tmp_path / "r",
        on_event=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
    )  # fmt: skip
    assert results.predictability == []
    assert results.cells[0].requests == 8
    assert any("no log-probabilities" in n for n in notes)
    before = len(plain.truth()["requests"])
    api.resume(path)
    asked = [r["body"] for r in plain.truth()["requests"][before:]]
    assert not any("logprobs" in body for body in asked)


def test_resume_asks_only_what_is_missing(tmp_path, serve):
    plain = serve(**FAST, probabilities=[0.7, 0.3])
    path, _ = api.run(experiment({"plain": plain}), tmp_path / "r")
    lines = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (path / "requests.jsonl").write_bytes(b"".join(lines[:-3]))
    before = len(plain.truth()["requests"])
    _, results = api.resume(path)
    asked = [r["body"] for r in plain.truth()["requests"][before:] if "logprobs" in r["body"]]
    assert len(asked) == 3
    assert results.predictability[0].requests == 8
