"""Load: several streams at a time against one target, each asking again when it was answered.

Closed loop: as many requests are in flight as there are streams, from the first measured one to
the last. Before it every stream sends a filler of another length, so that the streams are out of
step; after it streams go on with fillers until the last measured request is answered, so that
none runs on an emptier server than the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from draftmeter.measure import order
from draftmeter.measure.ask import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftmeter.experiment.model import Level, Scenario
    from draftmeter.measure.probe import LiveTarget
    from draftmeter.measure.session import Session

ROUNDS_OF_STREAMS = 2
"""Requests per stream at least: with one each, streams would never replace each other."""
SHORTEST_FILLER = 8


def pairs_under_load(pairs: int, level: Level) -> int:
    """Requests of a cell under load: as many as planned, but two for each stream."""
    if level.concurrency == 1:
        return pairs
    return max(pairs, ROUNDS_OF_STREAMS * level.concurrency)


async def load_block(
    session: Session,
    live: LiveTarget,
    scenario: Scenario,
    level: Level,
    pairs: Sequence[int],
    round_number: int,
) -> None:
    """Answer ``pairs`` with ``level.concurrency`` streams busy all the time.

    Raises:
        ServerError: the target keeps failing; what was answered is on disk.
    """
    begun = time.monotonic()
    waiting = deque(pairs)
    open_pairs = len(pairs)
    answered = asyncio.Event()
    context = await session.context_text(live, level)
    seed, prompts = session.experiment.seed, len(scenario.prompts)

    def task(pair: int, phase: str, cap: int | None = None) -> Task:
        prompt = order.prompt_of(abs(pair), prompts, scenario.name, seed)
        return Task(
            pair, prompt, "measure" if phase == "measure" else "warmup",
            round_number=round_number, level=level, context=context, cap=cap,
        )  # fmt: skip

    async def stream(number: int) -> None:
        nonlocal open_pairs
        filler = -1 - number - round_number * 1_000_000
        cap = max(SHORTEST_FILLER, scenario.max_tokens * (number + 1) // level.concurrency)
        await session.one(live, scenario, task(filler, "warmup", min(cap, scenario.max_tokens)))
        while not answered.is_set():
            if waiting:
                await session.one(live, scenario, task(waiting.popleft(), "measure"))
                open_pairs -= 1
                if not open_pairs:
                    answered.set()
            else:
                filler -= level.concurrency
                await session.one(live, scenario, task(filler, "warmup"))

    streams = [asyncio.ensure_future(stream(n)) for n in range(level.concurrency)]
    try:
        # A stream ends when all is answered, or early by an error, which must not wait.
        done, _ = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for one in streams:
            one.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        session.spent_s += time.monotonic() - begun
