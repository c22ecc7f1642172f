"""A real llama.cpp, through the xllamacpp wheel, measured. Needs no GPU; 2 cores are enough."""

import json
import shlex
import statistics
import sys

import pytest
from msgspec.structs import replace

from draftmeter import api
from draftmeter.analysis.steps import steps_of
from draftmeter.analysis.timing import timing_of
from draftmeter.experiment.demo import demo_scenarios
from draftmeter.experiment.model import Experiment, Requests, Target
from draftmeter.measure.model import demo_model
from draftmeter.record.folder import load

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def model():
    return demo_model()


@pytest.fixture(scope="module")
def measured(model, tmp_path_factory):
    command = (
        f"{shlex.quote(sys.executable)} -m draftmeter.engines.llamacpp_server "
        f"--model {shlex.quote(str(model))} --port {{port}}"
    )
    targets = {"plain": command, "ngram": f"{command} --ngram --ngram-draft 8"}
    chat, edit = demo_scenarios()
    experiment = Experiment(
        name="real",
        reference="plain",
        targets={name: Target(name=name, launch=launch) for name, launch in targets.items()},
        scenarios=[replace(chat, max_tokens=48), replace(edit, max_tokens=64)],
        requests=Requests(count=4),
        together=True,
        seed=5,
    )
    return api.run(experiment, tmp_path_factory.mktemp("real") / "run")


def test_two_servers_interleaved_prompt_by_prompt(measured):
    path, _ = measured
    records = [r for r in load(path).records if r.phase == "measure"]
    assert len(records) == 16
    assert all(r.error is None for r in records)
    for scenario in ("en_chat", "text_edit"):
        order = [r.target for r in records if r.scenario == scenario]
        assert sorted(order[:2]) == sorted(order[2:4]) == ["ngram", "plain"]
        assert order[:4] == order[3::-1]


def test_the_engine_is_recognised_with_its_method(measured):
    _, results = measured
    assert {t.engine for t in results.targets.values()} == {"llamacpp"}
    assert results.targets["ngram"].method == "ngram-simple"
    assert results.targets["plain"].method is None


def test_counters_and_responses_tell_the_same_acceptance(measured):
    path, results = measured
    records = load(path).records
    cells = {(c.target, c.scenario): c for c in results.cells}
    edit = cells["ngram", "text_edit"].drafting
    assert edit.witness == "counters"
    assert edit.witnesses_agree is True
    own = [r.drafting for r in records if r.target == "ngram" and r.scenario == "text_edit"
           and r.phase == "measure" and r.drafting]  # fmt: skip
    assert edit.accepted == sum(d.accepted for d in own)
    assert edit.drafted == sum(d.drafted for d in own)
    assert 0 < edit.rate <= 1
    assert cells["plain", "text_edit"].drafting is None


def test_every_token_is_counted_and_timed(measured):
    path, _ = measured
    for record in load(path).records:
        assert record.token_source == "running_usage"
        assert sum(record.tokens) == record.completion_tokens


def test_decode_rate_agrees_with_the_engines_own_clock(measured):
    # llama.cpp times predicted_n tokens from the end of the prompt on: the same work, seen
    # from inside; ours begins at the first token that has text.
    path, _ = measured
    ratios = []
    for record in load(path).records:
        timing = timing_of(record)
        if timing.decode_tok_s is None or not timing.long_enough:
            continue
        inside = record.completion_tokens / (record.server_decode_ms / 1e3)
        ratios.append(timing.decode_tok_s / inside)
    assert len(ratios) >= 8
    assert statistics.median(ratios) == pytest.approx(1.0, abs=0.05)


def test_speedup_has_an_interval(measured):
    _, results = measured
    cell = next(c for c in results.cells if (c.target, c.scenario) == ("ngram", "text_edit"))
    assert cell.speedup.low < cell.speedup.ratio < cell.speedup.high


def test_the_engines_own_clock_confirms_the_time_of_a_step(measured):
    _, results = measured
    for cell in results.cells:
        assert cell.server_step_ms == pytest.approx(cell.step_ms, rel=0.1)


@pytest.fixture(scope="module")
def swept(model, tmp_path_factory):
    """The model drafts for itself, with one and with three tokens, for one stream and for two."""
    command = (
        f"{shlex.quote(sys.executable)} -m draftmeter.engines.llamacpp_server "
        f"--model {shlex.quote(str(model))} --port {{port}} --parallel 2 --context 2048"
    )
    drafts = f"{command} --draft-model {shlex.quote(str(model))} --draft-length"
    targets = {"plain": command, "d1": f"{drafts} 1", "d3": f"{drafts} 3"}
    experiment = Experiment(
        name="sweep",
        reference="plain",
        targets={name: Target(name=name, launch=launch) for name, launch in targets.items()},
        scenarios=[replace(demo_scenarios()[1], max_tokens=40)],
        requests=Requests(count=3),
        concurrency=[1, 2],
        predictability=True,
        together=True,
        rounds=1,
        seed=5,
    )
    return api.run(experiment, tmp_path_factory.mktemp("sweep") / "run")


def test_a_sweep_over_draft_length_gives_the_law_of_the_step_cost(swept):
    _, results = swept
    assert {n: t.draft_tokens for n, t in results.targets.items()} == {
        "plain": None, "d1": 1, "d3": 3,
    }  # fmt: skip
    tuning = next(t for t in results.tuning if t.target == "d3" and t.concurrency == 1)
    by_k = {p.draft_tokens: p for p in tuning.predicted}
    assert [by_k[k].basis for k in (1, 2, 3, 4)] == [
        "measured", "predicted", "measured", "extrapolated",
    ]  # fmt: skip
    # A draft pass of the same model costs about one plain step more, and nothing is gained.
    assert tuning.pass_cost.value > 0.5
    assert by_k[1].step_cost < by_k[2].step_cost < by_k[3].step_cost
    assert tuning.best_draft_tokens == 0
    assert by_k[1].tokens_per_step > 1.3
    cell = next(c for c in results.cells if c.target == "d3" and c.concurrency == 1)
    assert len(cell.drafting.position_acceptance) == 3


def test_a_sweep_over_concurrency_gives_totals_and_the_side_of_the_crossover(swept):
    path, results = swept
    two = {c.target: c for c in results.cells if c.concurrency == 2}
    assert set(two) == {"plain", "d1", "d3"}
    assert all(c.requests == 4 for c in two.values())
    assert all(c.errors == {} for c in two.values())
    # Acceptance under load comes from the responses: counters cannot be told apart.
    assert two["d1"].drafting.witness == "response"
    assert 0 < two["d1"].drafting.rate <= 1
    assert {c.target for c in results.crossovers} == {"d1", "d3"}
    assert all("does not pay" in c.text for c in results.crossovers)
    records = [r for r in load(path).records if r.concurrency == 2 and r.target == "plain"]
    assert any(r.phase == "warmup" for r in records)


def test_log_probabilities_say_how_sure_the_model_is(swept):
    path, results = swept
    rows = {p.drafter: p for p in results.predictability}
    assert set(rows) == {"d1", "d3"}
    row = rows["d1"]
    assert row.target == "plain"
    assert row.requests == 3
    assert 0.3 < row.p_max.value < 1
    assert 0 < row.entropy_nats.low <= row.entropy_nats.value <= row.entropy_nats.high < 5
    asked = [r for r in load(path).records if r.phase == "logprobs"]
    assert {r.target for r in asked} == {"plain"}
    assert all(len(tops) == 20 for r in asked for tops in r.logprobs)
    # the last token ends the answer and is not always told
    assert all(len(r.logprobs) >= r.completion_tokens - 1 for r in asked)


def test_demo_prints_both_targets_and_both_scenarios(cli, model, tmp_path):
    done = cli("demo", "-n", "3", "--json", "--out", "demo", timeout=400,
               env={"DRAFTMETER_DEMO_MODEL": str(model)}, check=0)  # fmt: skip
    results = json.loads(done.stdout)
    cells = {(c["target"], c["scenario"]): c for c in results["cells"]}
    assert set(cells) == {(t, s) for t in ("plain", "ngram") for s in ("en_chat", "text_edit")}
    for (target, scenario), cell in cells.items():
        assert cell["ttft_ms"]["median"] > 0
        assert cell["decode_tok_s"]["median"] > 0
        if target == "ngram" and scenario == "text_edit":
            assert 0 <= cell["drafting"]["rate"] <= 1
    text = cli("report", "demo", check=0).stdout
    assert "text_edit" in text
    assert "x (" in text


def test_every_token_is_free_or_paid_for(measured):
    path, _ = measured
    data = load(path)
    free = 0
    for r in data.records:
        if r.phase == "measure":
            found = steps_of(r, data.environment.targets[r.target])
            assert found.free + found.paid == r.completion_tokens
            accepted = r.drafting.accepted if r.drafting else 0
            assert found.free + found.cut == accepted
            assert sum(found.tokens) == r.completion_tokens
            free += found.free
    assert free > 0
