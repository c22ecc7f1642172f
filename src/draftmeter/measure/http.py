"""The HTTP client, with the time at which bytes reached the socket.

aiohttp wakes a reader some event-loop turns after the bytes came in, and merges what came in
several reads. Timing needs the moment of the read itself, so the connection's protocol notes
``(monotonic ns, bytes of body so far)`` in ``data_received``, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from draftmeter.errors import UsageError

USER_AGENT = "draftmeter"


class StampingHandler(ResponseHandler):
    """aiohttp's client protocol, which also notes when bytes arrived.

    ``stamps`` holds (monotonic ns, body bytes received by then); None in the second place means
    the end of the body, which aiohttp forgets as soon as it is complete.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.stamps: list[tuple[int, int | None]] = []

    def data_received(self, data: bytes) -> None:
        """Note the time, then let aiohttp parse."""
        now = time.monotonic_ns()
        super().data_received(data)
        payload = self._payload
        self.stamps.append((now, None if payload is None else payload.total_bytes))


class StampingConnector(aiohttp.TCPConnector):
    """A connector whose connections note arrival times."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # A partial of a subclass is not a subclass of the partial, to the type checker.
        self._factory = functools.partial(  # type: ignore[assignment]
            StampingHandler, loop=asyncio.get_running_loop()
        )


def open_session(
    *, limit: int = 0, ca_file: str | None = None, insecure: bool = False
) -> aiohttp.ClientSession:
    """A client session for measuring: no cookies, no compression, no proxies from the environment.

    Redirects are never followed (requests carry credentials). ``limit`` 0 means unlimited
    connections. Must be called inside a running event loop.

    Raises:
        UsageError: ``ca_file`` cannot be read or holds no certificate.
    """
    tls: ssl.SSLContext | bool = True
    if insecure:
        tls = False
    elif ca_file:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or error
            raise UsageError(f"cannot use the CA certificates in {ca_file}: {why}") from None
    return aiohttp.ClientSession(
        connector=StampingConnector(limit=limit, ssl=tls, keepalive_timeout=4.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity", "User-Agent": USER_AGENT},
        trace_configs=[_connection_trace()],
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        read_bufsize=2**20,
        auto_decompress=True,
    )


def _connection_trace() -> aiohttp.TraceConfig:
    """Note on the request's own context when its connection was there and when it was sent."""

    async def start(_s: aiohttp.ClientSession, ctx: SimpleNamespace, _p: Any) -> None:
        _note(ctx, "connect_start_ns")

    async def ready(_s: aiohttp.ClientSession, ctx: SimpleNamespace, _p: Any) -> None:
        _note(ctx, "ready_ns")

    async def sent(_s: aiohttp.ClientSession, ctx: SimpleNamespace, _p: Any) -> None:
        _note(ctx, "sent_ns")

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(start)
    trace.on_connection_create_end.append(ready)
    trace.on_connection_reuseconn.append(ready)
    trace.on_request_chunk_sent.append(sent)
    return trace


def _note(ctx: SimpleNamespace, name: str) -> None:
    moments = getattr(ctx, "trace_request_ctx", None)
    if isinstance(moments, dict):
        moments[name] = time.monotonic_ns()
