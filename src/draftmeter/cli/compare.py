"""``draftmeter compare``: two runs of one experiment, and a gate between them."""

from __future__ import annotations

from pathlib import Path

import typer

from draftmeter.cli.common import JSON_OPTION


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="compare")(compare)


def compare(
    baseline: Path = typer.Argument(metavar="RUN_A", help="The baseline's run folder."),
    candidate: Path = typer.Argument(metavar="RUN_B", help="The run folder to judge."),
    fail_on: list[str] = typer.Option(
        [], "--fail-on", metavar="slower=5%,acceptance=3pt,ttft=10%",
        help="Exit 1 when the change is worse than that. May be repeated.",
    ),
    strict: bool = typer.Option(False, "--strict", help="Exit 1 also when it cannot be told."),
    junit: Path | None = typer.Option(None, "--junit", metavar="FILE", help="Write JUnit XML."),
    summary: Path | None = typer.Option(
        None, "--markdown", metavar="FILE", help="Append a Markdown summary, as for GitHub."
    ),
    as_json: bool = JSON_OPTION,
) -> None:  # fmt: skip
    """Compare two runs of the same experiment: decode speed, acceptance, TTFT, by interval.

    Runs whose scenarios, prompts, caps or sampling differ are refused.
    """
    from draftmeter import api
    from draftmeter.cli.common import emit, exit_code, write_file
    from draftmeter.decision.compare import refused
    from draftmeter.errors import EXIT_NO, EXIT_OK
    from draftmeter.report import comparison as shown

    found = api.compare(baseline, candidate, parse_limits(fail_on))
    if junit is not None:
        write_file(junit, shown.to_junit(found))
    if summary is not None:
        write_file(summary, shown.to_markdown(found).encode(), append=True)
    if as_json:
        import msgspec

        emit(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    else:
        emit(shown.to_text(found))
    doubtful = max(exit_code(api.analyse(api.load(run))) for run in (baseline, candidate))
    gate = EXIT_NO if refused(found.changes, strict=strict) else EXIT_OK
    raise typer.Exit(doubtful if doubtful > EXIT_NO else gate)


def parse_limits(words: list[str]) -> dict[str, float]:
    """``slower=5%,acceptance=3pt`` as fractions."""
    import difflib

    from draftmeter.errors import UsageError

    units = {"slower": "%", "acceptance": "pt", "ttft": "%"}
    limits: dict[str, float] = {}
    for word in (part.strip() for text in words for part in text.split(",")):
        key, _, amount = word.partition("=")
        if key not in units:
            near = difflib.get_close_matches(key, units, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(units)}"
            raise UsageError(f"--fail-on: unknown {key[:40]!r}; {hint}")
        try:
            value = float(amount.strip().removesuffix(units[key]))
        except ValueError:
            value = -1.0
        if not 0 < value < 100:
            raise UsageError(f"--fail-on: {key} wants an amount like {key}=5{units[key]}")
        limits[key] = value / 100
    return limits
