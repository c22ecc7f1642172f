"""One streamed request: sent, its chunks timed at the socket, decoded, counted.

Token counts come from the server only (measuring rule 2): token ids per chunk, else running
usage, else the final usage. Chunks are never counted as tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from draftmeter.experiment.model import Timeouts
from draftmeter.measure.http import StampingHandler
from draftmeter.record.types import ErrorKind, RequestError, TokenSource, Usage
from draftmeter.wire.chat import ChatError, Chunk, FinalFields, decode, decode_error_body
from draftmeter.wire.sse import SseParser, SseTooLargeError

MAX_RESPONSE_BYTES = 256 * 2**20
MAX_ERROR_BODY_BYTES = 65536
# A wake of the reader only moves the stall deadline when it is this far behind: moving a timer
# for every chunk would be the dearest thing done per token.
_RESCHEDULE_S = 1.0


@dataclass(frozen=True)
class Call:
    """What to send: an address, headers (with credentials) and a serialised body."""

    url: str
    headers: dict[str, str]
    body: bytes
    timeouts: Timeouts
    max_bytes: int = MAX_RESPONSE_BYTES


@dataclass
class Answer:
    """What came back. Times in microseconds since the request was written to the socket.

    The parallel lists have one entry per token-bearing chunk; see ``record.types.RequestRecord``.
    ``accepted_so_far`` is the engine's running count at each of them, None where it keeps none.
    """

    connect_ms: float | None = None
    first_byte_us: int | None = None
    done_us: int | None = None
    at_us: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    accepted_so_far: list[int] | None = None
    token_source: TokenSource | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    model: str | None = None
    final: FinalFields = field(default_factory=FinalFields)
    error: RequestError | None = None
    server_header: str | None = None
    logprobs: list[list[float]] = field(default_factory=list)


class _Reader:
    """Turns timed bytes into an ``Answer``. Mutable, one per response."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.parser = SseParser()
        self.sent_ns = 0
        self.running = 0
        self.running_chunks = 0
        self.finish_us: int | None = None
        self.done = False
        self.head = b""

    def feed(self, data: bytes, at_ns: int) -> None:
        at_us = (at_ns - self.sent_ns) // 1000
        if self.answer.first_byte_us is None:
            self.answer.first_byte_us = at_us
            self.head = data[:256]
        for event in self.parser.feed(data):
            self.event(event.data, at_us)

    def event(self, payload: bytes, at_us: int) -> None:
        chunk = decode(payload)
        if chunk is None:
            self.done = True
            return
        answer = self.answer
        if chunk.error is not None:
            if answer.error is None:
                answer.error = RequestError(kind="stream", message=chunk.error)
            return
        if chunk.usage is not None:
            answer.usage = Usage(
                prompt_tokens=chunk.usage.prompt_tokens,
                completion_tokens=chunk.usage.completion_tokens,
                cached_tokens=chunk.usage.cached_tokens,
                reasoning_tokens=chunk.usage.reasoning_tokens,
            )
        if chunk.finish_reason is not None:
            answer.finish_reason = chunk.finish_reason
            self.finish_us = at_us
        if chunk.model is not None and answer.model is None:
            answer.model = chunk.model
        if chunk.timings or chunk.speculative_decoding or chunk.extra:
            answer.final = FinalFields(
                timings=chunk.timings or answer.final.timings,
                speculative_decoding=chunk.speculative_decoding
                or answer.final.speculative_decoding,
                extra=chunk.extra or answer.final.extra,
            )
        if chunk.logprobs is not None:
            answer.logprobs += chunk.logprobs
        if chunk.has_choice:
            self.tokens(chunk, at_us)

    def tokens(self, chunk: Chunk, at_us: int) -> None:
        """Add a chunk to the token-bearing ones, if it is one (field cases 1-6)."""
        answer = self.answer
        count: int | None = None
        if chunk.token_ids_count is not None:
            count = chunk.token_ids_count
            answer.token_source = "token_ids"
        elif chunk.running_tokens is not None and answer.token_source != "token_ids":
            count = max(0, chunk.running_tokens - self.running)
            self.running_chunks += 1
            self.running = max(self.running, chunk.running_tokens)
            if count:
                answer.token_source = "running_usage"
        piece, kind = _piece(chunk)
        if count is None:
            if not piece:
                return
            count = 0
        elif count == 0:
            # Text without a token of its own (a parser let go of held text): it belongs to the
            # tokens before it and has no time of its own.
            if piece and answer.pieces:
                answer.pieces[-1] += piece
            elif piece:
                self.add(at_us, piece, kind, 0)
                self.accepted(chunk)
            return
        self.add(at_us, piece, kind, count)
        self.accepted(chunk)

    def accepted(self, chunk: Chunk) -> None:
        """Keep the running count that came with the chunk just added (llama.cpp)."""
        if chunk.timings is not None and chunk.running_tokens is not None:
            if self.answer.accepted_so_far is None:
                self.answer.accepted_so_far = []
            self.answer.accepted_so_far.append(chunk.timings.draft_n_accepted or 0)

    def add(self, at_us: int, piece: str, kind: str, count: int) -> None:
        answer = self.answer
        answer.at_us.append(at_us)
        answer.pieces.append(piece)
        answer.kinds.append(kind)
        answer.tokens.append(count)


def _piece(chunk: Chunk) -> tuple[str, str]:
    if chunk.content:
        return chunk.content, "c"
    if chunk.reasoning:
        return chunk.reasoning, "r"
    if chunk.tool_arguments:
        return chunk.tool_arguments, "t"
    return "", "e"


async def send(http: aiohttp.ClientSession, call: Call) -> Answer:
    """Send one request and read its stream to the end. Never raises for a server's fault.

    Every failure becomes ``answer.error``; what arrived before it is kept.
    """
    answer = await _attempt(http, call)
    error = answer.error
    # A kept-alive connection that the server closed meanwhile says nothing about the server.
    if error and error.kind == "closed" and not answer.at_us and answer.connect_ms is None:
        answer = await _attempt(http, call)
    return answer


async def _attempt(http: aiohttp.ClientSession, call: Call) -> Answer:
    answer = Answer()
    reader = _Reader(answer)
    moments: dict[str, int] = {}
    limits = call.timeouts
    begun = time.monotonic_ns()
    phase: ErrorKind = "first_token_timeout"
    try:
        async with asyncio.timeout(limits.connect_s + limits.first_token_s) as deadline:
            async with http.post(
                call.url,
                data=call.body,
                headers={"Content-Type": "application/json", **call.headers},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s),
                trace_request_ctx=moments,
            ) as response:
                reader.sent_ns = moments.get("sent_ns", begun)
                answer.connect_ms = _connect_ms(moments)
                answer.server_header = response.headers.get("Server")
                if response.status != 200:
                    answer.error = await _http_error(response)
                    return answer
                loop = asyncio.get_running_loop()
                deadline.reschedule(loop.time() + limits.first_token_s)
                await _read(response, reader, call, deadline)
    except TimeoutError as error:
        if answer.at_us:
            passed_s = (time.monotonic_ns() - reader.sent_ns) / 1e9
            phase = "timeout" if passed_s >= limits.total_s else "stall"
        answer.error = _timeout_error(error, phase, limits)
    except (ChatError, SseTooLargeError) as error:
        kind: ErrorKind = "too_large" if isinstance(error, SseTooLargeError) else "protocol"
        answer.error = RequestError(kind=kind, message=str(error))
    except aiohttp.ClientError as error:
        answer.error = _client_error(error)
    except OSError as error:
        answer.error = RequestError(kind="connect", message=error.strerror or str(error))
    if answer.error is None:
        answer.error = _verdict(reader)
    _settle_counts(reader)
    return answer


async def _read(
    response: aiohttp.ClientResponse, reader: _Reader, call: Call, deadline: asyncio.Timeout
) -> None:
    """Read the body; each segment is handed on with the time its bytes came in."""
    loop = asyncio.get_running_loop()
    connection = response.connection
    handler = connection.protocol if connection is not None else None
    stamps = handler.stamps if isinstance(handler, StampingHandler) else []
    # What is older was another response's on the same connection.
    stamps[:] = [stamp for stamp in stamps if stamp[0] >= reader.sent_ns]
    end = loop.time() + call.timeouts.total_s
    content, position, moved = response.content, 0, 0.0
    while True:
        data = await content.readany()
        if not data:
            break
        now = loop.time()
        position = _feed_stamped(reader, data, position, stamps)
        if position > call.max_bytes:
            reader.answer.error = RequestError(
                kind="too_large", message=f"the response passed {call.max_bytes >> 20} MiB"
            )
            return
        if reader.answer.at_us and now - moved > _RESCHEDULE_S:
            deadline.reschedule(min(now + call.timeouts.stall_s, end))
            moved = now
    with contextlib.suppress(ChatError):  # a last event cut in half is a closed connection
        for event in reader.parser.close():
            reader.event(event.data, (time.monotonic_ns() - reader.sent_ns) // 1000)
    reader.answer.done_us = (time.monotonic_ns() - reader.sent_ns) // 1000


def _feed_stamped(
    reader: _Reader, data: bytes, position: int, stamps: list[tuple[int, int | None]]
) -> int:
    """Split what one wake brought at the boundaries of the socket's reads; new position."""
    end = position + len(data)
    start = position
    used = 0
    at_ns = 0
    for at_ns, upto in stamps:
        if upto is None or upto >= end:
            if upto is not None and upto > end:
                break  # a read that goes on in the next wake: keep its stamp
            used += 1
            break
        used += 1
        if upto > start:
            reader.feed(data[start - position : upto - position], at_ns)
            start = upto
    if start < end:
        reader.feed(
            data[start - position :] if start > position else data, at_ns or time.monotonic_ns()
        )
    del stamps[:used]
    return end


def _connect_ms(moments: dict[str, int]) -> float | None:
    if "connect_start_ns" not in moments or "ready_ns" not in moments:
        return None
    return (moments["ready_ns"] - moments["connect_start_ns"]) / 1e6


async def _http_error(response: aiohttp.ClientResponse) -> RequestError:
    body = await response.content.read(MAX_ERROR_BODY_BYTES)
    message = decode_error_body(response.status, response.content_type, body)
    if 300 <= response.status < 400:
        where = response.headers.get("Location", "elsewhere")
        message = f"redirects to {where[:200]!r}; give that address as the url"
    retry = response.headers.get("Retry-After", "")
    return RequestError(
        kind="http",
        status=response.status,
        message=message,
        retry_after_s=float(retry) if retry.isdecimal() else None,
    )


def _timeout_error(error: TimeoutError, phase: ErrorKind, limits: Timeouts) -> RequestError:
    if isinstance(error, aiohttp.ServerTimeoutError):
        return RequestError(kind="connect", message=f"no connection within {limits.connect_s:g} s")
    if phase == "timeout":
        return RequestError(kind=phase, message=f"not finished within {limits.total_s:g} s")
    if phase == "stall":
        return RequestError(kind="stall", message=f"nothing came for {limits.stall_s:g} s")
    return RequestError(kind=phase, message=f"no token within {limits.first_token_s:g} s")


def _client_error(error: aiohttp.ClientError) -> RequestError:
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return RequestError(kind="tls", message=_brief(error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return RequestError(kind="connect", message=_brief(error.os_error))
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return RequestError(kind="closed", message="the server closed the connection in mid-answer")
    if isinstance(error, aiohttp.ClientOSError):
        return RequestError(kind="closed", message=_brief(error))
    return RequestError(kind="protocol", message=_brief(error))


def _brief(error: Any) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]


def _verdict(reader: _Reader) -> RequestError | None:
    """What a stream that ended without an error of its own may still lack (field case 9)."""
    answer = reader.answer
    if not answer.at_us and reader.head.lstrip()[:1] in (b"{", b"["):
        message = "the server answered with plain JSON, not with a stream"
        return RequestError(kind="not_streaming", message=message)
    if not reader.done and answer.finish_reason is None:
        message = "the stream ended without finish_reason and [DONE]"
        return RequestError(kind="closed", message=message)
    if not answer.at_us:
        return RequestError(kind="no_tokens", message="the answer had no tokens")
    return None


def _settle_counts(reader: _Reader) -> None:
    """Decide, with the whole stream seen, where token counts come from."""
    answer = reader.answer
    if answer.token_source == "running_usage" and reader.running_chunks < 2 < len(answer.tokens):
        # Usage on the last chunk only is a total, not a running count.
        answer.token_source = None
        if answer.kinds[-1] == "e":
            for column in (answer.at_us, answer.pieces, answer.kinds, answer.tokens):
                column.pop()
    total = answer.usage.completion_tokens if answer.usage else None
    if answer.token_source is None:
        answer.token_source = None if total is None else "final_usage"
    elif total is not None and reader.finish_us is not None and answer.at_us:
        # llama.cpp: the token that ends the answer has no chunk with text, but it ends when the
        # chunk with the finish_reason comes.
        rest = total - sum(answer.tokens)
        if rest > 0 and reader.finish_us > answer.at_us[-1]:
            reader.add(reader.finish_us, "", "e", rest)
        elif rest > 0:
            answer.tokens[-1] += rest
