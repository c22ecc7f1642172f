"""A target's server for as long as it is needed: one that runs already, or one that is started."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from draftmeter.engines.model import Identity
from draftmeter.errors import ServerError
from draftmeter.measure.ask import first_token, settle_rung
from draftmeter.measure.children import ChildServer, free_port, split_command, wait_ready
from draftmeter.measure.environment import gpu_memory_used_bytes
from draftmeter.measure.events import OnEvent, Starting, Up
from draftmeter.measure.probe import LiveTarget, connect, from_environment

if TYPE_CHECKING:
    from draftmeter.experiment.model import Target
    from draftmeter.measure.session import Session

GPU_FREE_LIMIT_S = 60.0
GPU_FREE_SLACK_BYTES = 2**29


async def gpu_free(target: str, empty: int | None, on_event: OnEvent) -> None:
    """Wait until the server before has given its GPU memory back (field case 32)."""
    deadline = time.monotonic() + GPU_FREE_LIMIT_S
    while empty is not None and time.monotonic() < deadline:
        used = gpu_memory_used_bytes()
        if used is None or used <= empty + GPU_FREE_SLACK_BYTES:
            return
        on_event(Starting(target, "waiting for the GPU's memory to be free"))
        await asyncio.sleep(0.5)


@asynccontextmanager
async def up(session: Session, target: Target) -> AsyncIterator[LiveTarget]:
    """A target's server, running for as long as the context lasts."""
    async with AsyncExitStack() as stack:
        url = target.url
        if url is None:
            url = await _launch(session, target, stack)
        live = await connect(session.http, target, url)
        if target.launch is not None:
            live.identity = with_launch(live, target.launch)
        await settle_rung(session.http, live, session.experiment.timeouts)
        session.infos[target.name] = live.info(target.launch)
        session.on_info(session.infos)
        session.on_event(Up(target.name, session.infos[target.name]))
        yield live


async def _launch(session: Session, target: Target, stack: AsyncExitStack) -> str:
    if target.launch is None:
        raise ServerError(f"target {target.name!r} has neither url nor launch")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    session.on_event(Starting(target.name, target.launch))
    child = ChildServer(
        target.name,
        target.launch,
        port=port,
        log_path=session.folder.log_path(target.name),
        env={
            key: from_environment(value, f"env {key!r} of target {target.name!r}")
            for key, value in target.env.items()
        },
    )
    await child.start()
    stack.push_async_callback(child.stop)

    async def answers() -> bool:
        return await first_token(session.http, target, url, session.experiment.timeouts)

    def report(line: str) -> None:
        session.on_event(Starting(target.name, line))

    await wait_ready(child, probe=answers, timeout_s=target.start_timeout_s, on_line=report)
    return url


def with_launch(live: LiveTarget, launch: str) -> Identity:
    """What the server is, completed by what its launch command asked for."""
    words, _ = split_command(launch, 0)
    asked = live.engine.read_launch(words)
    identity = live.identity
    return replace(
        identity,
        method=identity.method or asked.method,
        draft_tokens=identity.draft_tokens or asked.draft_tokens,
    )
