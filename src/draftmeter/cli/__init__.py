"""The verbs: parse, call, print. One module per verb, imported when it is called.

Only typer is imported to print ``--help``; what a verb needs is imported inside its function.
"""

from __future__ import annotations

import sys

import typer

from draftmeter import __version__
from draftmeter.cli import (
    check,
    compare,
    decide,
    demo,
    measure,
    probe,
    report,
    roofline,
    run,
    scenarios,
    tune,
)
from draftmeter.errors import DraftmeterError

app = typer.Typer(
    name="draftmeter",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (demo, check, measure, run, tune, decide, compare, report, roofline, probe, scenarios):
    verb.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftmeter {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    """Does speculative decoding make your LLM server faster, why, and what to switch on.

    Start with `draftmeter demo` (no GPU, no server), then `draftmeter check URL`
    and `draftmeter measure URL` on a server of yours.
    """


def main() -> None:
    """Run the command line; errors meant for people become one or two lines and an exit code."""
    try:
        app(standalone_mode=True)
    except DraftmeterError as error:
        _say(str(error).splitlines()[:8], error)
        sys.exit(error.exit_code)


def _say(lines: list[str], error: BaseException) -> None:
    """An error as one or two lines on stderr; what servers said in it is made printable."""
    from draftmeter.report.safe import printable

    notes = getattr(error, "__notes__", [])
    text = "\n  ".join(printable(line, limit=500) for line in [*lines, *notes])
    print(f"draftmeter: {text}", file=sys.stderr)  # noqa: T201
