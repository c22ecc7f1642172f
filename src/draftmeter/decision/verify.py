"""A predicted speedup beside what was then measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from draftmeter.record.results import DraftLength, Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.record.results import Results, Tuning


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction and its measurement. ``inside``: their intervals have values in common."""

    target: str
    scenario: str
    draft_tokens: int
    predicted: Estimate
    measured: Estimate | None
    inside: bool | None


def proposed(tunings: Sequence[Tuning]) -> list[tuple[Tuning, int]]:
    """Which K to try for whom: each scenario's best, or where that is measured, the next one.

    One target of each family that differs in K alone; at most one entry per target and K.
    """
    found: dict[tuple[str, int], tuple[Tuning, int]] = {}
    for tuning in tunings:
        k = _untried(tuning)
        heads = {
            t.target
            for t in tunings
            if t.predicted == tuning.predicted and t.scenario == tuning.scenario
        }
        if k is not None and tuning.target == min(heads):
            found.setdefault((tuning.target, k), (tuning, k))
    return list(found.values())


def _untried(tuning: Tuning) -> int | None:
    measured = {p.draft_tokens for p in tuning.predicted if p.basis == "measured"}
    best = tuning.best_draft_tokens
    return best if best > 0 and best not in measured else tuning.next_draft_tokens


def verified(
    tunings: Sequence[Tuning], tried: Sequence[tuple[str, int, str]], results: Results
) -> list[Verified]:
    """For each (target, K, name it was measured under), every scenario's two figures."""
    found = []
    for target, k, name in tried:
        for tuning in tunings:
            if tuning.target != target:
                continue
            guess = next((p for p in tuning.predicted if p.draft_tokens == k), None)
            if guess is not None:
                found.append(_beside(tuning, guess, name, results))
    return found


def _beside(tuning: Tuning, guess: DraftLength, name: str, results: Results) -> Verified:
    cell = next(
        (
            c
            for c in results.cells
            if (c.target, c.scenario, c.concurrency, c.context_tokens)
            == (name, tuning.scenario, tuning.concurrency, tuning.context_tokens)
        ),
        None,
    )
    speedup = cell.speedup if cell is not None else None
    predicted = Estimate(guess.speedup, guess.low, guess.high)
    measured = Estimate(speedup.ratio, speedup.low, speedup.high) if speedup is not None else None
    return Verified(
        target=tuning.target,
        scenario=tuning.scenario,
        draft_tokens=guess.draft_tokens,
        predicted=predicted,
        measured=measured,
        inside=_overlap(predicted, measured),
    )


def _overlap(one: Estimate, other: Estimate | None) -> bool | None:
    if other is None or None in (one.low, one.high, other.low, other.high):
        return None
    return (one.low or 0) <= (other.high or 0) and (other.low or 0) <= (one.high or 0)
