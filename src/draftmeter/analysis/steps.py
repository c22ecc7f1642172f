"""Which token came in which step of the engine: free (an accepted draft) or paid for.

A speculative step that accepts m drafted tokens gives m + 1: the m are free, the last is the one
any step gives. Two kinds of engine show where a step ends: those that send a step as one chunk
(vLLM), and those that send token by token with a running count of accepted tokens (llama.cpp).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.record.types import RequestRecord, TargetInfo


@dataclass(frozen=True)
class Part:
    """The tokens of one chunk and how they came.

    ``step`` numbers the step that its first token belongs to, the prefill's being 0; ``begins``
    that this token is the step's first. ``free`` + ``paid`` are the chunk's tokens.
    """

    at_us: int
    piece: str
    kind: str
    free: int
    paid: int
    step: int
    begins: bool


@dataclass(frozen=True)
class Steps:
    """A response, step by step.

    Attributes:
        parts: one for each token-bearing chunk, in order.
        begins_us: when the first token of each step came, the prefill's first.
        tokens: how many tokens of each step reached the client.
        free, paid: tokens that were accepted drafts, and the others; together all tokens.
        cut: accepted tokens of the last step that lay beyond the end of the answer.
    """

    parts: tuple[Part, ...]
    begins_us: tuple[int, ...]
    tokens: tuple[int, ...]
    free: int
    paid: int
    cut: int = 0

    @property
    def gaps_ms(self) -> list[float]:
        """Time from each step's first token to the next step's, the prefill's step included."""
        return [(b - a) / 1e3 for a, b in pairwise(self.begins_us)]


def steps_of(record: RequestRecord, info: TargetInfo) -> Steps | str:
    """The steps of a response, or the reason why they cannot be told."""
    tokens, told = record.tokens, record.accepted_so_far
    if not record.at_us:
        return "no tokens came"
    if tokens is None or len(tokens) != len(record.at_us):
        return "the server does not say how many tokens a chunk carries"
    if told is not None and info.chunk_is_step is not True:
        rises = [b - a for a, b in pairwise([0, *told])]
        return _walk(record, tokens, rises + [0] * (len(tokens) - len(rises)))
    if info.speculative is False:
        return _walk(record, tokens, [0] * len(tokens))
    if info.chunk_is_step:
        return _chunks(record, tokens, info.draft_tokens)
    return f"{info.engine} does not tell which tokens came in one step"


def _walk(record: RequestRecord, tokens: Sequence[int], rises: Sequence[int]) -> Steps:
    """Token by token: a rise of the accepted count by m opens a step of m + 1 tokens.

    The engine counts a step's accepted tokens before it sends the step's first one. Without a
    rise, a step has one token.
    """
    parts: list[Part] = []
    begins_us: list[int] = []
    sizes: list[int] = []
    coming: deque[int] = deque()
    left, free_left = 0, 0  # of the open step: tokens in all, free ones among them
    total_free = 0
    columns = zip(record.at_us, record.pieces, record.kinds, tokens, rises, strict=True)
    for at_us, piece, kind, count, rise in columns:
        if rise > 0:
            coming.append(rise)
        free, begins = 0, left == 0 and count > 0
        step = len(sizes) if begins else max(len(sizes) - 1, 0)
        for _ in range(count):
            if left == 0:
                free_left = coming.popleft() if coming else 0
                left = free_left + 1
                begins_us.append(at_us)
                sizes.append(0)
            left -= 1
            sizes[-1] += 1
            if free_left > 0:
                free_left -= 1
                free += 1
        parts.append(Part(at_us, piece, kind, free, count - free, step, begins))
        total_free += free
    cut = free_left + sum(coming)
    paid = sum(tokens) - total_free
    return Steps(tuple(parts), tuple(begins_us), tuple(sizes), total_free, paid, cut)


def _chunks(record: RequestRecord, tokens: Sequence[int], draft_tokens: int | None) -> Steps | str:
    """One chunk is one step: all its tokens but one were drafted. The first is the prefill's."""
    carrying = [count for count in tokens if count > 0]
    if draft_tokens is not None and any(c > draft_tokens + 1 for c in carrying[1:]):
        return "chunks hold several steps at once: the client or a proxy was too slow"
    parts: list[Part] = []
    begins_us: list[int] = []
    sizes: list[int] = []
    columns = zip(record.at_us, record.pieces, record.kinds, tokens, strict=True)
    for at_us, piece, kind, count in columns:
        free = count - 1 if sizes and count > 0 else 0
        if count > 0:
            begins_us.append(at_us)
            sizes.append(count)
        step = max(len(sizes) - 1, 0)
        parts.append(Part(at_us, piece, kind, free, count - free, step, count > 0))
    free = sum(part.free for part in parts)
    return Steps(tuple(parts), tuple(begins_us), tuple(sizes), free, sum(tokens) - free)
