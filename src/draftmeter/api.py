"""Measure, run, load, analyse: the whole of draftmeter as functions. The CLI uses nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from draftmeter.analysis.cells import summarise
from draftmeter.analysis.findings import Finding, findings
from draftmeter.analysis.stopping import pairs_wanted
from draftmeter.decision.compare import Comparison, Metric, differences
from draftmeter.decision.compare import compare as compare_runs
from draftmeter.decision.policy import Policy, policy_of, verdicts
from draftmeter.decision.recommend import recommendations
from draftmeter.decision.verify import proposed
from draftmeter.engines import by_name
from draftmeter.engines.advice import with_flags, words_of
from draftmeter.errors import DraftmeterError, UsageError
from draftmeter.experiment.load import from_resolved, resolved
from draftmeter.experiment.model import Experiment, Target
from draftmeter.experiment.policy import load_policy
from draftmeter.measure.environment import describe
from draftmeter.measure.events import OnEvent
from draftmeter.record.folder import RunFolder, check_schema, load, new_run_id, read_experiment
from draftmeter.record.results import Results, Tuning
from draftmeter.record.types import Environment, RequestRecord, RunData, TargetInfo
from draftmeter.report.json import to_json
from draftmeter.roofline.devices import device_named
from draftmeter.roofline.run import explained, with_bandwidth, with_step_sizes

if TYPE_CHECKING:
    from draftmeter.measure.check import Look

__all__ = [
    "Connection",
    "Finding",
    "analyse",
    "check",
    "load",
    "resume",
    "run",
    "tune",
    "verification",
]


@dataclass(frozen=True)
class Connection:
    """How to reach servers: a CA file for TLS, or no certificate check at all."""

    ca_file: Path | None = None
    insecure: bool = False


def analyse(data: RunData) -> Results:
    """All numbers of a run, from what was recorded."""
    results = with_flags(explained(summarise(data), data.environment), data.environment)
    policy = policy_of(data.experiment)
    return decided(data, results, policy) if policy.rules else results


def decided(data: RunData, results: Results, policy: Policy) -> Results:
    """The results with verdicts on a policy, and what to run."""
    found = verdicts(data, results, policy)
    return msgspec.structs.replace(
        results, verdicts=found, recommendations=recommendations(data, results, policy, found)
    )


def decide(path: Path, policy_file: Path | None = None) -> Results:
    """A run's results judged by a policy: that of a file, or the run's own.

    Raises:
        UsageError: there is none, or the file has mistakes.
    """
    data = load(path)
    results = analyse(data)
    if policy_file is None:
        if not results.verdicts:
            raise UsageError(f"{path} has no policy of its own; name one with --policy FILE")
        return results
    scenarios = [s.name for s in from_resolved(data.experiment).scenarios]
    values = load_policy(policy_file, scenarios, list(results.targets), data.reference)
    return decided(data, results, policy_of(values))


def run(
    experiment: Experiment,
    out: Path | None = None,
    *,
    on_event: OnEvent = lambda _: None,
    connection: Connection = Connection(),
) -> tuple[Path, Results]:
    """Measure an experiment from the beginning; its folder and its results.

    Raises:
        UsageError: the folder cannot be made.
        ServerError: a target cannot be started or fails; what was measured is in the folder.
        KeyboardInterrupt: after servers are stopped and results of what there is are written.
    """
    if experiment.seed == 0:
        experiment = msgspec.structs.replace(experiment, seed=secrets.randbelow(2**31 - 1) + 1)
    if experiment.device is not None:
        device_named(experiment.device)  # a wrong name is said before anything is measured
    run_id = new_run_id(experiment.name)
    path = out if out is not None else Path("runs") / run_id
    environment = describe(run_id, experiment.name, experiment.seed)
    folder = RunFolder.create(path, resolved(experiment), environment)
    return path, _measure(folder, experiment, environment, [], on_event, connection)


def resume(
    path: Path,
    *,
    on_event: OnEvent = lambda _: None,
    connection: Connection = Connection(),
) -> tuple[Path, Results]:
    """Go on with an interrupted run: only what is missing is measured."""
    environment = check_schema(path)
    experiment = from_resolved(read_experiment(path))
    folder = RunFolder.open(path)
    records = load(path).records
    return path, _measure(folder, experiment, environment, records, on_event, connection)


def tune(path: Path) -> list[Tuning]:
    """The best draft length of every speculative target of a run, for each scenario.

    Raises:
        UsageError: the run has nothing to tell it from.
    """
    results = analyse(load(path))
    if not results.tuning:
        raise UsageError(
            f"{path}: no draft length can be judged: that needs a speculative target whose "
            "acceptance by position is known, and a plain one with the same model, both measured "
            "on the same scenario"
        )
    return results.tuning


def verification(
    path: Path, tunings: list[Tuning], draft_tokens: int | None = None
) -> tuple[Experiment, list[tuple[str, int, str]]]:
    """The experiment that tries the proposed draft lengths (or one given), beside a plain target.

    With it, for each: target, K, and the name it is measured under.

    Raises:
        UsageError: nothing is left to try, or a target was not launched by the run.
    """
    experiment = from_resolved(read_experiment(path))
    infos = check_schema(path).targets
    wishes = proposed(tunings)
    if draft_tokens is not None:
        wishes = [(t, draft_tokens) for t, _ in wishes or [(tunings[0], 0)]][:1]
    if not wishes:
        raise UsageError("every draft length that could be the best was measured; name one with "
                         "--draft-tokens to measure it again")  # fmt: skip
    targets = {experiment.reference: experiment.targets[experiment.reference]}
    tried = []
    for tuning, k in wishes:
        target = experiment.targets[tuning.target]
        words = by_name(infos[target.name].engine).with_draft_tokens(words_of(target.launch), k)
        if words is None:
            raise UsageError(
                f"target {target.name!r} cannot be started with another K from here: it needs a "
                "launch command that sets K. Start it yourself with: "
                + by_name(infos[target.name].engine).flags(k, infos[target.name].method, ())
            )
        name = f"{target.name}-k{k}"
        targets[name] = msgspec.structs.replace(target, name=name, launch=shlex.join(words))
        tried.append((target.name, k, name))
    plan = msgspec.structs.replace(
        experiment, name=f"{experiment.name}-verify", targets=targets, policy={}, aa=False
    )
    return plan, tried


def compare(baseline: Path, candidate: Path, limits: Mapping[str, float]) -> Comparison:
    """Run B against run A; ``limits`` are the gate: slower, acceptance, ttft as fractions.

    Raises:
        UsageError: they did not measure the same thing.
    """
    a, b = load(baseline), load(candidate)
    found = differences(a.experiment, b.experiment)
    if found:
        more = f" (and {len(found) - 2} more)" if len(found) > 2 else ""
        raise UsageError("these runs must not be compared: " + "; ".join(found[:2]) + more)
    known: dict[Metric, float] = {
        key: limits[key] for key in ("slower", "acceptance", "ttft") if key in limits
    }
    comparison = compare_runs(a, b, known)
    if not comparison.changes:
        raise UsageError("the runs have no target and scenario in common")
    return comparison


def _measure(
    folder: RunFolder,
    experiment: Experiment,
    environment: Environment,
    records: list[RequestRecord],
    on_event: OnEvent,
    connection: Connection,
) -> Results:
    """Run the session, then write ``results.json``, also when the session ended early."""
    try:
        with _terminate_as_interrupt():
            asyncio.run(_session(folder, experiment, environment, records, on_event, connection))
    except (KeyboardInterrupt, DraftmeterError) as error:
        if records:
            error.add_note(
                f"what was measured is kept; go on with: draftmeter run --resume {folder.path}"
            )
        raise
    finally:
        _note_step_sizes(folder, experiment)
        results = analyse(load(folder.path))
        folder.write_results(to_json(results))
        folder.close()
    return results


def _note_step_sizes(folder: RunFolder, experiment: Experiment) -> None:
    """Put into the run folder what each target's step moves, and with which bandwidth."""
    data = load(folder.path)
    environment = with_bandwidth(
        data.environment, experiment.device, experiment.bandwidth_gb_s,
        local=any(t.launch is not None for t in experiment.targets.values()),
    )  # fmt: skip
    targets = []
    for name, target in experiment.targets.items():
        info = environment.targets.get(name)
        model = target.files or target.model or (info.model if info else None)
        known = target.files or (model if model and Path(model).exists() else None)
        targets.append((name, known, target.kv_dtype))
    folder.write_environment(with_step_sizes(environment, targets, data))


async def _session(
    folder: RunFolder,
    experiment: Experiment,
    environment: Environment,
    records: list[RequestRecord],
    on_event: OnEvent,
    connection: Connection,
) -> None:
    from draftmeter.measure.http import open_session
    from draftmeter.measure.session import Session

    known = dict(environment.targets)

    def keep(infos: dict[str, TargetInfo]) -> None:
        known.update(infos)
        folder.write_environment(msgspec.structs.replace(environment, targets=known))

    def judge(scenario: str, measured: list[RequestRecord]) -> int:
        return pairs_wanted(
            [r for r in measured if r.scenario == scenario],
            experiment.reference,
            experiment.requests.precision,
        )

    ca_file = str(connection.ca_file) if connection.ca_file else None
    async with open_session(ca_file=ca_file, insecure=connection.insecure) as http:
        session = Session(
            experiment=experiment,
            folder=folder,
            http=http,
            judge=judge,
            on_event=on_event,
            records=records,
            infos=dict(environment.targets),
            on_info=keep,
        )
        await session.run()


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a run the way Ctrl-C does: servers stopped, results written."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: leave signals alone
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check(target: Target, connection: Connection = Connection()) -> list[Finding]:
    """Look at a running server and say whether it can be measured.

    Raises:
        ServerError: it cannot be reached, or refuses every request.
    """
    look = asyncio.run(_look(target, connection))
    return findings(
        look.info, look.record, quiet=look.quiet, before=look.before, after=look.after,
        settled=look.settled,
        has_counters=look.has_counters, how_to_measure=look.how_to_measure, asked=look.asked,
    )  # fmt: skip


async def _look(target: Target, connection: Connection) -> Look:
    from draftmeter.measure.check import look
    from draftmeter.measure.http import open_session

    ca_file = str(connection.ca_file) if connection.ca_file else None
    async with open_session(ca_file=ca_file, insecure=connection.insecure) as http:
        return await look(http, target)
