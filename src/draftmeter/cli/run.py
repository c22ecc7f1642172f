"""``draftmeter run``: targets x scenarios, servers started and stopped."""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import CACERT_OPTION, INSECURE_OPTION, JSON_OPTION, OUT_OPTION


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="run")(run)


def run(
    experiment: Path = typer.Argument(
        metavar="EXPERIMENT.yaml", help="The experiment file, or with --resume a run folder."
    ),
    out: Path | None = OUT_OPTION,
    resume: bool = typer.Option(
        False, "--resume", help="Go on with an interrupted run: the folder given, or the newest."
    ),
    as_json: bool = JSON_OPTION,
    cacert: Path | None = CACERT_OPTION,
    insecure: bool = INSECURE_OPTION,
) -> None:
    """Measure an experiment: its targets side by side on its scenarios.

    Launched servers are started on free ports, waited for, and stopped, whatever happens.
    Every request is on disk before the next is sent; --resume goes on after a stop.
    """
    from draftmeter import api
    from draftmeter.cli.common import finish, watching
    from draftmeter.experiment.load import from_resolved, load_experiment
    from draftmeter.record.folder import read_experiment

    connection = api.Connection(ca_file=cacert, insecure=insecure)
    if resume:
        folder = interrupted_run(experiment, out)
        with watching(from_resolved(read_experiment(folder)), as_json) as on_event:
            path, results = api.resume(folder, on_event=on_event, connection=connection)
    else:
        plan = load_experiment(experiment)
        with watching(plan, as_json) as on_event:
            path, results = api.run(plan, out, on_event=on_event, connection=connection)
    finish(path, results, as_json)


def interrupted_run(given: Path, out: Path | None) -> Path:
    """The run folder to go on with: named itself, by --out, or the newest of the experiment."""
    from draftmeter.errors import UsageError
    from draftmeter.experiment.load import load_experiment
    from draftmeter.record.folder import new_run_id

    if out is not None:
        return out
    if given.is_dir():
        return given
    name = load_experiment(given).name
    prefix = new_run_id(name).rsplit("-", 2)[0]
    found = sorted(
        (p for p in Path("runs").glob(f"{prefix}-*-*") if (p / "environment.json").is_file()),
        key=lambda p: p.stat().st_mtime,
    )
    if not found:
        raise UsageError(f"no run of {name!r} in ./runs to go on with; name its folder")
    return found[-1]
