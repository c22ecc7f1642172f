"""The results as CSV: one row per cell, units in the column names, empty for what is unknown."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from draftmeter.report.safe import spreadsheet

if TYPE_CHECKING:
    from draftmeter.record.results import Cell, Results

Value = str | int | float | None


def to_csv(results: Results) -> str:
    """A header and a row per cell; names are stable, figures are not rounded."""
    rows = [cell_row(results, cell) for cell in results.cells]
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def cell_row(results: Results, cell: Cell) -> dict[str, Value]:
    """The figures of one cell by column name."""
    info = results.targets.get(cell.target)
    row: dict[str, Value] = {
        "run": spreadsheet(results.run.id),
        "scenario": spreadsheet(cell.scenario),
        "target": spreadsheet(cell.target),
        "reference": spreadsheet(results.reference),
        "engine": _text(info.engine if info else None),
        "engine_version": _text(info.engine_version if info else None),
        "model": _text(info.model if info else None),
        "method": _text(info.method if info else None),
        "draft_tokens": info.draft_tokens if info else None,
    }
    row |= _measured(cell) | _drafting(cell)
    row["warnings"] = spreadsheet(" ".join(dict.fromkeys(w.code for w in cell.warnings)))
    row["trustworthy"] = "no" if any(w.severity == "error" for w in cell.warnings) else "yes"
    return row


def _measured(cell: Cell) -> dict[str, Value]:
    ttft, visible, decode = cell.ttft_ms, cell.visible_ttft_ms, cell.decode_tok_s
    speedup = cell.speedup
    return {
        "concurrency": cell.concurrency,
        "context_tokens": cell.context_tokens,
        "requests": cell.requests,
        "speed_requests": cell.speed_requests,
        "failed_requests": sum(cell.errors.values()),
        "completion_tokens": cell.completion_tokens,
        "ttft_ms_median": ttft.median if ttft else None,
        "ttft_ms_low": ttft.low if ttft else None,
        "ttft_ms_high": ttft.high if ttft else None,
        "ttft_ms_p95": ttft.p95 if ttft else None,
        "visible_ttft_ms_median": visible.median if visible else None,
        "visible_ttft_ms_low": visible.low if visible else None,
        "visible_ttft_ms_high": visible.high if visible else None,
        "visible_ttft_ms_p95": visible.p95 if visible else None,
        "decode_tok_s_median": decode.median if decode else None,
        "decode_tok_s_low": decode.low if decode else None,
        "decode_tok_s_high": decode.high if decode else None,
        "decode_tok_s_article": cell.decode_tok_s_article,
        "step_ms": cell.step_ms,
        "tokens_per_engine_step": cell.tokens_per_engine_step,
        "speedup_ratio": speedup.ratio if speedup else None,
        "speedup_low": speedup.low if speedup else None,
        "speedup_high": speedup.high if speedup else None,
        "speedup_pairs": speedup.pairs if speedup else None,
    }


def _drafting(cell: Cell) -> dict[str, Value]:
    d, cost = cell.drafting, cell.step_cost
    positions = d.position_acceptance if d else None
    return {
        "witness": d.witness if d else None,
        "drafts": d.drafts if d else None,
        "drafted_tokens": d.drafted if d else None,
        "accepted_tokens": d.accepted if d else None,
        "acceptance_rate": d.rate if d else None,
        "acceptance_rate_low": d.rate_low if d else None,
        "acceptance_rate_high": d.rate_high if d else None,
        "tokens_per_step": d.tokens_per_step if d else None,
        "position_acceptance": " ".join(map(str, positions)) if positions else None,
        "drafted_share": d.drafted_share if d else None,
        "step_cost": cost.value if cost else None,
        "step_cost_low": cost.low if cost else None,
        "step_cost_high": cost.high if cost else None,
        "break_even_rate": cell.break_even_rate,
    }


def _text(text: str | None) -> str | None:
    return None if text is None else spreadsheet(text)


COLUMNS = (
    "run", "scenario", "target", "reference", "engine", "engine_version", "model", "method",
    "draft_tokens", "concurrency", "context_tokens", "requests", "speed_requests",
    "failed_requests", "completion_tokens", "ttft_ms_median", "ttft_ms_low", "ttft_ms_high",
    "ttft_ms_p95", "visible_ttft_ms_median", "visible_ttft_ms_low", "visible_ttft_ms_high",
    "visible_ttft_ms_p95", "decode_tok_s_median", "decode_tok_s_low", "decode_tok_s_high",
    "decode_tok_s_article", "step_ms", "tokens_per_engine_step", "speedup_ratio", "speedup_low",
    "speedup_high", "speedup_pairs", "witness", "drafts", "drafted_tokens", "accepted_tokens",
    "acceptance_rate", "acceptance_rate_low", "acceptance_rate_high", "tokens_per_step",
    "position_acceptance", "drafted_share", "step_cost", "step_cost_low", "step_cost_high",
    "break_even_rate", "warnings", "trustworthy",
)  # fmt: skip
"""Column names and their order: a contract for people's scripts; new ones go to the end."""
