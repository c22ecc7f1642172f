"""What several verbs share: progress on stderr, results on stdout, the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftmeter.errors import EXIT_NO, EXIT_OK, EXIT_UNTRUSTWORTHY, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from draftmeter.experiment.model import Experiment
    from draftmeter.measure.events import OnEvent
    from draftmeter.record.results import Results

JSON_OPTION = typer.Option(False, "--json", help="Print results as JSON on stdout, nothing else.")
OUT_OPTION = typer.Option(None, "--out", metavar="DIR", help="Run folder (default runs/NAME-TIME).")
CACERT_OPTION = typer.Option(None, "--cacert", metavar="FILE", help="CA certificates to trust.")
INSECURE_OPTION = typer.Option(False, "--insecure", help="Do not check TLS certificates.")


@contextlib.contextmanager
def watching(experiment: Experiment, as_json: bool) -> Iterator[OnEvent]:
    """Progress on stderr while a run lasts; nothing when stdout is a pipe or JSON is wanted.

    Raises:
        InterruptedRunError: in place of KeyboardInterrupt, with the way to go on.
    """
    try:
        with _progress(experiment, as_json) as on_event:
            yield on_event
    except KeyboardInterrupt as error:
        stopped = InterruptedRunError("interrupted")
        for note in getattr(error, "__notes__", []):
            stopped.add_note(note)
        raise stopped from None


@contextlib.contextmanager
def _progress(experiment: Experiment, as_json: bool) -> Iterator[OnEvent]:
    if as_json or not sys.stdout.isatty():
        yield lambda _: None
        return
    from draftmeter.cli.progress import Progress

    with Progress(experiment) as progress:
        yield progress.on_event


def finish(path: Path, results: Results, as_json: bool) -> None:
    """Print a run's results and leave with its exit code."""
    if as_json:
        from draftmeter.report.json import to_json

        emit(to_json(results))
    else:
        show(results)
        print(f"\nRun folder: {path}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(exit_code(results))


def show(results: Results) -> None:
    """Print the tables: with colour on a terminal, plain in a pipe."""
    import shutil

    from draftmeter.report.terminal import to_text

    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    emit(to_text(results, shutil.get_terminal_size().columns, color=color))


def exit_code(results: Results) -> int:
    """4 when any cell must not be believed, 1 when every candidate fails the policy, else 0."""
    from draftmeter.decision.policy import refused

    marked = any(w.severity == "error" for cell in results.cells for w in cell.warnings)
    marked = marked or any(w.severity == "error" for w in results.warnings)
    if marked:
        return EXIT_UNTRUSTWORTHY
    return EXIT_NO if refused(results.verdicts) else EXIT_OK


def emit(output: str | bytes) -> None:
    """Write results to stdout; a reader that went away (``| head``) is no failure of ours."""
    data = output.encode() if isinstance(output, str) else output
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_file(path: Path, data: bytes, *, append: bool = False) -> None:
    """Write an output file the user named.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        with path.open("ab" if append else "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def with_scheme(url: str) -> str:
    """``localhost:8000`` as people type it, as an address."""
    return url if "//" in url else f"http://{url}"


def parse_count(
    requests: int | None, precision: str | None, budget: str | None
) -> dict[str, object]:
    """``--requests``, ``--precision`` and ``--budget`` as the experiment file's ``requests``."""
    if requests is not None and requests < 1:
        raise UsageError(f"--requests must be at least 1, not {requests}")
    if requests is not None and precision is not None:
        raise UsageError("--requests fixes the number of requests; leave --precision out")
    wish: dict[str, object] = {}
    if requests is not None:
        wish["count"] = requests
    if precision is not None:
        wish["precision"] = precision
    if budget is not None:
        wish["budget"] = budget
    return wish
