"""``draftmeter decide``: a run judged by a policy."""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import JSON_OPTION


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="decide")(decide)


def decide(
    run: Path = typer.Argument(metavar="RUN", help="A run folder."),
    policy: Path | None = typer.Option(
        None, "--policy", metavar="FILE",
        help="YAML: rules per scenario, traffic, candidates. Default: the run's own policy.",
    ),
    as_json: bool = JSON_OPTION,
) -> None:  # fmt: skip
    """Judge a run by a policy: pass, fail or undecided for each rule, and what to run.

    Exit code 1 when every candidate fails a rule.
    """
    from draftmeter import api
    from draftmeter.cli.common import emit, exit_code

    results = api.decide(run, policy)
    if as_json:
        from draftmeter.report.json import to_json

        emit(to_json(results))
    else:
        from draftmeter.report.decision import decision_text

        emit(decision_text(results))
    raise typer.Exit(exit_code(results))
