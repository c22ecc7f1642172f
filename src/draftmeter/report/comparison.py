"""A comparison of two runs: for terminals, for GitHub, for whatever reads JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from draftmeter.decision.compare import worst
from draftmeter.report.safe import markdown, printable

if TYPE_CHECKING:
    from draftmeter.decision.compare import Change, Comparison

_METRICS = {"slower": "decode speed", "acceptance": "acceptance", "ttft": "TTFT"}
_VERDICTS = {
    "fail": "The gate is closed: something got worse than allowed.",
    "undecided": "Undecided: not everything could be told from so few requests.",
    "pass": "The gate is open: nothing got worse than allowed.",
    "not asked": "No gate was asked for.",
}


def to_text(comparison: Comparison) -> str:
    """In at most 80 columns."""
    lines = [_VERDICTS[worst(comparison.changes)], ""]
    place = ""
    for change in comparison.changes:
        if _place(change) != place:
            place = _place(change)
            lines.append(place[:80])
        outcome = "" if change.outcome == "not asked" else change.outcome
        lines.append(f"  {outcome:<10}{_METRICS[change.metric]:<13} {printable(change.text, 55)}")
    lines += [
        "",
        f"{printable(comparison.candidate, 60)} against {printable(comparison.baseline, 60)}",
    ]
    lines += [printable(note, 160) for note in comparison.notes]
    return "\n".join(lines) + "\n"


def to_markdown(comparison: Comparison) -> str:
    """A summary for a pull request or ``$GITHUB_STEP_SUMMARY``: the verdict, then a table."""
    rows = ["| outcome | target | scenario | metric | change (95 %) |", "|---|---|---|---|---|"]
    for c in comparison.changes:
        cells = (c.outcome, c.target, _load(c), _METRICS[c.metric], c.text)
        rows.append(f"| {' | '.join(markdown(cell) for cell in cells)} |")
    tail = [f"{markdown(comparison.candidate)} against {markdown(comparison.baseline)}"]
    tail += [markdown(note) for note in comparison.notes]
    verdict = _VERDICTS[worst(comparison.changes)]
    return f"**{verdict}**\n\n" + "\n".join(rows) + "\n\n" + "\n\n".join(tail) + "\n"


def to_junit(comparison: Comparison) -> bytes:
    """JUnit XML: a suite per scenario, a case per target and metric that was asked for."""
    root = ET.Element("testsuites", name="draftmeter compare")
    suites: dict[str, list[Change]] = {}
    for change in comparison.changes:
        if change.outcome != "not asked":
            suites.setdefault(_load(change), []).append(change)
    for name, changes in suites.items():
        failed = sum(c.outcome == "fail" for c in changes)
        skipped = sum(c.outcome == "undecided" for c in changes)
        suite = ET.SubElement(
            root, "testsuite", name=name, tests=str(len(changes)), failures=str(failed),
            skipped=str(skipped), errors="0",
        )  # fmt: skip
        for c in changes:
            case = ET.SubElement(
                suite, "testcase", classname=printable(c.target, 100), name=_METRICS[c.metric]
            )
            if c.outcome != "pass":
                kind = "failure" if c.outcome == "fail" else "skipped"
                ET.SubElement(case, kind, message=printable(c.text, 300))
    text: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _place(c: Change) -> str:
    return f"{_load(c)}: {printable(c.target, 40)}, {c.pairs:,} pairs"


def _load(c: Change) -> str:
    text = printable(c.scenario, 40)
    if c.concurrency != 1:
        text += f", {c.concurrency:,} at a time"
    if c.context_tokens is not None:
        text += f", {c.context_tokens:,} tokens of context"
    return text
