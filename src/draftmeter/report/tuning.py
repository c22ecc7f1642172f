"""The best draft length, in words and rows."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftmeter.report.numbers import (
    NONE,
    number,
    percent_with_interval,
    ratio_with_interval,
    with_interval,
)
from draftmeter.report.safe import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.decision.verify import Verified
    from draftmeter.record.results import Results, Tuning

HEADERS = ("K", "tokens per step", "step cost", "speedup", "")


@dataclass(frozen=True)
class Advice:
    """What a run says of the draft length of one or several targets on one scenario."""

    title: str
    answer: str
    details: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    flags: tuple[tuple[str, str], ...]


def advice_of(results: Results) -> list[Advice]:
    """What a run says of draft lengths; empty where it says nothing."""
    return advice(results.tuning)


def advice(tunings: Sequence[Tuning]) -> list[Advice]:
    """One entry for each scenario and family of targets that differ in K alone."""
    families: list[list[Tuning]] = []
    for tuning in tunings:
        same = next((f for f in families if _together(f[0], tuning)), None)
        if same is None:
            families.append([tuning])
        else:
            same.append(tuning)
    return [_advice(family) for family in families]


def tuning_text(tunings: Sequence[Tuning], found: Sequence[Verified]) -> str:
    """Every K of every family as a table of at most 80 columns, and what was tried."""
    parts = []
    for one in advice(tunings):
        lines = [one.title, one.answer, "", *_aligned([HEADERS, *one.rows]), "", *one.details]
        # Flags are for pasting: never broken.
        flags = [f"{who}: {flag}" for who, flag in one.flags]
        parts.append([*_wrapped(lines), *flags])
    if found:
        rows = [("scenario", "K", "predicted", "measured", "")]
        rows += [
            (
                f"{printable(v.scenario, 30)}, {printable(v.target, 20)}",
                str(v.draft_tokens),
                with_interval(v.predicted.value, v.predicted.low, v.predicted.high, "x"),
                with_interval(v.measured.value, v.measured.low, v.measured.high, "x")
                if v.measured
                else NONE,
                {True: "agree", False: "differ", None: ""}[v.inside],
            )
            for v in found
        ]
        parts.append(["Predicted and measured", *_aligned(rows)])
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _wrapped(lines: Sequence[str]) -> list[str]:
    """Prose at 80 columns; what is shorter, and tables with it, stays as it is."""
    return [
        part for line in lines for part in (textwrap.wrap(line, 80) if len(line) > 80 else [line])
    ]


def _together(one: Tuning, other: Tuning) -> bool:
    return (one.scenario, one.concurrency, one.context_tokens, one.predicted) == (
        other.scenario, other.concurrency, other.context_tokens, other.predicted,
    )  # fmt: skip


def _advice(family: Sequence[Tuning]) -> Advice:
    first = max(family, key=lambda t: t.measured_draft_tokens)
    names = ", ".join(printable(t.target, 40) for t in family)
    load = f", {first.concurrency:,} at a time" if first.concurrency != 1 else ""
    if first.context_tokens is not None:
        load += f", {first.context_tokens:,} tokens of context"
    return Advice(
        title=f"{printable(first.scenario, 40)}{load}: {names}",
        answer=_answer(first),
        details=tuple(_details(first)),
        rows=tuple(
            (
                str(p.draft_tokens),
                number(p.tokens_per_step, decimals=2),
                number(p.step_cost, decimals=2),
                with_interval(p.speedup, p.low, p.high, "x"),
                p.basis,
            )
            for p in first.predicted
        ),
        flags=tuple(first.flags.items()),
    )


def _answer(t: Tuning) -> str:
    """The best K with its speedup, and the ones that are as good as far as is known."""
    others = [str(k) for k in t.also_good if k > 0]
    if t.best_draft_tokens == 0:
        text = "Leave speculation off: no draft length makes this faster"
        return f"{text}, though K = {_or(others)} cannot be ruled out." if others else f"{text}."
    best = next(p for p in t.predicted if p.draft_tokens == t.best_draft_tokens)
    figure = with_interval(best.speedup, best.low, best.high, "x")
    text = f"Best K: {best.draft_tokens}, {figure} ({best.basis})"
    if others:
        text += f"; K = {_or(others)} may be as good"
    if 0 in t.also_good:
        text += ", and so may be no speculation at all"
    return f"{text}."


def _details(t: Tuning) -> list[str]:
    fixed, one = t.fixed_cost, t.pass_cost
    what = "between" if len(t.first_position) < 2 else "95 %"
    lines = [
        f"A step costs 1 + s + c K plain ones: s = "
        f"{_span(fixed.value, fixed.low, fixed.high, what)}, "
        f"c = {_span(one.value, one.low, one.high, what)}"
        + (f", off by at most {number(t.residual)}" if t.residual is not None else "")
        + "."
    ]
    if len(t.first_position) > 1:
        rates = ", ".join(
            f"{percent_with_interval(e.value, e.low, e.high)} at K = {k}"
            for k, e in t.first_position.items()
        )
        lines.append(f"Acceptance at the first position: {rates}.")
    lines += [f"{printable(note)[:1].upper()}{printable(note)[1:]}." for note in t.notes]
    if t.next_draft_tokens is not None:
        lines.append(f"Measuring K = {t.next_draft_tokens} next would narrow this most.")
    return lines


def _span(value: float, low: float | None, high: float | None, what: str) -> str:
    if low is None or high is None:
        return number(value, decimals=3)
    if what == "between":
        return f"{number(low, decimals=3)} to {number(high, decimals=3)}"
    return ratio_with_interval(value, low, high)


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
