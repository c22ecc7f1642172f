"""How many pairs are enough: Stein's two stages. Never "stop when it looks good".

Stopping at the first significant look gives 32 % false positives, and stopping when the interval
is narrow enough a coverage of 0.90 instead of 0.95 (simulated; theory, 6.4). Here the number is
computed once, after a pilot of fixed size, and the final interval knows of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from draftmeter.analysis.intervals import MINIMUM_CLUSTERS, mean_and_sd, t_quantile
from draftmeter.analysis.pairs import log_ratios, speeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.record.types import RequestRecord


def pairs_needed(pilot_log_ratios: Sequence[float], precision: float) -> int:
    """Pairs in all for an interval of half-width ``precision`` (0.03: a factor of 1.03).

    n = max(n0, ceil((t_{n0-1} s / h)^2)), h = ln(1 + precision)
    (Stein, Ann. Math. Stat. 16, 1945). A pilot of fewer than three usable pairs says nothing
    of s: then n0 is returned, and the results will warn.

    Raises:
        ValueError: ``precision`` is not above 0.
    """
    if not precision > 0:
        raise ValueError(f"precision must be above 0, not {precision}")
    n0 = len(pilot_log_ratios)
    if n0 < MINIMUM_CLUSTERS:
        return n0
    wanted = t_quantile(0.975, n0 - 1) * mean_and_sd(pilot_log_ratios)[1] / math.log1p(precision)
    return max(n0, math.ceil(wanted * wanted))


def pairs_wanted(records: Sequence[RequestRecord], reference: str, precision: float) -> int:
    """Pairs in all that a scenario needs, judged from its pilot: the most any target needs.

    Without a second target, the precision is that of the reference's own rate (log rates).
    """
    by_target: dict[str, list[RequestRecord]] = {}
    for record in records:
        if record.phase == "measure":
            by_target.setdefault(record.target, []).append(record)
    base = speeds(by_target.pop(reference, []))
    if not by_target:
        return pairs_needed([math.log(rate) for rate in base.values()], precision)
    return max(
        pairs_needed(list(log_ratios(speeds(measured), base).values()), precision)
        for measured in by_target.values()
    )
