"""Two runs of one experiment: changes by interval, the gate, refusals, exit codes, JUnit."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import msgspec
import numpy as np
import pytest
from tests.support.records import MTP3, record, run_of
from typer.testing import CliRunner

from draftmeter import api
from draftmeter.cli import app
from draftmeter.cli.compare import parse_limits
from draftmeter.decision.compare import compare, refused
from draftmeter.errors import UsageError
from draftmeter.experiment.load import resolved
from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target
from draftmeter.record.folder import RunFolder
from draftmeter.record.types import DraftCounts
from draftmeter.report.comparison import to_junit, to_markdown, to_text

LIMITS = {"slower": 0.05, "acceptance": 0.03, "ttft": 0.10}
NO_COUNTERS = msgspec.structs.replace(MTP3, metrics_problem="off")


def requests(*, speed=1.0, ttft=1.0, accepted=140, pairs=12, noise=0.01, seed=0, target="mtp"):
    """Requests at about 100 tok/s; 200 drafted tokens each, about 70 % of them accepted."""
    rng = np.random.default_rng(seed)
    found = []
    for pair in range(pairs):
        gap_us = round(10_000 / speed / (1 + noise * rng.normal()))
        found.append(record(
            [1] * 101, gap_us=gap_us, ttft_us=round(50_000 * ttft * (1 + noise * rng.normal())),
            target=target, pair=pair, prompt=pair, id=pair,
            drafting=DraftCounts(drafts=67, drafted=200, accepted=accepted + int(rng.integers(-4, 5))),
        ))  # fmt: skip
    return found


def data(records, target="mtp", **experiment):
    return run_of(records, {target: NO_COUNTERS}, reference=target, experiment=experiment)


def changes(a, b, limits=LIMITS):
    return {c.metric: c for c in compare(data(a), data(b), limits).changes}


def test_the_same_again_passes_every_gate():
    found = changes(requests(), requests(seed=1))
    assert {m: c.outcome for m, c in found.items()} == dict.fromkeys(LIMITS, "pass")
    assert found["slower"].change == pytest.approx(1, abs=0.02)
    assert found["slower"].limit == pytest.approx(0.95)
    assert not refused(found.values(), strict=True)


def test_each_kind_of_regression_closes_its_gate_alone():
    for metric, worse in {
        "slower": {"speed": 0.85}, "acceptance": {"accepted": 120}, "ttft": {"ttft": 1.3},
    }.items():  # fmt: skip
        found = changes(requests(), requests(seed=1, **worse))
        assert {m for m, c in found.items() if c.outcome == "fail"} == {metric}
        assert refused(found.values())
    assert found["ttft"].change == pytest.approx(1.3, rel=0.02)


def test_figures_are_those_worked_out_by_hand():
    a = [record([1] * 101, gap_us=10_000, pair=p, prompt=p) for p in range(3)]
    b = [
        record([1] * 101, gap_us=g, pair=p, prompt=p) for p, g in enumerate((8000, 10_000, 12_500))
    ]
    found = compare(data(a, "t"), data(b, "t"), {}).changes[0]
    # Ratios 1.25, 1, 0.8: logs 0.2231, 0, -0.2231; t(0.975, 2) = 4.3027, sd = 0.2231
    half = 4.3027 * math.log(1.25) / math.sqrt(3)
    assert found.change == pytest.approx(1)
    assert found.high == pytest.approx(math.exp(half), rel=1e-3)
    assert (found.outcome, found.limit, found.pairs) == ("not asked", None, 3)


def test_too_rough_is_undecided_and_says_how_many_pairs():
    found = changes(requests(noise=0.2), requests(noise=0.2, seed=4, speed=0.93))["slower"]
    assert found.outcome == "undecided"
    assert found.more_pairs is None or found.more_pairs >= 1
    assert not refused([found])
    assert refused([found], strict=True)


def test_runs_with_other_seeds_are_paired_by_prompt():
    a = requests()
    b = [msgspec.structs.replace(r, pair=11 - r.pair) for r in requests()]
    found = changes(a, b)["slower"]
    assert found.change == pytest.approx(1, abs=1e-6)
    assert found.low == pytest.approx(1, abs=1e-6)


def test_single_targets_are_compared_whatever_their_names():
    found = compare(data(requests()), data(requests(target="new"), "new"), {})
    assert found.changes
    assert "compared with target 'new'" in found.notes[0]


# --- refusals and the verb ------------------------------------------------------------------------


def folder(tmp_path, name, records, **scenario):
    settings = {"prompts": [[Message(role="user", content="hi")]], "max_tokens": 256} | scenario
    experiment = Experiment(
        name="e", reference="mtp", targets={"mtp": Target(name="mtp", url="http://localhost:1")},
        scenarios=[Scenario(name="s", **settings)], requests=Requests(count=12),
    )  # fmt: skip
    run = RunFolder.create(tmp_path / name, resolved(experiment), data([]).environment)
    for r in records:
        run.add_request(r)
    run.close()
    return tmp_path / name


@pytest.mark.parametrize(
    ("other", "said"),
    [({"max_tokens": 128}, "max_tokens of s differ: 256 and 128"),
     ({"temperature": 0.0}, "temperature of s differ: 0.7 and 0.0"),
     ({"prompts": [[Message(role="user", content="ho")]]}, "prompts of s differ")],
)  # fmt: skip
def test_runs_that_measured_something_else_are_refused_with_the_reason(tmp_path, other, said):
    a = folder(tmp_path, "a", requests())
    b = folder(tmp_path, "b", requests(), **other)
    with pytest.raises(UsageError, match=said):
        api.compare(a, b, LIMITS)


def invoke(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def test_the_gate_decides_the_exit_code_and_writes_junit_and_markdown(tmp_path):
    a, same = folder(tmp_path, "a", requests()), folder(tmp_path, "same", requests(seed=1))
    slow = folder(tmp_path, "slow", requests(seed=1, speed=0.8))
    gate = ("--fail-on", "slower=5%,acceptance=3pt", "--fail-on", "ttft=10%")
    passed = invoke(a, same, *gate)
    assert passed.exit_code == 0, passed.output
    assert "The gate is open" in passed.stdout
    assert max(map(len, passed.stdout.splitlines())) <= 80
    files = ("--junit", tmp_path / "j.xml", "--markdown", tmp_path / "s.md")
    failed = invoke(a, slow, *gate, *files, "--json")
    assert failed.exit_code == 1, failed.output
    told = json.loads(failed.stdout)
    assert told["schema"] == "draftmeter.comparison/1"
    assert [c["outcome"] for c in told["changes"]] == ["fail", "pass", "pass"]
    suite = ET.parse(tmp_path / "j.xml").getroot().find("testsuite")  # noqa: S314
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "0")
    assert suite.find("testcase/failure").get("message").startswith("0.8")
    assert "| fail | mtp | s | decode speed |" in (tmp_path / "s.md").read_text()
    assert invoke(a, slow).exit_code == 0  # nothing was asked of it


def test_wrong_gates_are_refused_with_the_nearest_word():
    assert parse_limits(["slower=5%, ttft=10"]) == {"slower": 0.05, "ttft": 0.1}
    with pytest.raises(UsageError, match="did you mean 'slower'"):
        parse_limits(["slwer=5%"])
    with pytest.raises(UsageError, match="acceptance=5pt"):
        parse_limits(["acceptance=lots"])


def test_hostile_names_stay_text():
    name = "m|<b>\x1b[31m"
    records = [msgspec.structs.replace(r, target=name) for r in requests()]
    found = compare(data(records, name), data(records, name), LIMITS)
    assert "\x1b" not in to_text(found) + to_markdown(found) + to_junit(found).decode()
    assert "<b>" not in to_markdown(found).replace("\\<b", "")
    assert len(list(ET.fromstring(to_junit(found)).iter("testcase"))) == 3  # noqa: S314


# --- coverage -------------------------------------------------------------------------------------


def test_the_interval_of_a_difference_of_acceptance_covers_it():
    rng = np.random.default_rng(5)
    hits = trials = 400

    def run(mean):
        rates = np.clip(rng.normal(mean, 0.08, 10), 0.05, 0.95)
        return [
            record([1] * 101, pair=p, prompt=p, id=p, target="mtp", drafting=DraftCounts(
                drafts=70, drafted=200, accepted=int(rng.binomial(200, rate))))
            for p, rate in enumerate(rates)
        ]  # fmt: skip

    hits = 0
    for _ in range(trials):
        found = changes(run(0.7), run(0.65))["acceptance"]
        hits += found.low <= -0.05 <= found.high
    assert 0.925 <= hits / trials <= 0.98
