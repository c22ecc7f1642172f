"""How sure the model is of its next token, in lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftmeter.report.numbers import count, percent_with_interval, ratio_with_interval
from draftmeter.report.safe import printable

if TYPE_CHECKING:
    from draftmeter.record.results import Estimate, Predictability, Results


def predictability_lines(results: Results) -> list[str]:
    """The text's certainty, the ceiling it sets for a drafter, and what is made of it."""
    return [_line(p) for p in results.predictability]


def _line(p: Predictability) -> str:
    drafter = f", {printable(p.drafter, 40)}" if p.drafter is not None else ""
    entropy = ratio_with_interval(p.entropy_nats.value, p.entropy_nats.low, p.entropy_nats.high)
    sure = (
        f"{printable(p.scenario, 40)}, {printable(p.target, 40)}{drafter}: the likeliest token "
        f"has {_share(p.p_max)} on average, entropy {entropy} nats "
        f"({count(p.tokens, 'token')} of {count(p.requests, 'request')})"
    )
    parts = [sure]
    if p.ceiling is not None:
        told = f"at most {_share(p.ceiling)} can be accepted at the first position"
        if p.first_position is not None:
            told += f", {_share(p.first_position)} were"
        parts.append(told)
    if p.drafter_loss is not None and p.text_loss is not None:
        parts.append(f"the text costs {_share(p.text_loss)}, the drafter {_share(p.drafter_loss)}")
    parts.append(printable(p.text))
    if p.correlation is not None:
        c = p.correlation
        r = ratio_with_interval(c.value, c.low, c.high)
        weak = c.low is None or c.high is None or c.low <= 0 <= c.high
        parts.append(
            f"a prompt's certainty and its acceptance correlate by {r}"
            + (": no evidence either way" if weak else "")
        )
    return "; ".join(parts) + "."


def _share(e: Estimate) -> str:
    return percent_with_interval(e.value, e.low, e.high)
