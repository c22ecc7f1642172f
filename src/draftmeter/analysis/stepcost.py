"""What a speculative step costs, in plain steps, and the acceptance at which it pays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from draftmeter.analysis.intervals import log_ratio_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.record.results import Estimate


def decode_steps(decode_tokens: int, accepted: int, drafts: int | None) -> int:
    """Engine steps that decoding took: decode tokens - accepted (field case 21c).

    Every step gives one token of its own; the rest were accepted drafts. ``decode_tokens``
    leaves out the first chunk, which the prefill gave. Accepted tokens beyond the output limit
    are counted by engines but never sent, so the difference can be some steps short; every draft
    was a step, so there are at least ``drafts``.
    """
    return max(decode_tokens - accepted, drafts or 0, 1 if decode_tokens > 0 else 0)


def step_cost_value(tokens_per_step: float, plain_tok_s: float, spec_tok_s: float) -> float:
    """C = speculative step's time / plain step's = tokens per step x plain / spec tok/s."""
    return tokens_per_step * plain_tok_s / spec_tok_s


def step_cost(
    tokens_per_step: Sequence[float], log_ratios: Sequence[float], level: float = 0.95
) -> Estimate | None:
    """Step cost over paired requests: the geometric mean of each pair's own, Student t on logs.

    ln C_i = ln(tokens per engine step)_i - ln(speedup)_i. Both sides are taken from the same
    request, so a request with many accepted tokens, which is fast for that reason, does not move
    C; var(ln C) = var(ln tokens per step) + var(ln speedup) - 2 cov, the covariance included.
    (Dividing tokens per step summed over requests by a mean speedup would mix two kinds of mean
    and be off by half the variance of the logs.)
    """
    pairs = zip(tokens_per_step, log_ratios, strict=True)
    return log_ratio_interval([math.log(al) - d for al, d in pairs], level)


def break_even_rate(cost: float, draft_tokens: int) -> float:
    """r* = (C - 1) / K: below this acceptance rate a draft of K tokens costs more than it brings.

    Above 1 no acceptance can pay (field case 22).
    """
    return (cost - 1) / draft_tokens


def step_ms(tokens_per_step: float, decode_tok_s: float) -> float:
    """Milliseconds per engine step = 1000 x tokens per engine step / decode tok/s."""
    return 1000 * tokens_per_step / decode_tok_s
