"""The results as GitHub Markdown: sentences, a table per scenario, warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftmeter.report.decision import recommendation_lines, verdict_lines
from draftmeter.report.load import load_lines
from draftmeter.report.numbers import NONE
from draftmeter.report.predictability import predictability_lines
from draftmeter.report.safe import markdown
from draftmeter.report.tables import (
    Block,
    Column,
    Figure,
    blocks_of,
    columns_of,
    doubtful,
    footnotes,
    grouped_warnings,
    noise_lines,
    visible_ttft,
)
from draftmeter.report.tuning import HEADERS as K_HEADERS
from draftmeter.report.tuning import advice_of
from draftmeter.report.why import HEADERS, why_lines, why_rows, why_title
from draftmeter.report.words import answers

if TYPE_CHECKING:
    from draftmeter.record.results import Results


def to_markdown(results: Results) -> str:
    """A page that stands in a README, an issue or a pull request as it is."""
    columns = columns_of(results)
    parts = [f"# {markdown(results.run.name) or 'draftmeter'}"]
    found = answers(results)
    if found:
        parts.append("\n".join(
            f"- **{markdown(a.label)}**: **{markdown(a.sentences[0])}** "
            f"{markdown(' '.join(a.sentences[1:]))}".rstrip()
            for a in found
        ))  # fmt: skip
    else:
        parts.append("Nothing was measured.")
    if results.verdicts:
        parts.append("## Decision\n\n" + _list(recommendation_lines(results)))
        rows = [_row([outcome, markdown(text)]) for outcome, text in verdict_lines(results)]
        parts.append("\n".join([_row(["outcome", "rule"]), _row(["---"] * 2), *rows]))
    for block in blocks_of(results):
        parts.append(f"## {markdown(block.title)}\n\n{markdown(block.subtitle)}")
        parts.append(_table(results, block, columns))
        parts.append(_list(visible_ttft(block)))
    predictable = predictability_lines(results)
    if predictable:
        parts.append("## How predictable the text is\n\n" + _list(predictable))
    under_load = load_lines(results)
    if under_load:
        parts.append("## Under load\n\n" + _list(under_load))
    for advice in advice_of(results):
        parts.append(f"## Draft length: {markdown(advice.title)}\n\n{markdown(advice.answer)}")
        rows = [_row([markdown(part) for part in row]) for row in advice.rows]
        parts.append("\n".join([_row(list(K_HEADERS)), _row(["---"] * len(K_HEADERS)), *rows]))
        parts.append(_list([*advice.details, *(f"{who}: {flag}" for who, flag in advice.flags)]))
    if results.roofline:
        parts.append(f"## {markdown(why_title(results))}")
        rows = [_row([markdown(part) for part in row]) for row in why_rows(results)]
        parts.append("\n".join([_row(list(HEADERS)), _row(["---"] * len(HEADERS)), *rows]))
        parts.append(_list(why_lines(results)))
    noise = noise_lines(results)
    if noise:
        parts.append("## Machine noise\n\n" + _list(noise))
    warnings = grouped_warnings(results)
    if warnings:
        lines = [f"{s}: {text}" + (f" ({where})" if where else "") for s, text, where in warnings]
        parts.append("## Warnings\n\n" + _list(lines))
    run = results.run
    made = f"{run.id}, {run.started}, draftmeter {run.draftmeter}"
    parts.append(
        "\n\n".join(markdown(n) for n in [*footnotes(results, columns, "In brackets"), made])
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(results: Results, block: Block, columns: list[Column]) -> str:
    lines = [
        _row(["target", *(c.name for c in columns)]),
        _row(["---", *("---:" for _ in columns)]),
    ]
    for cell in block.cells:
        name = markdown(cell.target) + (" **!**" if doubtful(cell) else "")
        lines.append(_row([name, *(_figure(c.figure(results, cell)) for c in columns)]))
    return "\n".join(lines)


def _figure(figure: Figure) -> str:
    text, interval = figure
    return f"{text} ({interval})" if interval is not None and text != NONE else text


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {markdown(line)}" for line in lines)
