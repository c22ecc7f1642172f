"""Policies and verdicts: the article's decision, outcomes by interval, and what to run."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from tests.support.records import MTP3, PLAIN, record, run_of
from typer.testing import CliRunner

from draftmeter import api
from draftmeter.analysis.intervals import quantile_interval
from draftmeter.cli import app
from draftmeter.decision.policy import policy_of, refused
from draftmeter.errors import UsageError
from draftmeter.experiment.load import resolved
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target
from draftmeter.record.folder import RunFolder
from draftmeter.record.types import RequestError

# The article's medians, tok/s.
SPEEDS = {
    "moe": {"ja_chat": 177.0, "code_agent": 174.0},
    "dense": {"ja_chat": 72.0, "code_agent": 70.7},
    "dense-mtp": {"ja_chat": 80.5, "code_agent": 131.0},
}
INFOS = {"moe": PLAIN, "dense": PLAIN, "dense-mtp": MTP3}


def records(speeds=None, pairs=10, spread=0.01, ttft_us=60_000):
    """Plain chunks at each target's speed, pair by pair a little faster or slower."""
    found = []
    for target, by_scenario in (speeds or SPEEDS).items():
        for scenario, tok_s in by_scenario.items():
            for pair in range(pairs):
                wobble = 1 + spread * math.sin(7 * pair + len(target))
                gap_us = round(1e6 / tok_s / wobble)
                chunks = [1] * 101
                if target == "dense-mtp":  # two tokens a step
                    chunks, gap_us = [1] + [2] * 50, 2 * gap_us
                found.append(record(
                    chunks, gap_us=gap_us, ttft_us=ttft_us + 100 * pair, target=target,
                    scenario=scenario, pair=pair, id=len(found),
                ))  # fmt: skip
    return found


def judged(policy, *, kept=None, **more):
    data = run_of(kept or records(), INFOS, reference="dense", experiment={
        "targets": {n: {} for n in INFOS}, "scenarios": [{"name": "ja_chat"}, {"name": "code_agent"}],
    })  # fmt: skip
    return api.decided(data, api.analyse(data), policy_of({"policy": policy, **more}))


def by_rule(results):
    return {(v.target, v.scenario, v.rule): v for v in results.verdicts}


def test_the_articles_decision_fails_without_the_accepted_cost_and_passes_with_it():
    """Chat at 0.45x of the MoE (field: the article): 0.455 measured."""
    strict = judged({"ja_chat": {"max_slowdown": {"than": "moe", "by": 0.3}},
                     "code_agent": {"min_speedup": {"over": "dense", "by": 1.5}}})  # fmt: skip
    chat = by_rule(strict)["dense-mtp", "ja_chat", "max_slowdown"]
    assert (chat.outcome, chat.limit) == ("fail", pytest.approx(0.7))
    assert chat.measured == pytest.approx(80.5 / 177, rel=0.01)
    assert by_rule(strict)["dense-mtp", "code_agent", "min_speedup"].outcome == "pass"
    assert refused(strict.verdicts)
    assert strict.recommendations[0].target is None
    accepted = judged({"ja_chat": {"max_slowdown": {"than": "moe", "by": 0.56}},
                       "code_agent": {"min_speedup": {"over": "dense", "by": 1.5}}})  # fmt: skip
    assert [v.outcome for v in accepted.verdicts] == ["pass", "pass"]
    assert not refused(accepted.verdicts)
    fleet = accepted.recommendations[-1]
    assert (fleet.scenario, fleet.target) == (None, "dense-mtp")
    assert fleet.accepted_costs[0].startswith("ja_chat: accepts 0.45x (0.4")
    assert fleet.accepted_costs[0].endswith("the speed of moe")


def test_the_targets_a_rule_compares_with_are_not_judged_unless_asked_for():
    policy = {"ja_chat": {"max_slowdown": {"than": "moe", "by": 0.56}}}
    assert {v.target for v in judged(policy).verdicts} == {"dense", "dense-mtp"}
    named = judged(policy, candidates=["dense-mtp"])
    assert {v.target for v in named.verdicts} == {"dense-mtp"}
    assert {v.target for v in judged({"ja_chat": {"min_tok_s": 50}}).verdicts} == set(INFOS)


def test_one_candidate_that_fails_nothing_is_enough():
    found = judged({"ja_chat": {"min_tok_s": 100}}).verdicts
    assert {v.target: v.outcome for v in found} == {
        "moe": "pass", "dense": "fail", "dense-mtp": "fail",
    }  # fmt: skip
    assert not refused(found)
    assert not refused([])


def test_near_the_limit_is_undecided_and_says_how_many_more():
    limit = {"ja_chat": {"min_speedup": {"over": "dense", "by": 1.115}}}
    verdict = by_rule(judged(limit, kept=records(spread=0.05)))[
        "dense-mtp", "ja_chat", "min_speedup"
    ]
    assert verdict.outcome == "undecided"
    assert verdict.low < 1.115 < verdict.high
    # By hand: the interval shrinks as 1 / sqrt n until it just leaves the limit out.
    end = verdict.low if verdict.measured > 1.115 else verdict.high
    half, distance = math.log(end / verdict.measured), math.log(1.115 / verdict.measured)
    assert verdict.more_requests == max(1, math.ceil(10 * (half / distance) ** 2) - 10)
    assert "more requests" in verdict.text


def test_the_first_token_is_judged_by_its_95th_percentile():
    rules = {"ja_chat": {"ttft_ms_p95": 150}, "code_agent": {"ttft_ms_p95": 50}}
    found = by_rule(judged(rules))
    assert found["dense", "ja_chat", "ttft_ms_p95"].outcome == "pass"
    assert found["dense", "code_agent", "ttft_ms_p95"].outcome == "fail"
    assert found["dense", "ja_chat", "ttft_ms_p95"].high < 70


def test_errors_are_counted_or_shared():
    kept = records()
    broken = RequestError(kind="http", message="500")
    kept = [msgspec.structs.replace(r, error=broken) if r.pair == 0 and r.target == "moe" else r
            for r in kept]  # fmt: skip
    found = by_rule(
        judged({"ja_chat": {"max_errors": 0}, "code_agent": {"max_errors": 0.2}}, kept=kept)
    )
    assert found["moe", "ja_chat", "max_errors"].outcome == "fail"
    assert found["moe", "ja_chat", "max_errors"].measured == 1
    assert found["moe", "code_agent", "max_errors"].outcome == "pass"
    assert found["moe", "code_agent", "max_errors"].measured == pytest.approx(0.1)


def test_what_was_not_measured_is_undecided():
    kept = [r for r in records() if r.target != "moe"]
    found = judged({"ja_chat": {"max_slowdown": {"than": "moe", "by": 0.5}}}, kept=kept)
    verdict = by_rule(found)["dense-mtp", "ja_chat", "max_slowdown"]
    assert (verdict.outcome, verdict.measured) == ("undecided", None)
    assert "not measured" in verdict.text


def test_the_fleet_is_chosen_by_the_share_of_the_traffic():
    speeds = {"dense": {"ja_chat": 100.0, "code_agent": 50.0},
              "dense-mtp": {"ja_chat": 60.0, "code_agent": 100.0}}  # fmt: skip
    rules = {"ja_chat": {"min_tok_s": 10}, "code_agent": {"min_tok_s": 10}}
    chat = judged(rules, kept=records(speeds), traffic={"ja_chat": 0.95, "code_agent": 0.05})
    code = judged(rules, kept=records(speeds), traffic={"ja_chat": 0.2, "code_agent": 0.8})
    assert chat.recommendations[-1].target == "dense"
    assert code.recommendations[-1].target == "dense-mtp"
    # 0.95/100 + 0.05/50 seconds per token
    assert "10.5 ms per token" in chat.recommendations[-1].text
    assert chat.recommendations[1].target == "dense-mtp"  # code_agent alone


# --- the verb -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    prompts = [[Message(role="user", content="hi")]]
    experiment = Experiment(
        name="e", reference="dense",
        targets={n: Target(name=n, url="http://localhost:1") for n in INFOS},
        scenarios=[Scenario(name=n, prompts=prompts) for n in ("ja_chat", "code_agent")],
        requests=Requests(count=10),
    )  # fmt: skip
    data = run_of(records(), INFOS, reference="dense")
    run = RunFolder.create(tmp_path / "run", resolved(experiment), data.environment)
    for r in data.records:
        run.add_request(r)
    run.close()
    return tmp_path / "run"


def decide(folder, text, *more):
    file = folder.parent / "policy.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["decide", str(folder), "--policy", str(file), *more])


def test_decide_exits_1_when_the_policy_fails_and_0_when_it_passes(folder):
    strict = "ja_chat: {max_slowdown: {than: moe, by: 30%}}\ncode_agent: {min_speedup: {over: dense, by: 1.5}}\n"
    failed = decide(folder, strict)
    assert failed.exit_code == 1, failed.output
    assert "fail" in failed.output
    assert max(map(len, failed.stdout.splitlines())) <= 80
    passed = decide(folder, strict.replace("30%", "56%"), "--json")
    assert passed.exit_code == 0, passed.output
    results = msgspec.json.decode(passed.stdout)
    assert [v["outcome"] for v in results["verdicts"]] == ["pass", "pass"]
    assert results["schema"] == "draftmeter.results/1"


def test_a_policy_file_may_be_an_experiment_file(folder):
    text = (
        "policy:\n  ja_chat: {min_tok_s: 10}\ntraffic: {ja_chat: 70%}\ncandidates: [moe]\nname: x\n"
    )
    found = decide(folder, text, "--json")
    assert {v["target"] for v in msgspec.json.decode(found.stdout)["verdicts"]} == {"moe"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ja_chta: {min_tok_s: 5}\n", "policy.yaml:1: unknown key 'ja_chta'"),
        ("policy: {ja_chat: {min_tok: 5}}\n", "did you mean 'min_tok_s'"),
        ("policy: {ja_chat: {min_tok_s: 5}}\ntraffic: {ja_chat: 3}\n", "policy.yaml:2"),
        ("policy: {ja_chat: {min_tok_s: 5}}\ncandidates: [dnse]\n", "did you mean 'dense'"),
        ("[]\n", "a policy is a mapping"),
    ],
)
def test_a_wrong_policy_names_line_and_nearest_key(folder, text, said):
    (folder.parent / "policy.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        api.decide(folder, folder.parent / "policy.yaml")
    assert said in str(caught.value)


def test_a_run_without_a_policy_says_so(folder):
    with pytest.raises(UsageError, match="name one with --policy"):
        api.decide(folder)


# --- coverage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, 30, 100], ids=["few", "some", "order statistics"])
def test_intervals_of_a_95th_percentile_cover_it(n):
    rng = np.random.default_rng(3)
    truth = math.exp(1.0 + 0.3 * 1.6448536)
    hits = 0
    for _ in range(2000):
        found = quantile_interval(list(np.exp(rng.normal(1.0, 0.3, n))), 0.95)
        hits += found.low <= truth <= found.high
    assert 0.93 <= hits / 2000 <= 0.985
