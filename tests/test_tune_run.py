"""Draft lengths predicted from a run against servers that know the truth, then measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftmeter import api
from draftmeter.cli import app
from draftmeter.engines import llamacpp, vllm
from draftmeter.errors import UsageError
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target

SERVER = Path(__file__).parent / "support" / "known_server.py"
PROMPTS = [[Message(role="user", content=f"Question {i}: say something.")] for i in range(8)]
LAW = [0.75, 0.55, 0.4, 0.3]
STEP = {"step_ms": 4.0, "prefill_ms": 8, "completion_tokens": 160}
# C(k) = 1 + 0.15 + 0.1 k
COST = {"fixed_ms": 0.6, "per_draft_ms": 0.4}


def experiment(targets, **more):
    return Experiment(
        name="k",
        reference="plain",
        targets={name: Target(name=name, **how) for name, how in targets.items()},
        scenarios=[Scenario(name="talk", prompts=PROMPTS, max_tokens=160)],
        requests=Requests(count=8),
        seed=5,
        **more,
    )


def spec(serve, k, seed=3):
    return serve(**STEP, **COST, draft_tokens=k, position_acceptance=LAW[:k], seed=seed)


def truth(k):
    """Speedup by the set law, up to the mean over short requests."""
    return (1 + sum(LAW[:k])) / (1.15 + 0.1 * k)


def test_one_k_predicts_the_others_and_a_second_narrows_them(tmp_path, serve):
    servers = {"plain": serve(**STEP)} | {f"k{k}": spec(serve, k, seed=10 + k) for k in (1, 2, 4)}
    everything = experiment({name: {"url": s.url} for name, s in servers.items()})
    path, whole = api.run(everything, tmp_path / "r")
    measured = {c.target: c.speedup for c in whole.cells if c.speedup is not None}

    def predicted(*targets):
        data = api.load(path)
        kept = [r for r in data.records if r.target in ("plain", *targets)]
        results = api.analyse(type(data)(
            environment=data.environment, experiment=data.experiment, reference="plain",
            records=kept, counters=data.counters,
        ))  # fmt: skip
        tuning = next(t for t in results.tuning if t.target == targets[-1])
        return {p.draft_tokens: p for p in tuning.predicted}, tuning

    from_one, tuning = predicted("k4")
    for k in (1, 2):
        guess, found = from_one[k], measured[f"k{k}"]
        assert guess.basis == "predicted"
        assert guess.low <= found.ratio <= guess.high
        assert guess.speedup == pytest.approx(truth(k), rel=0.05)
    assert tuning.next_draft_tokens in (1, 2, 3, 5)
    from_two, law = predicted("k1", "k4")
    assert from_two[2].low <= measured["k2"].ratio <= from_two[2].high
    assert from_two[2].speedup == pytest.approx(measured["k2"].ratio, rel=0.05)
    assert from_two[2].high - from_two[2].low < from_one[2].high - from_one[2].low
    assert law.fixed_cost.low <= 0.15 <= law.fixed_cost.high
    assert law.pass_cost.low <= 0.1 <= law.pass_cost.high


def test_tune_verify_starts_the_target_at_another_k_and_sets_both_side_by_side(tmp_path):
    def command(extra):
        config = json.dumps(STEP | extra).replace('"', '\\"')
        return f'{sys.executable} {SERVER} --port {{port}} --config "{config}"'

    speculative = command(COST | {"position_acceptance": LAW})
    speculative += """ --speculative-config '{"method": "mtp", "num_speculative_tokens": 4}'"""
    plan = experiment(
        {"plain": {"launch": command({})}, "mtp": {"launch": speculative}}, together=True
    )
    path, results = api.run(plan, tmp_path / "r")
    assert results.targets["mtp"].draft_tokens == 4
    tuning = results.tuning[0]
    assert json.loads(tuning.flags["vllm"].split("'")[1]) == {
        "method": "mtp", "num_speculative_tokens": tuning.best_draft_tokens,
    }  # fmt: skip
    shown = CliRunner().invoke(
        app, ["tune", str(path), "--verify", "-k", "2", "--out", str(tmp_path / "v"), "--json"]
    )
    assert shown.exit_code == 0, shown.output
    (found,) = json.loads(shown.stdout)["verified"]
    assert (found["target"], found["scenario"], found["draft_tokens"]) == ("mtp", "talk", 2)
    assert found["inside"] is True
    assert found["measured"]["value"] == pytest.approx(truth(2), rel=0.08)
    assert api.load(tmp_path / "v").environment.targets["mtp-k2"].draft_tokens == 2
    text = CliRunner().invoke(app, ["tune", str(path)])
    assert "Best K" in text.stdout
    assert max(len(line) for line in text.stdout.splitlines() if "speculative" not in line) <= 80


def test_a_run_that_says_nothing_of_draft_lengths_is_one_clear_line(tmp_path, serve):
    path, _ = api.run(experiment({"plain": {"url": serve(**STEP).url}}), tmp_path / "r")
    with pytest.raises(UsageError, match="no draft length can be judged"):
        api.tune(path)


def test_a_target_that_was_not_launched_cannot_be_started_at_another_k(tmp_path, serve):
    targets = {"plain": {"url": serve(**STEP).url}, "mtp": {"url": spec(serve, 3).url}}
    path, results = api.run(experiment(targets), tmp_path / "r")
    with pytest.raises(UsageError, match="launch command that sets K"):
        api.verification(path, results.tuning)


VLLM_WORDS = ["vllm", "serve", "m", "--speculative-config",
              '{"method":"eagle3","model":"d","num_speculative_tokens":3}']  # fmt: skip


def test_vllm_flags_keep_what_the_command_had():
    changed = vllm.with_draft_tokens(VLLM_WORDS, 5)
    assert json.loads(changed[4]) == {"method": "eagle3", "model": "d", "num_speculative_tokens": 5}
    assert vllm.flags(5, None, VLLM_WORDS).startswith("--speculative-config '{")
    assert vllm.flags(2, "mtp", ()) == (
        """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'"""
    )
    assert vllm.flags(0, "mtp", ()) == "leave --speculative-config out"
    assert vllm.with_draft_tokens(["vllm", "serve", "m"], 2) is None
    joined = vllm.with_draft_tokens(['-sc={"num_speculative_tokens":1}'], 2)
    assert joined == ['-sc={"num_speculative_tokens":2}']
    assert vllm.with_draft_tokens(["-sc", "{broken"], 2) is None


def test_llamacpp_flags_are_the_ones_of_the_method():
    words = ["llama-server", "--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]
    assert llamacpp.read_launch(words).draft_tokens == 3
    assert llamacpp.with_draft_tokens(words, 2)[-1] == "2"
    assert llamacpp.flags(2, "draft_mtp", ()) == "--spec-draft-n-max 2"
    assert llamacpp.flags(4, "ngram_simple", ()) == "--spec-ngram-simple-size-m 4"
    assert llamacpp.flags(4, None, ["--ngram-draft", "8"]) == "--ngram-draft 4"
    assert llamacpp.with_draft_tokens(["llama-server"], 2) is None
