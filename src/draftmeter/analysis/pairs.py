"""Requests of two targets that were given the same prompt, and the ratios of their rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from draftmeter.analysis.timing import LONG_ENOUGH_TOKENS, decode_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
