"""Sweeps over concurrency and context, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftmeter.report.numbers import number, percent, with_interval
from draftmeter.report.safe import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.record.results import Cell, Crossover, Results


def load_lines(results: Results) -> list[str]:
    """Where speculation stops paying, vLLM's table for it, and what context does."""
    lines = [_crossover(results, c) for c in results.crossovers]
    contexts: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in results.cells:
        if cell.context_tokens is not None and cell.drafting is not None:
            key = (cell.target, cell.scenario, cell.concurrency)
            contexts.setdefault(key, []).append(cell)
    return lines + [_context(cells) for cells in contexts.values() if len(cells) > 1]


def _crossover(results: Results, c: Crossover) -> str:
    place = f"{printable(c.target, 40)} on {printable(c.scenario, 40)}"
    if c.context_tokens is not None:
        place += f", {c.context_tokens:,} tokens of context"
    text = f"{place} {printable(c.text)}"
    if c.concurrency is not None:
        low = number(c.low) if c.low is not None else "below what was measured"
        high = number(c.high) if c.high is not None else "beyond what was measured"
        text += f" (95 %: from {low} to {high})"
    info = results.targets.get(c.target)
    if info is not None and info.engine == "vllm" and c.schedule:
        text += f'; "num_speculative_tokens_per_batch_size": {c.schedule}'
    return f"{text}."


def _context(cells: Sequence[Cell]) -> str:
    """Acceptance and speedup at each context (field case 24)."""
    first = cells[0]
    at = []
    for cell in sorted(cells, key=lambda c: c.context_tokens or 0):
        rate = percent(cell.drafting.rate if cell.drafting else None)
        speed = cell.speedup
        figure = with_interval(speed.ratio, speed.low, speed.high, "x") if speed else ""
        at.append(f"{cell.context_tokens:,}: {rate} {figure}".rstrip())
    return (
        f"{printable(first.target, 40)} on {printable(first.scenario, 40)}, acceptance and speedup "
        f"by tokens of context: {'; '.join(at)}."
    )
