"""The results on a terminal: the answer first, then a table per scenario, then what to doubt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftmeter.report.decision import recommendation_lines, verdict_lines
from draftmeter.report.load import load_lines
from draftmeter.report.predictability import predictability_lines
from draftmeter.report.safe import printable, shorten
from draftmeter.report.tables import (
    REFERENCE,
    Block,
    Column,
    blocks_of,
    columns_of,
    doubtful,
    footnotes,
    grouped_warnings,
    noise_lines,
    visible_ttft,
)
from draftmeter.report.tuning import advice_of
from draftmeter.report.why import HEADERS, why_lines, why_rows, why_title
from draftmeter.report.words import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from draftmeter.record.results import Cell, Results

GAP = 2
MIN_NAME = 8

# Blue and orange tones are told apart by nearly everyone; the words carry the meaning anyway.
_OUTCOME_STYLES = {"faster": "bold cyan", "slower": "bold yellow", "untrustworthy": "bold yellow"}
_VERDICT_STYLES = {"pass": "cyan", "fail": "bold yellow", "undecided": "dim"}
_SEVERITY_STYLES = {"error": "bold yellow", "warning": "yellow", "note": "dim"}


def to_text(results: Results, width: int = 80, *, color: bool = False) -> str:
    """What ``render`` prints, as text with lines of at most ``width`` columns."""
    import io

    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=width, force_terminal=color, no_color=not color,
        color_system="standard" if color else None, highlight=False, legacy_windows=False,
    )  # fmt: skip
    render(results, console)
    file = console.file
    text = file.getvalue() if isinstance(file, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def render(results: Results, console: Console) -> None:
    """Print the results on ``console``."""
    _answers(results, console)
    _decision(results, console)
    columns = columns_of(results)
    layout = _layout(results, columns, console.width)
    for block in blocks_of(results):
        _block(results, block, layout, console)
    _draft_length(results, console)
    _lines(console, "How predictable the text is", predictability_lines(results))
    _lines(console, "Under load", load_lines(results))
    _why(results, console)
    _lines(console, "Machine noise", noise_lines(results))
    _warnings(results, console)
    _notes(results, columns, layout, console)


def _answers(results: Results, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    if not results.cells:
        console.print(Text("Nothing was measured.", style="bold"))
        return
    found = answers(results)
    room = max(10, min(28, console.width // 3))
    table = Table.grid(padding=(0, GAP, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for i, answer in enumerate(found):
        same = i > 0 and answer.scenario == found[i - 1].scenario
        if i > 0 and not same:
            table.add_row()
        parts = answer.label_parts[1:] if same else answer.label_parts
        name = Text("\n").join(
            Text(shorten(part, room), style="bold" if j == 0 and not same else "dim")
            for j, part in enumerate(parts)
        )
        text = Text(answer.sentences[0], style=_OUTCOME_STYLES.get(answer.outcome, "bold"))
        if answer.sentences[1:]:
            rest = " ".join(answer.sentences[1:])
            text = Text("\n").join((text, Text(rest)))
        table.add_row(name, text)
    console.print(table)


def _decision(results: Results, console: Console) -> None:
    """What the policy says: what to run, then every rule's verdict."""
    from rich.table import Table
    from rich.text import Text

    if not results.verdicts:
        return
    console.print()
    for line in recommendation_lines(results):
        console.print(Text(line, style="bold", overflow="fold"))
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for outcome, text in verdict_lines(results):
        table.add_row(Text(outcome, style=_VERDICT_STYLES[outcome]), Text(text))
    console.print(table)


@dataclass(frozen=True)
class _Layout:
    """The columns that fit, and widths that are the same in all tables of a run."""

    columns: list[Column]
    widths: list[int]
    name_width: int


def _layout(results: Results, columns: Sequence[Column], width: int) -> _Layout:
    from rich.cells import cell_len

    widths = [
        max(
            cell_len(text or "")
            for text in (
                *column.title,
                *(t for c in results.cells for t in column.figure(results, c)),
            )
        )
        for column in columns
    ]
    shown = _fitting(widths, width)
    room = width - sum(widths[i] + GAP for i in shown)
    names = max((cell_len(_name(c)) for c in results.cells), default=0)
    return _Layout(
        columns=[columns[i] for i in shown],
        widths=[widths[i] for i in shown],
        name_width=max(1, min(room, max(names, len("target")))),
    )


def _name(cell: Cell) -> str:
    return printable(cell.target, 200) + (" !" if doubtful(cell) else "")


def _block(results: Results, block: Block, layout: _Layout, console: Console) -> None:
    from rich.text import Text

    console.print()
    title = Text(shorten(block.title, console.width), style="bold")
    title.append(f"  {block.subtitle}", style="not bold dim")
    console.print(title)
    console.print(_table(results, block, layout))
    for line in visible_ttft(block):
        console.print(Text(line))


def _table(results: Results, block: Block, layout: _Layout) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box puts one column between
        header_style="dim",
        border_style="dim",
    )
    table.add_column("\ntarget", width=layout.name_width, no_wrap=True)
    for column, width in zip(layout.columns, layout.widths, strict=True):
        first, second = column.title
        title = f"{first}\n{second}" if second else f"\n{first}"
        table.add_column(title, width=width, justify="right", no_wrap=True)
    for cell in block.cells:
        row = [Text(shorten(_name(cell), layout.name_width))]
        for column in layout.columns:
            figure, interval = column.figure(results, cell)
            text = Text(figure, style="dim" if figure == REFERENCE else "")
            if interval is not None:
                text.append(f"\n{interval}", style="dim")
            row.append(text)
        table.add_row(*row)
    return table


def _fitting(widths: Sequence[int], width: int) -> list[int]:
    """Columns that fit beside a short name; on narrow terminals the middle ones go first."""
    shown = list(range(len(widths)))
    for dropped in (4, 3, 0, 2):
        if MIN_NAME + sum(widths[i] + GAP for i in shown) <= width:
            break
        if dropped in shown and len(shown) > 1:
            shown.remove(dropped)
    return shown


def _draft_length(results: Results, console: Console) -> None:
    """The best K in a line or two; ``tune`` shows all of it."""
    from rich.text import Text

    advice = advice_of(results)
    if not advice:
        return
    console.print()
    console.print(Text("Draft length (draftmeter tune RUN shows every K)", style="bold"))
    for one in advice:
        console.print(Text(f"{one.title}: {one.answer}"))


def _why(results: Results, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    if not results.roofline:
        return
    console.print()
    console.print(Text(why_title(results), style="bold"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, title in enumerate(HEADERS):
        table.add_column(title, justify="left" if place < 2 else "right", no_wrap=place >= 2)
    for row in why_rows(results):
        table.add_row(*(Text(part) for part in row))
    console.print(table)
    for line in why_lines(results):
        console.print(Text(line, overflow="fold"))


def _warnings(results: Results, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    found = grouped_warnings(results)
    if not found:
        return
    console.print()
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for severity, text, where in found:
        body = Text(text)
        if where:
            body.append(f" ({where})", style="dim")
        table.add_row(Text(severity, style=_SEVERITY_STYLES[severity]), body)
    console.print(table)


def _notes(results: Results, columns: Sequence[Column], layout: _Layout, console: Console) -> None:
    run = results.run
    made = [printable(run.id, 100), printable(run.started, 40)]
    tail = ", ".join(part for part in made if part)
    notes = footnotes(results, layout.columns, "Second lines")
    hidden = [column.name for column in columns if column not in layout.columns]
    if hidden:
        notes.append(f"Left out for want of room: {', '.join(hidden)}. Use a wider terminal.")
    _lines(console, "", [*notes, f"{tail}, draftmeter {printable(run.draftmeter, 40)}"], "dim")


def _lines(console: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    from rich.text import Text

    if not lines:
        return
    console.print()
    if title:
        console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Text(line, style=style, overflow="fold"))
