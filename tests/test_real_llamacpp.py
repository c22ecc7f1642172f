"""A real llama.cpp, through the xllamacpp wheel, measured. Needs no GPU; 2 cores are enough."""

import json
import shlex
import statistics
import sys

import pytest
from msgspec.structs import replace

from draftmeter import api
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
