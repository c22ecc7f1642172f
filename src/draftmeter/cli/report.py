"""``draftmeter report``: the numbers of a run, again, in the form you need."""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import JSON_OPTION


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="report")(report)


def report(
    run: Path = typer.Argument(metavar="RUN", help="A run folder."),
    form: str = typer.Option("text", "--format", metavar="text|md|json|csv", help="Output format."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print a run's results: as text, Markdown, JSON or CSV. Works on interrupted runs too."""
    from draftmeter import api
    from draftmeter.cli.common import emit, show
    from draftmeter.errors import UsageError

    form = "json" if as_json else form
    if form not in ("text", "md", "json", "csv"):
        raise UsageError(f"unknown format {form!r}; there are text, md, json and csv")
    results = api.analyse(api.load(run))
    if form == "text":
        show(results)
    elif form == "json":
        from draftmeter.report.json import to_json

        emit(to_json(results))
    elif form == "md":
        from draftmeter.report.markdown import to_markdown

        emit(to_markdown(results))
    else:
        from draftmeter.report.table_csv import to_csv

        emit(to_csv(results))
