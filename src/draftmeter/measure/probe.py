"""Questions that any server can be asked: what it is, and what its counters stand at."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from draftmeter.engines import by_name, recognise
from draftmeter.engines.model import Engine, Facts, Identity
from draftmeter.errors import ServerError, UsageError
from draftmeter.experiment.model import Target
from draftmeter.record.types import CounterSnapshot, TargetInfo
from draftmeter.wire.chat import decode_error_body
from draftmeter.wire.prometheus import parse

MAX_PAGE_BYTES = 64 * 2**20
PAGE_TIMEOUT_S = 10.0
SETTLE_PAUSE_S = 0.05
SETTLE_LIMIT_S = 3.0


@dataclass
class LiveTarget:
    """A target with a server behind it, and what has been learnt of that server.

    ``rung`` is the place on the engine's request ladder that this server accepts.
    """

    name: str
    base_url: str
    metrics_url: str
    headers: dict[str, str]
    engine: Engine
    identity: Identity
    model: str
    metrics_problem: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    rung: int = 0

    def info(self, launch: str | None = None) -> TargetInfo:
        """The target as it goes on record."""
        return TargetInfo(
            engine=self.engine.name,
            engine_version=self.identity.version,
            model=self.model,
            speculative=self.identity.speculative,
            method=self.identity.method,
            draft_tokens=self.identity.draft_tokens,
            chunk_is_step=self.engine.chunk_is_step,
            url=self.base_url,
            metrics_url=self.metrics_url,
            metrics_problem=self.metrics_problem,
            launch=launch,
            max_context=self.identity.max_context,
        )


def base_url(url: str) -> str:
    """The server's root: scheme, host and path without a trailing ``/v1`` or slash."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server address; write it like http://localhost:8000")
    if parts.username or parts.password:
        raise UsageError("the address contains a password; put it into a header from $NAME instead")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path.rstrip("/"), "", ""))


def from_environment(value: str, what: str) -> str:
    """``$NAME`` read from the environment; anything else as it stands."""
    if not value.startswith("$"):
        return value
    name = value[1:].strip("{}")
    found = os.environ.get(name)
    if found is None:
        raise UsageError(f"{what} wants the environment variable {name}, which is not set")
    return found


def request_headers(target: Target) -> dict[str, str]:
    """Headers for every request to a target, credentials included; never to be recorded."""
    headers = {
        key: from_environment(value, f"header {key!r} of target {target.name!r}")
        for key, value in target.headers.items()
    }
    if target.api_key_env:
        key = from_environment(f"${target.api_key_env}", f"api_key_env of target {target.name!r}")
        headers["Authorization"] = f"Bearer {key}"
    return headers


async def get(
    http: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """One bounded GET: status, headers (lower case), body. Raises aiohttp and OS errors."""
    async with http.get(
        url,
        headers=headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S, sock_connect=PAGE_TIMEOUT_S),
    ) as response:
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > MAX_PAGE_BYTES:
                raise ServerError(f"{url} sends more than {MAX_PAGE_BYTES >> 20} MiB; gave up")
        lower = {key.lower(): value for key, value in response.headers.items()}
        return response.status, lower, bytes(body)


async def ask(
    http: aiohttp.ClientSession,
    root: str,
    metrics_url: str,
    headers: dict[str, str],
    *,
    model_named: bool = False,
) -> Facts:
    """Everything a server says of itself. ``model_named``: it need not list its models.

    Raises:
        ServerError: it could not be reached, or refused the credentials.
    """
    try:
        status, seen, body = await get(http, f"{root}/v1/models", headers)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ServerError(_unreachable(root, error)) from None
    if status in (401, 403):
        message = decode_error_body(status, seen.get("content-type", ""), body)
        raise ServerError(
            f"{root} refuses the credentials (HTTP {status}: {message}); "
            "name the variable that holds the key with --api-key-env or api_key_env"
        )
    if status >= 500:
        message = decode_error_body(status, seen.get("content-type", ""), body)
        raise ServerError(f"{root} is not ready (HTTP {status}: {message}); is it still starting?")
    models = _json(status, body)
    if models is None and status == 404 and not model_named:
        raise ServerError(
            f"{root} has no /v1/models (HTTP 404): is it an OpenAI-compatible server? "
            "If so, name the model with --model"
        )
    pages = await asyncio.gather(
        *(_page(http, f"{root}{path}", headers) for path in ("/version", "/props", "/slots"))
    )
    samples_text, problem = await metrics_text(http, metrics_url, headers)
    samples = None if samples_text is None else parse(samples_text)
    return Facts(
        headers=seen,
        version=pages[0],
        props=pages[1],
        slots=pages[2],
        models=models,
        samples=samples,
        metrics_problem=problem,
    )


async def connect(http: aiohttp.ClientSession, target: Target, url: str) -> LiveTarget:
    """Recognise the server of a target and settle which model is measured.

    Raises:
        ServerError: not reachable, credentials refused, or the model is not served there.
        UsageError: several models are served and none was named.
    """
    root = base_url(url)
    headers = request_headers(target)
    metrics_url = target.metrics_url or f"{root}/metrics"
    named = target.model is not None
    facts = await ask(http, root, metrics_url, headers, model_named=named)
    if target.engine is not None:
        engine = by_name(target.engine)
        identity = engine.identify(facts)
    else:
        engine, identity = recognise(facts)
    model = target.model or identity.model or _only_model(facts, root)
    return LiveTarget(
        name=target.name,
        base_url=root,
        metrics_url=metrics_url,
        headers=headers,
        engine=engine,
        identity=replace(identity, model=model),
        model=model,
        metrics_problem=facts.metrics_problem,
        extra_body=target.extra_body,
    )


async def scrape(http: aiohttp.ClientSession, live: LiveTarget) -> CounterSnapshot | str:
    """The counters now, or in words why not."""
    text, problem = await metrics_text(http, live.metrics_url, live.headers)
    if text is None:
        return problem or "no metrics"
    return live.engine.read_counters(parse(text, live.engine.series), live.model)


async def scrape_settled(
    http: aiohttp.ClientSession, live: LiveTarget
) -> tuple[CounterSnapshot | str, bool]:
    """Counters after two equal readings (field case 16); False when they never were equal."""
    begun = time.monotonic()
    last = await scrape(http, live)
    while not isinstance(last, str):
        await asyncio.sleep(SETTLE_PAUSE_S)
        now = await scrape(http, live)
        if isinstance(now, str) or _same(last, now):
            return now, not isinstance(now, str)
        if time.monotonic() - begun > SETTLE_LIMIT_S:
            return now, False
        last = now
    return last, False


def _same(one: CounterSnapshot, two: CounterSnapshot) -> bool:
    return (one.drafts, one.drafted, one.accepted, one.generation_tokens, one.running) == (
        two.drafts, two.drafted, two.accepted, two.generation_tokens, two.running,
    )  # fmt: skip


async def metrics_text(
    http: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> tuple[str | None, str | None]:
    """The text of a metrics page, or why there is none (field case 17)."""
    try:
        status, _, body = await get(http, url, headers)
    except (aiohttp.ClientError, TimeoutError, OSError, ServerError) as error:
        return None, f"{url} cannot be read: {_reason(error)}"
    if status != 200:
        hint = {401: "it wants credentials", 403: "it wants credentials", 404: "there is none",
                501: "metrics are switched off"}.get(status, "")  # fmt: skip
        return None, f"{url} answers HTTP {status}{': ' + hint if hint else ''}"
    return body.decode("utf-8", "replace"), None


async def _page(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Any:
    try:
        status, _, body = await get(http, url, headers)
    except (aiohttp.ClientError, TimeoutError, OSError, ServerError):
        return None
    return _json(status, body)


def _json(status: int, body: bytes) -> Any:
    if status != 200:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _only_model(facts: Facts, root: str) -> str:
    data = facts.models.get("data") if isinstance(facts.models, dict) else None
    names = (
        [str(m.get("id")) for m in data if isinstance(m, dict)] if isinstance(data, list) else []
    )
    if len(names) == 1:
        return names[0]
    if names:
        some = ", ".join(names[:5])
        raise UsageError(f"{root} serves {len(names)} models; name one with --model: {some}")
    raise UsageError(f"{root} does not say which models it serves; name one with --model")


def _unreachable(root: str, error: BaseException) -> str:
    return f"{root} cannot be reached: {_reason(error)}; is the server up, and the port right?"


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        text = str(getattr(error, "certificate_error", None) or error.os_error)
        return f"TLS: {text[:200]} (an own CA: --cacert FILE)"
    if isinstance(error, TimeoutError):
        return f"no answer within {PAGE_TIMEOUT_S:g} s"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection (http instead of https, or not an HTTP server?)"
    inner = getattr(error, "os_error", error)
    return " ".join(str(getattr(inner, "strerror", None) or inner).split())[:200]
