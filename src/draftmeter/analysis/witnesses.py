"""What each witness says of one request's drafting: the counters, the response, the stream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from draftmeter.record.types import (
    CounterRecord,
    CounterSnapshot,
    DraftCounts,
    RequestRecord,
    TargetInfo,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Fault = Literal["missing", "unsettled", "reset", "absent", "coalesced"]


@dataclass(frozen=True)
class Testimony:
    """One witness on one request.

    Attributes:
        counts: the drafting it saw; None when it says nothing or must not be believed.
        generated: counters only: tokens the server made in the meantime, for anybody.
        fault: why there are no counts. missing: no reading; unsettled: still moving, or behind
            the response (field case 16); reset: the server restarted (14); absent: read, but
            without drafting series (18); coalesced: several steps in one chunk.
        detail: the fault in words, where there are any.
    """

    counts: DraftCounts | None = None
    generated: float | None = None
    fault: Fault | None = None
    detail: str | None = None


def longest_draft(info: TargetInfo, records: Sequence[RequestRecord]) -> int | None:
    """K: the most tokens one draft can hold, as told or as seen step by step; else None."""
    steps = [max(r.drafted_steps) for r in records if r.drafted_steps]
    told = [] if info.draft_tokens is None else [info.draft_tokens]
    return max([*told, *steps], default=None)


def from_counters(
    record: RequestRecord,
    before: CounterRecord | None,
    after: CounterRecord | None,
    draft_tokens: int | None,
) -> Testimony:
    """The difference of two readings around a request.

    A series that appears in between began at zero. Engines that count steps and generated tokens
    but not accepted ones (SGLang, field case 21b): accepted = generated - 1 - drafts, for the first
    token comes from the prefill; drafted = K x drafts.
    """
    if before is None or after is None or before.snapshot is None or after.snapshot is None:
        problems = [c.problem for c in (before, after) if c is not None and c.problem]
        return Testimony(fault="missing", detail=problems[0] if problems else None)
    old, new = before.snapshot, after.snapshot
    if _was_reset(old, new):
        return Testimony(fault="reset")
    generated = _moved(old.generation_tokens, new.generation_tokens)
    if not after.settled:
        return Testimony(generated=generated, fault="unsettled")
    ours = record.completion_tokens
    slack = 1 + (draft_tokens or 0)
    if generated is not None and ours is not None and generated < ours - slack:
        return Testimony(generated=generated, fault="unsettled", detail="behind the response")
    drafts, drafted = _moved(old.drafts, new.drafts), _moved(old.drafted, new.drafted)
    accepted = _moved(old.accepted, new.accepted)
    if drafts is None and drafted is None and accepted is None:
        return Testimony(generated=generated, fault="absent")
    if accepted is None and drafts is not None and generated is not None:
        accepted = max(0.0, generated - 1 - drafts) if drafts else 0.0
    if drafted is None and drafts is not None and draft_tokens is not None:
        drafted = drafts * draft_tokens
    positions = None
    if new.accepted_at is not None:
        pairs = zip_longest(old.accepted_at or [], new.accepted_at, fillvalue=0.0)
        positions = [round(b - a) for a, b in pairs]
    counts = DraftCounts(_whole(drafts), _whole(drafted), _whole(accepted), positions)
    return Testimony(counts, generated)


def from_response(record: RequestRecord) -> Testimony:
    """The response's own account; positions from its step-by-step lists where it has them."""
    told = record.drafting
    if told is None:
        return Testimony()
    accepted_at, drafted_at = told.accepted_at, told.drafted_at
    if record.accepted_steps and accepted_at is None:
        accepted_at = _at_least(record.accepted_steps)
    if record.drafted_steps and drafted_at is None and len(set(record.drafted_steps)) > 1:
        drafted_at = _at_least(record.drafted_steps)
    return Testimony(DraftCounts(told.drafts, told.drafted, told.accepted, accepted_at, drafted_at))


def from_stream(record: RequestRecord, info: TargetInfo) -> Testimony:
    """Tokens per chunk, where one chunk is one engine step.

    Each chunk after the first is taken for a draft verified (an upper bound where not every
    step drafts): its tokens but one were accepted. The last
    step may have been cut at the output limit, so accepted is short by up to K. A chunk of more
    than K + 1 tokens holds several steps: then the chunks say nothing.
    """
    tokens, limit = record.tokens, info.draft_tokens
    if not info.chunk_is_step or info.speculative is False or not tokens:
        return Testimony()
    steps = [count for count in tokens if count > 0][1:]
    if limit is not None and any(count > limit + 1 for count in steps):
        return Testimony(fault="coalesced")
    accepted = [count - 1 for count in steps]
    positions = _at_least(accepted)
    positions += [0] * ((limit or 0) - len(positions))
    drafted = None if limit is None else limit * len(steps)
    return Testimony(DraftCounts(len(steps), drafted, sum(accepted), positions))


def too_many(
    counts: DraftCounts | None, generated: float | None, ours: int | None, draft_tokens: int | None
) -> bool:
    """Do the counters hold more than our request can have caused (field case 15)?

    The server made more tokens than we got, beyond one step's worth of slack; or
    drafts + accepted > N - 1 + K + 1: each draft gives a token of its own and the accepted ones,
    the first token comes from the prefill, and the last step may go K past the limit.
    """
    if ours is None:
        return False
    slack = 1 + (draft_tokens or 0)
    if generated is not None and generated > ours + slack:
        return True
    if counts is None or counts.drafts is None or counts.accepted is None:
        return False
    if draft_tokens is None:
        slack += _mean_draft(counts)
    return counts.drafts + counts.accepted > ours - 1 + slack


def agree(one: DraftCounts, other: DraftCounts, draft_tokens: int | None) -> bool:
    """Do two witnesses tell the same of a request, within the counting error?

    The error is one draft, and as many tokens as a draft holds (the last step, cut at the
    output limit). Quantities that only one of them knows are not compared.
    """
    longest = draft_tokens
    if longest is None:
        positions = max(len(one.accepted_at or []), len(other.accepted_at or []))
        longest = max(positions, _mean_draft(one), _mean_draft(other), 1)
    checks = (
        (one.drafts, other.drafts, 1),
        (one.drafted, other.drafted, longest),
        (one.accepted, other.accepted, longest),
    )
    return all(a is None or b is None or abs(a - b) <= slack for a, b, slack in checks)


def agrees_with_stream(told: DraftCounts, stream: DraftCounts, draft_tokens: int | None) -> bool:
    """Does a witness agree with the chunks of the stream, within the counting error?

    The stream shows steps and the tokens they gave, not which of them had a draft: n-gram
    drafts are made in few steps. So the accepted tokens must be the same, and there can be no
    more drafts than steps.
    """
    if told.drafts is not None and stream.drafts is not None and told.drafts > stream.drafts + 1:
        return False
    return agree(
        DraftCounts(accepted=told.accepted, accepted_at=told.accepted_at),
        DraftCounts(accepted=stream.accepted, accepted_at=stream.accepted_at),
        draft_tokens,
    )


def _mean_draft(counts: DraftCounts) -> int:
    """Tokens of a draft on average, rounded up: what can be said of its length without K."""
    if not counts.drafts:
        return 0
    return -(-(counts.drafted or counts.accepted or 0) // counts.drafts)


def _was_reset(old: CounterSnapshot, new: CounterSnapshot) -> bool:
    if old.created is not None and new.created is not None and old.created != new.created:
        return True
    pairs = [
        (old.drafts, new.drafts),
        (old.drafted, new.drafted),
        (old.accepted, new.accepted),
        (old.generation_tokens, new.generation_tokens),
        (old.prompt_tokens, new.prompt_tokens),
        *zip_longest(old.accepted_at or [], new.accepted_at or []),
    ]
    return any(a is not None and a > 0 and (b is None or b < a) for a, b in pairs)


def _moved(old: float | None, new: float | None) -> float | None:
    return None if new is None else new - (old or 0.0)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _at_least(lengths: Sequence[int]) -> list[int]:
    """How many of ``lengths`` exceed 0, 1, 2 .."""
    return [sum(length > i for length in lengths) for i in range(max(lengths, default=0))]
