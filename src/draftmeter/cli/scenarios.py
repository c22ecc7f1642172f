"""``draftmeter scenarios``: the built-in workloads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from draftmeter.cli.common import JSON_OPTION, emit

if TYPE_CHECKING:
    from draftmeter.experiment.model import Scenario


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="scenarios")(scenarios)


def scenarios(
    action: str = typer.Argument("list", metavar="[show]", help="Nothing, or: show."),
    name: str | None = typer.Argument(None, metavar="[NAME]", help="With show: which one."),
    as_json: bool = JSON_OPTION,
) -> None:
    """List the built-in workloads; `scenarios show NAME` prints one as YAML."""
    from pathlib import Path

    import msgspec

    from draftmeter.errors import UsageError
    from draftmeter.experiment.scenario import builtin_names, builtin_text, load_scenario

    if action not in ("list", "show") or (action == "show") != (name is not None):
        raise UsageError("write `draftmeter scenarios`, or `draftmeter scenarios show NAME`")
    if action == "show" and name is not None:
        text = builtin_text(name)
        if as_json:
            emit(msgspec.json.encode(load_scenario(name, Path())) + b"\n")
        else:
            emit(text)
        return
    found = [load_scenario(builtin, Path()) for builtin in builtin_names()]
    if as_json:
        rows = [
            {
                "name": s.name, "language": s.language, "prompts": len(s.prompts),
                "max_tokens": s.max_tokens, "temperature": s.temperature,
                "description": s.description,
            }
            for s in found
        ]  # fmt: skip
        emit(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
        return
    _print_table(found)


def _print_table(found: list[Scenario]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("name", "language", "prompts", "max tokens", "what it is"):
        table.add_column(title, no_wrap=title != "what it is")
    for s in found:
        table.add_row(
            s.name, s.language or "-", str(len(s.prompts)), str(s.max_tokens), s.description
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 80).print(table)
