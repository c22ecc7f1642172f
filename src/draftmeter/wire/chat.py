"""OpenAI chat completion chunks: the payload of one event, decoded to the fields that matter.

Only the fields named here are decoded; everything else in a chunk is skipped by the JSON reader,
so a chunk costs little however much an engine puts into it. A field of an unexpected type counts
as absent: a server's odd extra must not end a measurement.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from draftmeter.wire.error_body import words_of_body
from draftmeter.wire.salvage import loosely, salvage
from draftmeter.wire.text import printable

MOST_LOGPROBS = 20
# Counts beyond this are no counts; as a float they would no longer be exact.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ChatError(ValueError):
    """The payload is not a chunk of a chat completion; the text holds a printable excerpt."""


class Timings(msgspec.Struct, frozen=True):
    """llama.cpp's ``timings``: with ``timings_per_token`` on every chunk, running counts."""

    predicted_n: Count | None = None
    predicted_ms: float | None = None
    prompt_n: Count | None = None
    prompt_ms: float | None = None
    cache_n: Count | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class SpeculativeDecoding(msgspec.Struct, frozen=True):
    """vLLM's ``metrics.speculative_decoding`` (``--per-request-spec-decode-metrics``)."""

    num_spec_steps: Count | None = None
    num_draft_tokens: Count | None = None
    num_accepted_draft_tokens: Count | None = None
    num_spec_tokens: Count | None = None
    acceptance_histogram: list[Count] | None = None
    per_step_accepted: list[Count] | None = None
    per_step_drafted: list[Count] | None = None


class FinalFields(msgspec.Struct, frozen=True):
    """What the last chunks said beside text: engines read their drafting from it."""

    timings: Timings | None = None
    speculative_decoding: SpeculativeDecoding | None = None
    extra: dict[str, Any] = {}


class ChunkUsage(msgspec.Struct, frozen=True):
    """The token counts of a chunk's ``usage``, details included."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk, flat. Texts are those of choice 0; empty where there is none.

    Attributes:
        content: answer text (``delta.content``, or ``text`` of a text completion).
        reasoning: ``reasoning_content`` or ``reasoning``.
        tool_arguments: names and argument text of tool calls, as the chunk brings them.
        has_choice: the chunk has a choice 0; usage chunks have none.
        role: the delta names a role; the first chunk often does nothing else (field case 3).
        token_ids_count: how many token ids the chunk carries; None where it carries no list.
        running_tokens: tokens generated so far, on a chunk with a choice. A server may put its
            final usage there, once: only a second such chunk shows that the count runs.
        error: the server's message when the chunk reports a failure (field case 8).
        extra: SGLang's ``meta_info`` as it came, under that name.
        logprobs: log-probabilities of the likeliest tokens, one list for each token of the chunk;
            None where none were asked for.
    """

    content: str = ""
    reasoning: str = ""
    tool_arguments: str = ""
    has_choice: bool = False
    role: bool = False
    token_ids_count: int | None = None
    running_tokens: int | None = None
    usage: ChunkUsage | None = None
    finish_reason: str | None = None
    model: str | None = None
    error: str | None = None
    error_type: str | None = None
    error_code: str | None = None
    timings: Timings | None = None
    speculative_decoding: SpeculativeDecoding | None = None
    extra: dict[str, Any] | None = None
    logprobs: list[list[float]] | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Top(msgspec.Struct):
    logprob: float | None = None


class _TokenLogprobs(msgspec.Struct):
    logprob: float | None = None
    top_logprobs: list[_Top] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprobs] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    meta_info: dict[str, Any] | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Metrics(msgspec.Struct):
    speculative_decoding: SpeculativeDecoding | None = None


class _Payload(msgspec.Struct):
    object: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    token_ids: list[int] | None = None
    timings: Timings | None = None
    metrics: _Metrics | None = None
    meta_info: dict[str, Any] | None = None
    error: Any = None
    message: Any = None
    type: Any = None
    code: Any = None


_decode = msgspec.json.Decoder(_Payload).decode


def decode(data: bytes) -> Chunk | None:
    """The payload of one event as a chunk; None for ``[DONE]``.

    Raises:
        ChatError: it is not JSON, or JSON that is no chunk of a completion.
    """
    try:
        payload = _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        if data.strip() == b"[DONE]":
            return None
        payload = _decode_loosely(data)
    choice = _first_choice(payload.choices) if payload.choices else None
    if choice is None:
        return _without_choice(payload, data)
    delta = choice.delta or _NO_DELTA
    usage, running = None, None
    if payload.usage is not None:
        usage = _usage(payload.usage)
        running = usage.completion_tokens
    timings = payload.timings
    if running is None and timings is not None:
        running = timings.predicted_n
    ids = choice.token_ids if choice.token_ids is not None else payload.token_ids
    calls = delta.tool_calls or delta.function_call
    meta_info = payload.meta_info or choice.meta_info
    error = _error(payload) if payload.error is not None else _NO_ERROR
    return Chunk(
        content=delta.content or choice.text or "",
        reasoning=delta.reasoning_content or delta.reasoning or "",
        tool_arguments=_tool_arguments(delta) if calls else "",
        has_choice=True,
        role=delta.role is not None,
        token_ids_count=None if ids is None else len(ids),
        running_tokens=running,
        usage=usage,
        finish_reason=choice.finish_reason,
        model=payload.model,
        error=error[0],
        error_type=error[1],
        error_code=error[2],
        timings=timings,
        speculative_decoding=payload.metrics.speculative_decoding if payload.metrics else None,
        extra={"meta_info": meta_info} if meta_info else None,
        logprobs=_logprobs(choice.logprobs) if choice.logprobs is not None else None,
    )


_NO_DELTA = _Delta()
_NO_ERROR: tuple[str | None, str | None, str | None] = (None, None, None)


def _decode_loosely(data: bytes) -> _Payload:
    payload = salvage(_Payload, loosely(data))
    if payload is None:
        raise _not_a_chunk(data)
    return payload


def _first_choice(choices: list[_Choice]) -> _Choice | None:
    for choice in choices:
        if not choice.index:
            return choice
    return None


def _without_choice(payload: _Payload, data: bytes) -> Chunk:
    error = _error(payload)
    told = (payload.choices, payload.usage, payload.timings, payload.metrics, payload.meta_info)
    # Some servers open or close a stream with a chunk that says only what it is.
    says_so = "completion" in (payload.object or "")
    if error[0] is None and not says_so and all(part is None for part in told):
        raise _not_a_chunk(data)
    return Chunk(
        usage=None if payload.usage is None else _usage(payload.usage),
        model=payload.model,
        error=error[0],
        error_type=error[1],
        error_code=error[2],
        timings=payload.timings,
        speculative_decoding=payload.metrics.speculative_decoding if payload.metrics else None,
        extra={"meta_info": payload.meta_info} if payload.meta_info else None,
    )


def _usage(told: _Usage) -> ChunkUsage:
    prompt, completion = told.prompt_tokens_details, told.completion_tokens_details
    reasoning = completion.reasoning_tokens if completion else None
    return ChunkUsage(
        prompt_tokens=told.prompt_tokens,
        completion_tokens=told.completion_tokens,
        cached_tokens=prompt.cached_tokens if prompt else None,
        reasoning_tokens=told.reasoning_tokens if reasoning is None else reasoning,
    )


def _logprobs(told: _Logprobs) -> list[list[float]]:
    """Each token's likeliest, whichever of them was drawn; at most ``MOST_LOGPROBS``."""
    found = []
    for token in told.content or ():
        tops = [t.logprob for t in token.top_logprobs or () if t.logprob is not None]
        found.append(sorted(tops, reverse=True)[:MOST_LOGPROBS])
    return found


def _tool_arguments(delta: _Delta) -> str:
    functions = [call.function for call in delta.tool_calls or ()]
    return "".join(_call(one) for one in (*functions, delta.function_call) if one is not None)


def _call(function: _Function) -> str:
    arguments = function.arguments or ""
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    return (function.name or "") + arguments


def _error(payload: _Payload) -> tuple[str | None, str | None, str | None]:
    """Message, type and code of ``{"error": {...}}``, ``{"error": "text"}`` or an error object."""
    error = payload.error
    if error is None and payload.object == "error":
        error = {"message": payload.message, "type": payload.type, "code": payload.code}
    if error is None:
        return _NO_ERROR
    if not isinstance(error, dict):
        return printable(str(error)) or "an error without a message", None, None
    message = error.get("message")
    text = printable(str(message)) if message is not None else ""
    return text or "an error without a message", _word(error.get("type")), _word(error.get("code"))


def _word(value: Any) -> str | None:
    return printable(str(value), 80) if isinstance(value, str | int) else None


def _not_a_chunk(data: bytes) -> ChatError:
    excerpt = printable(data[:600].decode("utf-8", "replace"), 120)
    return ChatError(f"not a chunk of a chat completion: {excerpt}")


def decode_error_body(status: int, content_type: str, body: bytes) -> str:
    """What the body of an HTTP error says: one printable line of at most 300 characters.

    Understands OpenAI's ``{"error": ...}``, FastAPI's ``{"detail": ...}``, bare messages, HTML
    (its title, else its text) and plain text. An empty body gives ``HTTP <status>``.
    """
    return printable(words_of_body(content_type, body)) or f"HTTP {status}"
