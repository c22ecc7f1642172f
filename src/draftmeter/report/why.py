"""Why it is that fast: bytes per step, ceilings, and where a ratio of sizes is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftmeter.report.numbers import NONE, number, percent, with_interval
from draftmeter.report.safe import printable

if TYPE_CHECKING:
    from draftmeter.record.results import Results, RooflineRow, Waterfall

HEADERS = ("target", "scenario", "GB/step", "drafts", "ms/step", "bytes ms", "ceiling", "reached")


def why_title(results: Results) -> str:
    """What the table below it shows, and with which bandwidth."""
    row = results.roofline[0]
    if row.bandwidth_gb_s is None:
        return "Bytes per step (name a device or a bandwidth for ceilings)"
    device = f"{printable(row.device, 50)}, " if row.device else ""
    return f"Bytes per step and ceilings ({device}{number(row.bandwidth_gb_s, decimals=0)} GB/s)"


def why_rows(results: Results) -> list[tuple[str, ...]]:
    """One row per target and scenario, as text; '-' where unknown."""
    return [
        (
            printable(row.target, 24),
            printable(row.scenario, 16),
            _gb(row.step_bytes),
            _gb(row.draft_bytes) if row.draft_bytes else NONE,
            number(row.step_ms),
            number(row.bytes_ms),
            number(row.ceiling_tok_s),
            percent(row.utilisation),
        )
        for row in results.roofline
    ]


def why_lines(results: Results) -> list[str]:
    """What follows from the table, in sentences made by rule."""
    lines = [_waterfall(w) for w in results.waterfall]
    lines += [line for row in results.roofline if (line := _split(row))]
    lines += list(dict.fromkeys(line for row in results.roofline if (line := _rest(row))))
    notes = {
        f"{printable(r.target, 40)}: {printable(n)}" for r in results.roofline for n in r.notes
    }
    return lines + sorted(notes)


def _waterfall(w: Waterfall) -> str:
    large, small = printable(w.large, 40), printable(w.small, 40)
    text = (
        f"{printable(w.scenario, 40)}: {small} reads {number(w.parameters_ratio)}x fewer "
        f"parameters per token than {large}, {number(w.bytes_ratio)}x fewer bytes, and is "
        f"{number(w.speed_ratio)}x as fast."
    )
    if w.overhead_ms is not None and w.effective_gb_s is not None and w.overhead_ms > 0:
        text += (
            f" Both fit {number(w.overhead_ms)} ms of fixed cost per step and "
            f"{number(w.effective_gb_s, decimals=0)} GB/s "
            "(two equations, two unknowns: plausible, not proven)."
        )
    return text


def _split(row: RooflineRow) -> str:
    """Where a speculative step's extra time goes: bytes, and the rest of each draft pass."""
    extra, rest = row.extra_ms, row.rest_ms_per_draft
    if extra is None or row.extra_bytes_ms is None or rest is None or extra.value <= 0:
        return ""
    return (
        f"{printable(row.target, 40)}, {printable(row.scenario, 40)}: a step takes "
        f"{with_interval(extra.value, extra.low, extra.high, 'ms')} more than a plain one: "
        f"{number(row.extra_bytes_ms)} ms are bytes at this bandwidth, and "
        f"{with_interval(rest.value, rest.low, rest.high, 'ms')} per drafted token are not "
        "(launches, sampling, waiting)."
    )


def _rest(row: RooflineRow) -> str:
    if row.bytes_ms is None or row.step_ms is None:
        return ""
    if row.bytes_ms > row.step_ms:
        return (
            f"{printable(row.target, 40)} moves its bytes faster than the bandwidth allows: "
            "the bandwidth, the files or the cache's type named are not what ran"
        )
    return ""


def _gb(value: float | None) -> str:
    return NONE if value is None else f"{value / 1e9:.3g}"
