"""Whole runs against servers that know the truth."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from draftmeter import api
from draftmeter.errors import ServerError
from draftmeter.experiment.load import from_resolved
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target, Timeouts
from draftmeter.record.folder import load

SERVER = Path(__file__).parent / "support" / "known_server.py"
PROMPTS = [[Message(role="user", content=f"Question {i}: say something.")] for i in range(5)]


def plan(targets, *, count=4, tokens=64, scenarios=("talk",), **more):
    return Experiment(
        name="known",
        reference=next(iter(targets)),
        targets={name: Target(name=name, **how) for name, how in targets.items()},
        scenarios=[Scenario(name=s, prompts=PROMPTS, max_tokens=tokens) for s in scenarios],
        requests=more.pop("requests", Requests(count=count)),
        timeouts=Timeouts(connect_s=2, first_token_s=2, stall_s=2, total_s=20),
        seed=more.pop("seed", 11),
        **more,
    )


def launch(**config):
    text = json.dumps(config).replace('"', '\\"')
    return f'{sys.executable} {SERVER} --port {{port}} --config "{text}"'


@pytest.fixture
def pair(serve):
    plain = serve(step_ms=4, prefill_ms=8, completion_tokens=80)
    # C = 1.5: a step of 6 ms against 4 ms
    spec = serve(
        step_ms=4, per_draft_ms=0.5, fixed_ms=0.5, draft_tokens=3,
        position_acceptance=[0.8, 0.6, 0.4], prefill_ms=8, completion_tokens=80, seed=3,
    )  # fmt: skip
    return plain, spec


def measured_truth(server, data, target):
    """The server's own accounts of the counted requests of a target."""
    # warm-ups and the handshake came first; the counted requests are the last ones
    counted = [r for r in data.records if r.target == target and r.phase == "measure"]
    return server.truth()["requests"][-len(counted) :]


def test_acceptance_exact_speedup_and_step_cost_right(tmp_path, pair):
    plain, spec = pair
    path, results = api.run(
        plan({"plain": {"url": plain.url}, "mtp": {"url": spec.url}}, count=6, tokens=80),
        tmp_path / "r",
    )
    data = load(path)
    truth = measured_truth(spec, data, "mtp")
    cell = next(c for c in results.cells if c.target == "mtp")
    accepted = sum(sum(n for n in r["accepted"] if n is not None) for r in truth)
    drafts = sum(sum(1 for n in r["accepted"] if n is not None) for r in truth)
    assert (cell.drafting.drafts, cell.drafting.drafted, cell.drafting.accepted) == (
        drafts, 3 * drafts, accepted,
    )  # fmt: skip
    assert cell.drafting.witness == "counters"
    assert cell.drafting.witnesses_agree is True
    assert cell.drafting.rate == accepted / (3 * drafts)
    at = [sum(n > i for r in truth for n in r["accepted"] if n is not None) for i in range(3)]
    assert cell.drafting.position_acceptance == [a / drafts for a in at]
    assert cell.speedup.pairs == 6
    assert cell.speedup.low < cell.speedup.ratio < cell.speedup.high
    # by schedule: 79 tokens over (steps x 6 ms) against 79 over 79 x 4 ms
    exact = math.exp(
        sum(math.log(79 * 4 / (6 * (len(r["tokens"]) - 1))) for r in truth) / len(truth)
    )
    assert cell.speedup.ratio == pytest.approx(exact, rel=0.01)
    assert cell.step_cost.value == pytest.approx(1.5, rel=0.03)
    assert results.reference == "plain"
    assert (
        msgspec.json.decode((path / "results.json").read_bytes())["schema"]
        == "draftmeter.results/1"
    )


def test_targets_are_interleaved_and_get_the_same_new_prompts(tmp_path, pair):
    plain, spec = pair
    path, _ = api.run(
        plan({"a": {"url": plain.url}, "b": {"url": spec.url}}, count=4), tmp_path / "r"
    )
    records = [r for r in load(path).records if r.phase == "measure"]
    order = "".join(r.target for r in records)
    assert order in {"abba" * 2, "baab" * 2, "abbabaab", "baababba"}
    for number in range(4):
        one, two = (r for r in records if r.pair == number)
        assert (one.prompt, one.nonce) == (two.prompt, two.nonce)
    assert len({r.nonce for r in records}) == 4
    assert {r.phase for r in load(path).records} == {"warmup", "measure"}


def test_two_targets_on_one_server_never_send_the_same_prompt_twice(tmp_path, serve):
    server = serve(step_ms=2, completion_tokens=40)
    twice = {"a": {"url": server.url}, "b": {"url": server.url, "extra_body": {"top_p": 0.9}}}
    path, _ = api.run(plan(twice, count=3, aa=True), tmp_path / "r")
    marks = [(r.scenario, r.nonce) for r in load(path).records if r.phase != "warmup"]
    assert len(set(marks)) == len(marks) == 12


def test_stein_adds_pairs_when_the_pilot_is_too_rough(tmp_path, pair):
    plain, spec = pair
    wish = Requests(pilot=4, precision=0.05)
    _, results = api.run(
        plan({"a": {"url": plain.url}, "b": {"url": spec.url}}, requests=wish), tmp_path / "r"
    )
    assert next(c for c in results.cells if c.target == "b").speedup.pairs > 4


def test_a_time_budget_ends_the_run_but_not_before_three_pairs(tmp_path, pair):
    plain, spec = pair
    wish = Requests(count=50, budget_s=0.5)
    _, results = api.run(
        plan({"a": {"url": plain.url}, "b": {"url": spec.url}}, requests=wish), tmp_path / "r"
    )
    assert 3 <= next(c for c in results.cells if c.target == "b").speedup.pairs < 10


def test_launched_targets_run_in_alternating_blocks_and_leave_nothing(tmp_path):
    targets = {
        "plain": {"launch": launch(step_ms=2, completion_tokens=48)},
        "mtp": {
            "launch": launch(
                step_ms=2, completion_tokens=48, draft_tokens=1, position_acceptance=[0.7]
            )
        },
    }
    path, results = api.run(plan(targets, count=4, rounds=2), tmp_path / "with space")
    records = [r for r in load(path).records if r.phase == "measure"]
    assert [r.target for r in records] == ["plain"] * 2 + ["mtp"] * 4 + ["plain"] * 2
    assert next(c for c in results.cells if c.target == "mtp").speedup.pairs == 4
    assert (path / "servers" / "mtp.log").read_text().startswith("ready")
    assert not running(str(SERVER))


def test_a_launched_server_that_dies_is_one_clear_message(tmp_path):
    targets = {
        "bad": {
            "launch": f"{sys.executable} -c \"import sys; sys.exit('CUDA out of memory')\" {{port}}"
        }
    }
    with pytest.raises(ServerError, match="CUDA out of memory"):
        api.run(plan(targets), tmp_path / "r")
    assert (tmp_path / "r" / "results.json").is_file()


def test_against_itself_gives_the_noise_of_the_machine(tmp_path, pair):
    plain, spec = pair
    _, results = api.run(
        plan({"a": {"url": plain.url}, "b": {"url": spec.url}}, aa=True, count=4), tmp_path / "r"
    )
    (noise,) = results.machine_noise
    assert noise.pairs == 4
    assert noise.low < 1 < noise.high


def test_foreign_traffic_marks_the_cell(tmp_path, serve):
    server = serve(
        draft_tokens=2, position_acceptance=[0.5, 0.3], step_ms=2, completion_tokens=48,
        foreign={"drafts": 20, "drafted": 40, "accepted": 40, "generation_tokens": 60},
    )  # fmt: skip
    _, results = api.run(plan({"t": {"url": server.url}}), tmp_path / "r")
    (cell,) = results.cells
    assert cell.drafting.witnesses_agree is False
    assert "foreign_traffic" in {w.code for w in cell.warnings}
    # the stream's own account is used, not the counters
    accepted = sum(n - 1 for r in server.truth()["requests"][-4:] for n in r["tokens"][1:])
    assert cell.drafting.accepted == accepted


def test_a_restart_between_scrapes_is_not_negative_acceptance(tmp_path, serve):
    server = serve(draft_tokens=2, position_acceptance=[0.5, 0.3], step_ms=2, completion_tokens=48,
                   restart_after=4)  # fmt: skip
    _, results = api.run(plan({"t": {"url": server.url}}), tmp_path / "r")
    (cell,) = results.cells
    assert cell.drafting.accepted >= 0
    assert "counters_reset" in {w.code for w in cell.warnings}


def test_lagging_counters_are_waited_for(tmp_path, serve):
    server = serve(draft_tokens=2, position_acceptance=[0.5, 0.3], step_ms=2, completion_tokens=48,
                   counter_lag_ms=30)  # fmt: skip
    path, results = api.run(plan({"t": {"url": server.url}}), tmp_path / "r")
    truth = measured_truth(server, load(path), "t")
    (cell,) = results.cells
    assert cell.drafting.accepted == sum(n for r in truth for n in r["accepted"] if n is not None)


def test_one_failed_request_is_counted_and_the_rest_stands(tmp_path, serve):
    server = serve(step_ms=2, completion_tokens=48, fault={"request": 4, "kind": "error_in_stream"})
    _, results = api.run(plan({"t": {"url": server.url}}, count=5), tmp_path / "r")
    (cell,) = results.cells
    assert (cell.requests, cell.errors) == (4, {"stream": 1})


def test_a_server_that_only_fails_ends_the_run_with_its_words(tmp_path, serve):
    server = serve(fault={"request": "all", "kind": "error_in_stream"})
    with pytest.raises(ServerError, match="EngineCore"):
        api.run(plan({"t": {"url": server.url}}), tmp_path / "r")


def running(words):
    out = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if words in line and "ps -eo" not in line]


def start_run(tmp_path, experiment, folder):
    file = tmp_path / "plan.json"
    from draftmeter.experiment.load import resolved

    file.write_bytes(msgspec.json.encode(resolved(experiment)))
    code = (
        "import signal, sys, msgspec, pathlib; from draftmeter import api; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # also where it was ignored
        "from draftmeter.experiment.load import from_resolved; "
        "plan = from_resolved(msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes())); "
        "api.run(plan, pathlib.Path(sys.argv[2]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(file), str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(api.__file__).parents[1])},
    )


def wait_for_lines(file, lines, limit_s=30):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{file} never had {lines} lines")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_mid_run_then_resumed_gives_the_same_totals(tmp_path, how):
    targets = {
        "plain": {"launch": launch(step_ms=4, completion_tokens=40)},
        "mtp": {
            "launch": launch(
                step_ms=4, completion_tokens=40, draft_tokens=1, position_acceptance=[0.7]
            )
        },
    }
    experiment = plan(targets, count=6, tokens=40, together=True)
    folder = tmp_path / "r"
    process = start_run(tmp_path, experiment, folder)
    wait_for_lines(folder / "requests.jsonl", 6)
    process.send_signal(how)
    process.wait(timeout=30)
    assert process.returncode != 0
    end = time.monotonic() + 15
    while running(str(SERVER)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not running(str(SERVER)), "a killed run left a server behind"
    interrupted = load(folder)
    done = [r for r in interrupted.records if r.phase == "measure"]
    assert 0 < len(done) < 12
    _, results = api.resume(folder)
    whole = [r for r in load(folder).records if r.phase == "measure"]
    assert sorted((r.target, r.pair) for r in whole) == sorted(
        (t, p) for t in ("plain", "mtp") for p in range(6)
    )
    assert whole[: len(done)] == done
    for cell in results.cells:
        assert (cell.requests, cell.completion_tokens) == (6, 240)


def test_resume_of_a_whole_run_measures_nothing(tmp_path, serve):
    server = serve(step_ms=2, completion_tokens=40)
    path, before = api.run(plan({"t": {"url": server.url}}), tmp_path / "r")
    lines = (path / "requests.jsonl").read_bytes()
    _, after = api.resume(path)
    assert (path / "requests.jsonl").read_bytes() == lines
    assert after.cells == before.cells


def test_the_resolved_experiment_in_the_folder_is_the_one_that_ran(tmp_path, serve):
    server = serve(step_ms=2, completion_tokens=40)
    experiment = plan({"t": {"url": server.url}})
    path, _ = api.run(experiment, tmp_path / "r")
    assert from_resolved(load(path).experiment) == experiment
