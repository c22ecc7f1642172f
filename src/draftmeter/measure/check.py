"""What ``draftmeter check`` looks at: one quiet look at the counters, one request, another look."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from draftmeter.experiment.model import Experiment, Message, Requests, Scenario, Target
from draftmeter.measure.ask import Task, ask_once, settle_rung
from draftmeter.measure.probe import connect, scrape, scrape_settled
from draftmeter.record.types import CounterSnapshot, RequestRecord, TargetInfo

QUIET_S = 1.5  # long enough to see a busy server's counters move

_PROMPT = [
    Message(
        role="user",
        content="Write a Python function that checks whether a text is a palindrome, "
        "then explain it in a few sentences.",
    )
]  # fmt: skip


@dataclass(frozen=True)
class Look:
    """Everything seen of one server.

    Attributes:
        quiet: counters ``QUIET_S`` apart, while we sent nothing; empty when they can't be read.
        before, after: counters around ``record``, our own request.
        has_counters: the engine's drafting counters are known.
        how_to_measure: the engine's flags that make it measurable.
        asked: the fields that were added to learn token counts.
    """

    info: TargetInfo
    record: RequestRecord
    quiet: tuple[CounterSnapshot, ...]
    before: CounterSnapshot | None
    after: CounterSnapshot | None
    settled: bool
    has_counters: bool
    how_to_measure: str
    asked: tuple[str, ...]


async def look(http: aiohttp.ClientSession, target: Target, max_tokens: int = 96) -> Look:
    """Look at a server.

    Raises:
        ServerError: it cannot be reached or refuses every request.
    """
    assert target.url is not None  # noqa: S101  check is only made of running servers
    live = await connect(http, target, target.url)
    quiet: list[CounterSnapshot] = []
    if live.metrics_problem is None:
        for pause in (QUIET_S, 0.0):
            seen = await scrape(http, live)
            if not isinstance(seen, str):
                quiet.append(seen)
            await asyncio.sleep(pause)
    scenario = Scenario(name="check", prompts=[_PROMPT], max_tokens=max_tokens, temperature=0.0)
    experiment = Experiment(
        name="check",
        reference=target.name,
        targets={target.name: target},
        scenarios=[scenario],
        requests=Requests(count=1),
    )
    await settle_rung(http, live, experiment.timeouts)
    before = await scrape(http, live) if live.metrics_problem is None else None
    record = await ask_once(
        http, live, scenario, experiment, Task(pair=0, prompt=0), number=0, session_s=0.0
    )
    after, settled = (
        await scrape_settled(http, live) if live.metrics_problem is None else (None, False)
    )
    return Look(
        info=live.info(),
        record=record,
        quiet=tuple(quiet),
        before=before if isinstance(before, CounterSnapshot) else None,
        after=after if isinstance(after, CounterSnapshot) else None,
        settled=settled,
        has_counters=bool(live.engine.series),
        how_to_measure=live.engine.how_to_measure,
        asked=tuple(live.engine.request_ladder[live.rung]),
    )
