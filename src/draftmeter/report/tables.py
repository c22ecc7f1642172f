"""What is in the tables, whatever they are printed as: columns, rows, notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftmeter.report.numbers import (
    NONE,
    count,
    number,
    parts,
    percent_parts,
    ratio_parts,
    with_interval,
)
from draftmeter.report.safe import printable
from draftmeter.report.words import is_speculative, load_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftmeter.record.results import Cell, Results

Figure = tuple[str, str | None]
"""A figure and its 95 % interval, as text."""

_SEVERITY = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Column:
    """A column: two lines of title, and its figure for a cell."""

    title: tuple[str, str]
    figure: Callable[[Results, Cell], Figure]
    drafts: bool = False
    interval: bool = True

    @property
    def name(self) -> str:
        """The title on one line."""
        return " ".join(part for part in self.title if part)


@dataclass(frozen=True)
class Block:
    """The cells that are compared with each other: one table."""

    title: str
    subtitle: str
    cells: list[Cell]


def columns_of(results: Results) -> list[Column]:
    """The columns that hold at least one figure in this run; TTFT and decode tok/s always do."""
    return [
        column
        for i, column in enumerate(COLUMNS)
        if i < 2
        or any(column.figure(results, c)[0] not in (NONE, REFERENCE) for c in results.cells)
    ]


def blocks_of(results: Results) -> list[Block]:
    """One block for each scenario, concurrency and context, in the order of the results."""
    groups: dict[tuple[str, int, int | None], list[Cell]] = {}
    for cell in results.cells:
        key = (cell.scenario, cell.concurrency, cell.context_tokens)
        groups.setdefault(key, []).append(cell)
    return [
        Block(printable(key[0], 60), _subtitle(results, cells), cells)
        for key, cells in groups.items()
    ]


def doubtful(cell: Cell) -> bool:
    """The cell's figures must not be believed."""
    return any(w.severity == "error" for w in cell.warnings)


def visible_ttft(block: Block) -> list[str]:
    """Time to the first token the reader sees, for targets that reason before they answer."""
    return [
        f"{printable(c.target, 40)}: first visible token after "
        f"{with_interval(v.median, v.low, v.high, 'ms')}"
        for c in block.cells
        if (v := c.visible_ttft_ms) is not None
    ]


def noise_lines(results: Results) -> list[str]:
    """The machine noise of each scenario for which it was measured."""
    lines = []
    for noise in results.machine_noise:
        pairs = count(noise.pairs, "pair")
        where = (
            f"{printable(noise.scenario, 60)}: {printable(results.reference, 40)} against itself"
        )
        if noise.low is None or noise.high is None:
            ratio = with_interval(noise.ratio, unit="x")
            lines.append(f"{where} {ratio} ({pairs}, too few for an interval)")
        else:
            low, high = number(noise.low, decimals=2), number(noise.high, decimals=2)
            lines.append(f"{where}, {pairs}: ratios from {low} to {high} mean nothing here")
    return lines


def grouped_warnings(results: Results) -> list[tuple[str, str, str]]:
    """(severity, text, where), gravest first; what several cells share is said once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for warn in results.warnings:
        groups.setdefault((warn.severity, warn.text), [])
    for cell in results.cells:
        for warn in cell.warnings:
            where = f"{printable(cell.target, 30)} on {printable(cell.scenario, 30)}"
            groups.setdefault((warn.severity, warn.text), []).append(
                " ".join((where, *load_of(results, cell)))
            )
    order = sorted(groups.items(), key=lambda item: _SEVERITY[item[0][0]])
    return [(severity, printable(text, 400), _where(places)) for (severity, text), places in order]


def footnotes(results: Results, columns: Sequence[Column], place: str) -> list[str]:
    """What intervals and dashes of this run's tables mean; ``place`` says where intervals stand."""
    notes = []
    figures = [column.figure(results, c) for c in results.cells for column in columns]
    expected = [c.figure(results, cell) for cell in results.cells for c in columns if c.interval]
    if any(interval is not None for _, interval in figures):
        notes.append(f"{place}: 95 % intervals. TTFT and decode tok/s are medians over requests.")
    elif figures:
        notes.append("TTFT and decode tok/s are medians over requests.")
    if any(t is None for f, t in expected if f not in (NONE, REFERENCE)):
        notes.append(
            "No interval where there are too few: below 6 requests for a median, 3 for "
            "acceptance, 3 pairs for a ratio."
        )
    if any(c.name == "step cost" for c in columns):
        notes.append(
            "Tokens per step / step cost: about the speedup over the same model when plain."
        )
    if any(f == NONE for f, _ in figures):
        notes.append(f"{NONE}  not measured{_why_not(results, columns)}.")
    if any(doubtful(c) for c in results.cells):
        notes.append("!  not to be relied on: see the errors.")
    return notes


def _why_not(results: Results, columns: Sequence[Column]) -> str:
    """The reasons behind the dashes, each once."""
    reasons: list[str] = []
    drafts = any(column.drafts for column in columns)
    plain = [t for t in _targets(results) if not is_speculative(results, t)]
    if drafts and plain:
        verb = "does" if len(plain) == 1 else "do"
        reasons.append(f"{_list(plain)} {verb} not draft")
    silent = {
        c.target for c in results.cells
        if drafts and c.drafting is None and is_speculative(results, c.target)
    }  # fmt: skip
    if silent:
        reasons.append(f"drafting of {_list(sorted(silent))} is unknown")
    slow = {c.target for c in results.cells if c.decode_tok_s is None}
    if slow:
        reasons.append(f"no request of {_list(sorted(slow))} gave a decode rate")
    return f": {'; '.join(reasons)}" if reasons else ""


def _targets(results: Results) -> list[str]:
    return list(dict.fromkeys(c.target for c in results.cells))


def _list(names: Sequence[str]) -> str:
    return ", ".join(printable(n, 40) for n in names)


def _where(places: Sequence[str]) -> str:
    shown = ", ".join(places[:3])
    return f"{shown} and {len(places) - 3} more" if len(places) > 3 else shown


def _subtitle(results: Results, cells: Sequence[Cell]) -> str:
    requests = [c.requests for c in cells]
    low, high = min(requests), max(requests)
    each = " each" if len(cells) > 1 else ""
    text = count(high, "request") if low == high else f"{low:,} to {high:,} requests"
    failed = sum(sum(c.errors.values()) for c in cells)
    text += each + (f", {failed:,} failed" if failed else "")
    return ", ".join((text, *load_of(results, cells[0])))


REFERENCE = "reference"


def _ttft(_: Results, cell: Cell) -> Figure:
    v = cell.ttft_ms
    return (NONE, None) if v is None else parts(v.median, v.low, v.high)


def _decode(_: Results, cell: Cell) -> Figure:
    v = cell.decode_tok_s
    return (NONE, None) if v is None else parts(v.median, v.low, v.high)


def _total(_: Results, cell: Cell) -> Figure:
    v = cell.total_tok_s
    return (NONE, None) if v is None else parts(v.value, v.low, v.high)


def _acceptance(_: Results, cell: Cell) -> Figure:
    d = cell.drafting
    return (NONE, None) if d is None else percent_parts(d.rate, d.rate_low, d.rate_high)


def _tokens_per_step(results: Results, cell: Cell) -> Figure:
    """Over all steps, so that speedup = tokens per step / step cost holds in the row."""
    value = cell.tokens_per_engine_step
    if value is None and cell.drafting is not None:
        value = cell.drafting.tokens_per_step
    if value is not None and not is_speculative(results, cell.target):
        return number(value, decimals=0 if value == 1 else 2), None
    return number(value, decimals=2), None


def _step_cost(_: Results, cell: Cell) -> Figure:
    v = cell.step_cost
    return (NONE, None) if v is None else ratio_parts(v.value, v.low, v.high, "")


def _speedup(results: Results, cell: Cell) -> Figure:
    v = cell.speedup
    if v is None:
        return (REFERENCE if cell.target == results.reference else NONE), None
    return parts(v.ratio, v.low, v.high, "x")


COLUMNS = (
    Column(("TTFT", "ms"), _ttft),
    Column(("decode", "tok/s"), _decode),
    Column(("total", "tok/s"), _total),
    Column(("acceptance", ""), _acceptance, drafts=True),
    Column(("tokens", "per step"), _tokens_per_step, drafts=True, interval=False),
    Column(("step", "cost"), _step_cost, drafts=True),
    Column(("speedup", ""), _speedup),
)
