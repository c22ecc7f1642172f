"""Verdicts and recommendations as lines of text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from draftmeter.report.safe import printable

if TYPE_CHECKING:
    from draftmeter.record.results import Results, Verdict


def verdict_lines(results: Results) -> list[tuple[str, str]]:
    """Outcome and sentence of every verdict, failures first."""
    order = {"fail": 0, "undecided": 1, "pass": 2}
    found = sorted(results.verdicts, key=lambda v: order[v.outcome])
    return [(v.outcome, f"{_place(v)}: {printable(v.rule, 40)}: {printable(v.text, 300)}")
            for v in found]  # fmt: skip


def recommendation_lines(results: Results) -> list[str]:
    """What to run, each with what it accepts."""
    return [
        " ".join([printable(r.text, 300), *(f"{printable(c, 200)}." for c in r.accepted_costs)])
        for r in results.recommendations
    ]


def decision_text(results: Results) -> str:
    """All of it in at most 80 columns."""
    lines = [part for text in recommendation_lines(results) for part in textwrap.wrap(text, 80)]
    lines.append("")
    for outcome, text in verdict_lines(results):
        lines += textwrap.wrap(f"{outcome:<10} {text}", 80, subsequent_indent=" " * 11)
    return "\n".join(lines).strip("\n") + "\n"


def _place(v: Verdict) -> str:
    text = f"{printable(v.target, 40)} on {printable(v.scenario, 40)}"
    if v.concurrency != 1:
        text += f", {v.concurrency:,} at a time"
    if v.context_tokens is not None:
        text += f", {v.context_tokens:,} tokens of context"
    return text
