"""``draftmeter check``: what is this server, and can it be measured?"""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import CACERT_OPTION, INSECURE_OPTION, JSON_OPTION, emit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="check")(check)


def check(
    url: str = typer.Argument(metavar="URL", help="The server, like http://localhost:8000."),
    model: str | None = typer.Option(None, "--model", help="Model, if the server has several."),
    metrics_url: str | None = typer.Option(None, "--metrics-url", help="Where the counters are."),
    api_key_env: str | None = typer.Option(
        None, "--api-key-env", metavar="NAME", help="Environment variable that holds the API key."
    ),
    as_json: bool = JSON_OPTION,
    cacert: Path | None = CACERT_OPTION,
    insecure: bool = INSECURE_OPTION,
) -> None:
    """Say what a server is and whether it can be measured: a table of findings.

    Sends one short request. Exits with 1 when there is a problem.
    """
    from draftmeter import api
    from draftmeter.experiment.model import Target

    target = Target(
        name="server", url=url, model=model, metrics_url=metrics_url, api_key_env=api_key_env
    )
    findings = api.check(target, api.Connection(cacert, insecure))
    if as_json:
        from draftmeter.report.findings import findings_json

        emit(findings_json(url, findings))
    else:
        from draftmeter.report.findings import show_findings

        show_findings(url, findings)
    if any(f.status == "problem" for f in findings):
        raise typer.Exit(1)
