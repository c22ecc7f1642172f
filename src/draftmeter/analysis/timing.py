"""One request's times: when its tokens came, and how fast. Chunks are never counted as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftmeter.record.types import RequestRecord

LONG_ENOUGH_TOKENS = 32
"""Below this many completion tokens a decode rate is noise (field case 10)."""

_BURST_US = 5_000
_BURST_GAP_US = 200
_BURST_CHUNKS = 8
_TAIL_CHARS = 1_200
_LOOP_CHARS = 120
_LOOP_REPEATS = 4


@dataclass(frozen=True)
class Decode:
    """How fast tokens came after the first ones.

    Attributes:
        tokens: tokens that came after the first chunk; None when counts are unknown.
        seconds: last token's time - first token's time.
        tok_s: ``tokens / seconds``.
        tok_s_article: ``completion_tokens / seconds``, the formula of the article this tool
            starts from; too high by ``first_chunk_tokens / tokens``.
        first_chunk_tokens: tokens of the first token-bearing chunk (and of chunks that came in
            the same read): they belong to TTFT (field case 2).
        first_chunk_assumed: only the total is known, so the first chunk is taken for one token;
            if it held m, ``tok_s`` is too high by the factor ``(N-1)/(N-m)``.
        reason: why ``tok_s`` is None.
        note: counts that contradict each other, in words.
    """

    tokens: int | None
    seconds: float | None
    tok_s: float | None
    tok_s_article: float | None
    first_chunk_tokens: int | None
    first_chunk_assumed: bool
    reason: str | None
    note: str | None = None


@dataclass(frozen=True)
class RequestTiming:
    """Times and rates of one request; see ``Decode`` for the rates.

    Attributes:
        ttft_ms: request sent to first token-bearing chunk of any kind (field cases 3, 6).
        visible_ttft_ms: to the first content text (not reasoning); None when none came.
        decode_s: last token's time - first token's time.
        completion_tokens: as the server counts them; None when it does not.
        reason: why ``decode_tok_s`` is None.
        long_enough: there are enough tokens for a decode rate to mean something.
        buffered: the chunks came in one burst at the end (field case 11): something on the way
            holds the stream back, and neither TTFT nor rate can be measured through it.
        looped: the text ends in a short passage repeated over and over (field case 21d).
        notes: contradictions found, in words.
    """

    ttft_ms: float | None
    visible_ttft_ms: float | None
    decode_tok_s: float | None
    decode_tok_s_article: float | None
    decode_s: float | None
    decode_tokens: int | None
    completion_tokens: int | None
    first_chunk_tokens: int | None
    first_chunk_assumed: bool
    reason: str | None
    long_enough: bool
    buffered: bool
    looped: bool
    notes: tuple[str, ...]


def timing_of(record: RequestRecord, *, long_enough: int = LONG_ENOUGH_TOKENS) -> RequestTiming:
    """All times of a request. What cannot be had is None, and ``reason`` says why."""
    decode = decode_of(record)
    total = record.completion_tokens
    return RequestTiming(
        ttft_ms=record.at_us[0] / 1e3 if record.at_us else None,
        visible_ttft_ms=_visible_ttft_ms(record),
        decode_tok_s=decode.tok_s,
        decode_tok_s_article=decode.tok_s_article,
        decode_s=decode.seconds,
        decode_tokens=decode.tokens,
        completion_tokens=total,
        first_chunk_tokens=decode.first_chunk_tokens,
        first_chunk_assumed=decode.first_chunk_assumed,
        reason=decode.reason,
        long_enough=total is not None and total >= long_enough,
        buffered=is_buffered(record.at_us),
        looped=is_looped("".join(record.pieces[-_TAIL_CHARS:])),
        notes=(decode.note,) if decode.note else (),
    )


def decode_of(record: RequestRecord) -> Decode:
    """Decode rate = (completion tokens - tokens of the first chunk) / (last - first token time).

    The end of the stream is the last token, not the usage line or ``[DONE]`` (field case 11b).
    Where counts per chunk and the final usage disagree, usage is the total and a note is kept.
    """
    total, counts, at_us = record.completion_tokens, _counts(record), record.at_us
    if not at_us:
        return _no_rate("no tokens came")
    if total is None:
        return _no_rate("the server states no token counts, and chunks are not tokens")
    carrying = [i for i, count in enumerate(counts) if count > 0] if counts else []
    start, end = (carrying[0], carrying[-1]) if carrying else (0, len(at_us) - 1)
    assumed = not carrying
    # Chunks that came in one read have one time: none of them is decoding yet.
    first = (
        1 if assumed else sum(c for c, at in zip(counts, at_us, strict=True) if at == at_us[start])
    )
    seconds = (at_us[end] - at_us[start]) / 1e6
    tokens = total - first
    note = None
    if carrying and sum(counts) != total:
        note = f"chunks carried {sum(counts)} tokens, usage says {total}; usage is used"
    reason = None
    if is_buffered(at_us):
        reason = "the stream was held back and came at once"
    elif tokens <= 0 or seconds <= 0:
        reason = "all tokens came at once, there is no decode time"
    if reason is not None:
        return Decode(max(tokens, 0), max(seconds, 0.0), None, None, first, assumed, reason, note)
    return Decode(tokens, seconds, tokens / seconds, total / seconds, first, assumed, None, note)


def is_buffered(at_us: list[int]) -> bool:
    """Did nine tenths of the chunks come within 5 ms, at the end, without a pause between them?

    A pause is 0.2 ms on average: 5000 chunks a second, which no engine makes in one stream.
    """
    if len(at_us) < _BURST_CHUNKS:
        return False
    early = len(at_us) // 10
    span_us = at_us[-1] - at_us[early]
    in_burst = len(at_us) - early - 1
    return (
        span_us <= min(_BURST_US, _BURST_GAP_US * in_burst) and at_us[early] >= 0.8 * at_us[-1] > 0
    )


def is_looped(text: str) -> bool:
    """Does the text end in a passage repeated four times or more, over 120 characters or more?

    The periods of all suffixes are had at once from the border table of the reversed tail
    (Knuth, Morris, Pratt 1977): the suffix of length n has period n - border[n].
    """
    tail = text[-_TAIL_CHARS:][::-1]
    borders = [0] * len(tail)
    length = 0
    for i in range(1, len(tail)):
        while length and tail[i] != tail[length]:
            length = borders[length - 1]
        if tail[i] == tail[length]:
            length += 1
        borders[i] = length
        size = i + 1
        if size >= _LOOP_CHARS and size >= _LOOP_REPEATS * (size - length):
            return True
    return False


def _visible_ttft_ms(record: RequestRecord) -> float | None:
    for at, kind, piece in zip(record.at_us, record.kinds, record.pieces, strict=False):
        if kind == "c" and piece:
            return at / 1e3
    return None


def _counts(record: RequestRecord) -> list[int]:
    """Tokens per chunk, or an empty list where they cannot be matched with the chunks' times."""
    if record.tokens is None or len(record.tokens) != len(record.at_us):
        return []
    return record.tokens


def _no_rate(reason: str) -> Decode:
    return Decode(None, None, None, None, None, first_chunk_assumed=False, reason=reason)
