"""Requests of two targets that were given the same prompt, and the ratios of their rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from draftmeter.analysis.intervals import stein_interval
from draftmeter.analysis.timing import LONG_ENOUGH_TOKENS, decode_of
from draftmeter.record.results import Speedup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from draftmeter.record.types import RequestRecord

PairKey = tuple[str, int, int | None, int]
"""Scenario, concurrency, context in tokens, pair."""


def pair_key(record: RequestRecord) -> PairKey:
    """What two requests must share to be compared."""
    return record.scenario, record.concurrency, record.context_tokens, record.pair


def speed_of(record: RequestRecord) -> float | None:
    """Decode tok/s of a request that may count for speed; None for failed and short ones."""
    if record.error is not None or (record.completion_tokens or 0) < LONG_ENOUGH_TOKENS:
        return None
    return decode_of(record).tok_s


def speeds(records: Iterable[RequestRecord]) -> dict[PairKey, float]:
    """Decode tok/s by pair, of the requests that count for speed."""
    found = {}
    for record in records:
        rate = speed_of(record)
        if rate is not None:
            found[pair_key(record)] = rate
    return found


def log_ratios(
    measured: Mapping[PairKey, float], reference: Mapping[PairKey, float]
) -> dict[PairKey, float]:
    """ln(measured / reference) for each pair that has both, in order of pairs."""
    shared = sorted(measured.keys() & reference.keys(), key=lambda key: key[3])
    return {key: math.log(measured[key] / reference[key]) for key in shared}


def speedup_of(
    measured: Mapping[PairKey, float],
    reference: Mapping[PairKey, float],
    experiment: Mapping[str, Any],
) -> Speedup | None:
    """Paired ratio of decode rates; Stein's interval where a pilot set the number of pairs."""
    d = log_ratios(measured, reference)
    pilot = _pilot(experiment)
    first = [v for key, v in d.items() if pilot is None or key[3] < pilot]
    rest = [v for key, v in d.items() if pilot is not None and key[3] >= pilot]
    estimate = stein_interval(first, rest)
    if estimate is None:
        return None
    return Speedup(ratio=estimate.value, low=estimate.low, high=estimate.high, pairs=len(d))


def _pilot(experiment: Mapping[str, Any]) -> int | None:
    requests = experiment.get("requests")
    if not isinstance(requests, Mapping) or requests.get("count") is not None:
        return None
    pilot = requests.get("pilot")
    return pilot if isinstance(pilot, int) else None
