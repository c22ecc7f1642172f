"""A session: every target, every scenario, in the decided order, one request after the other.

Each request is on disk before the next is sent.

Statistics stay out of here: how many pairs are enough is asked of ``Judge``, given by the caller.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp

from draftmeter.engines.model import Identity
from draftmeter.errors import ServerError
from draftmeter.experiment.model import Experiment, Scenario, Target
from draftmeter.measure import order
from draftmeter.measure.ask import ask_once, first_token, settle_rung
from draftmeter.measure.children import ChildServer, free_port, split_command, wait_ready
from draftmeter.measure.environment import gpu_memory_used_bytes
from draftmeter.measure.events import Finished, Note, OnEvent, Planned, Sending, Starting, Up
from draftmeter.measure.probe import (
    LiveTarget,
    connect,
    from_environment,
    scrape,
    scrape_settled,
)
from draftmeter.record.folder import RunFolder
from draftmeter.record.types import CounterRecord, Phase, RequestRecord, TargetInfo

MINIMUM_PAIRS = 3  # below this no interval exists, so a time budget never ends earlier
MAXIMUM_PAIRS = 200  # a noisy pilot may ask for thousands
GPU_FREE_LIMIT_S = 60.0
GPU_FREE_SLACK_BYTES = 2**29
GIVE_UP_AFTER = 5  # failures in a row on one target

Judge = Callable[[str, list[RequestRecord]], int]
"""(scenario, records so far) -> pairs it needs in all; called once, after the pilot."""


@dataclass
class Session:
    """One run in progress; ``records`` holds what is on disk (also from before a resume)."""

    experiment: Experiment
    folder: RunFolder
    http: aiohttp.ClientSession
    judge: Judge
    on_event: OnEvent
    records: list[RequestRecord] = field(default_factory=list)
    infos: dict[str, TargetInfo] = field(default_factory=dict)
    on_info: Callable[[dict[str, TargetInfo]], None] = lambda _: None
    begun: float = field(default_factory=time.monotonic)
    spent_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    warm: set[tuple[str, str]] = field(default_factory=set)

    async def run(self) -> None:
        """Measure all that is not measured yet.

        Raises:
            ServerError: a target could not be started or keeps failing; what was measured is kept.
        """
        self.spent_s = sum((r.done_us or 0) / 1e6 for r in self.records)
        targets = list(self.experiment.targets.values())
        if self.experiment.together or all(t.url for t in targets):
            await self._interleaved(targets)
        else:
            await self._in_blocks(targets)

    # --- interleaved: all targets up at the same time -------------------------------------

    async def _interleaved(self, targets: list[Target]) -> None:
        async with AsyncExitStack() as stack:
            live = {t.name: await stack.enter_async_context(self._up(t)) for t in targets}
            await self._against_itself(live[self.experiment.reference])
            planned = self._planned()
            pair = 0
            while any(pair < planned[s.name] for s in self.experiment.scenarios):
                if self._budget_spent(pair):
                    break
                open_scenarios = [
                    (s.name, len(s.prompts))
                    for s in self.experiment.scenarios
                    if pair < planned[s.name]
                ]
                for turn in order.turns(pair, open_scenarios, list(live), self.experiment.seed):
                    for name in turn.targets:
                        await self._request(live[name], turn.scenario, pair, turn.prompt)
                pair += 1
                self._after_pilot(pair, planned)

    def _planned(self) -> dict[str, int]:
        wish = self.experiment.requests
        first = wish.count if wish.count is not None else wish.pilot
        for scenario in self.experiment.scenarios:
            self.on_event(Planned(scenario.name, first))
        return {s.name: first for s in self.experiment.scenarios}

    def _after_pilot(self, pairs_done: int, planned: dict[str, int]) -> None:
        """Stein's second stage: after the pilot, and only then, fix the number of pairs."""
        wish = self.experiment.requests
        if wish.count is not None or pairs_done != wish.pilot:
            return
        for scenario in self.experiment.scenarios:
            records = [r for r in self.records if r.phase == "measure" and r.pair < wish.pilot]
            wanted = self.judge(scenario.name, records)
            if wanted > MAXIMUM_PAIRS:
                self.on_event(
                    Note(
                        f"{scenario.name}: {wanted} pairs would be needed for the precision asked "
                        f"for; {MAXIMUM_PAIRS} are measured. A longer pilot, longer answers or a "
                        "quieter machine bring more"
                    )
                )
            planned[scenario.name] = max(wish.pilot, min(wanted, MAXIMUM_PAIRS))
            self.on_event(Planned(scenario.name, planned[scenario.name]))

    def _budget_spent(self, pairs_done: int, share: float = 1.0) -> bool:
        budget = self.experiment.requests.budget_s
        if budget is None or pairs_done < MINIMUM_PAIRS:
            return False
        if self.spent_s < budget * share:
            return False
        self.on_event(Note(f"the time budget of {budget:g} s is used up"))
        return True

    # --- blocks: one target up at a time ---------------------------------------------------

    async def _in_blocks(self, targets: list[Target]) -> None:
        planned = self._planned()
        done = 0
        while any(done < pairs for pairs in planned.values()):
            last = max(planned.values())
            await self._rounds(targets, done, last, planned)
            done = last
            self._after_pilot(done, planned)
            if self._budget_spent(done):
                break

    async def _rounds(
        self, targets: list[Target], first: int, last: int, planned: dict[str, int]
    ) -> None:
        """All pairs from ``first`` to ``last``, spread over alternating blocks of targets.

        A server that ends one round and begins the next stays up in between.
        """
        rounds = min(self.experiment.rounds, max(1, last - first))
        blocks = [
            (number, name)
            for number in range(rounds)
            for name in order.blocks([t.name for t in targets], number)
        ]
        empty = gpu_memory_used_bytes()
        async with AsyncExitStack() as stack:
            live: LiveTarget | None = None
            for number, name in blocks:
                pairs = [first + p for p in order.share(last - first, rounds, number)]
                if not self._missing(name, pairs, planned):
                    continue
                if live is None or live.name != name:
                    await stack.aclose()
                    await self._gpu_free(name, empty)
                    live = await stack.enter_async_context(self._up(self.experiment.targets[name]))
                    self.warm = {w for w in self.warm if w[0] != name}
                if name == self.experiment.reference and number == 0 and first == 0:
                    await self._against_itself(live)
                await self._block(live, pairs, planned, number)

    async def _gpu_free(self, target: str, empty: int | None) -> None:
        """Wait until the server before has given its GPU memory back (field case 32)."""
        deadline = time.monotonic() + GPU_FREE_LIMIT_S
        while empty is not None and time.monotonic() < deadline:
            used = gpu_memory_used_bytes()
            if used is None or used <= empty + GPU_FREE_SLACK_BYTES:
                return
            self.on_event(Starting(target, "waiting for the GPU's memory to be free"))
            await asyncio.sleep(0.5)

    async def _block(
        self, live: LiveTarget, pairs: list[int], planned: dict[str, int], number: int
    ) -> None:
        for pair in pairs:
            for turn in order.turns(
                pair,
                [(s.name, len(s.prompts)) for s in self.experiment.scenarios],
                [live.name],
                self.experiment.seed,
            ):
                if pair < planned[turn.scenario]:
                    await self._request(live, turn.scenario, pair, turn.prompt, round_number=number)

    def _missing(self, name: str, pairs: Iterable[int], planned: dict[str, int]) -> bool:
        done = {(r.scenario, r.pair) for r in self.records if r.target == name and _counts(r)}
        return any(
            (s.name, pair) not in done
            for s in self.experiment.scenarios
            for pair in pairs
            if pair < planned[s.name]
        )

    # --- the reference against itself ------------------------------------------------------

    async def _against_itself(self, live: LiveTarget) -> None:
        if not self.experiment.aa:
            return
        wish = self.experiment.requests
        for pair in range(wish.count if wish.count is not None else wish.pilot):
            if self._budget_spent(pair, share=0.2):
                return
            for scenario in self.experiment.scenarios:
                prompt = order.prompt_of(
                    pair, len(scenario.prompts), scenario.name, self.experiment.seed
                )
                arms = (0, 1) if (pair // 2 + pair) % 2 == 0 else (1, 0)
                for arm in arms:
                    await self._request(live, scenario.name, pair, prompt, phase="aa", arm=arm)

    # --- one server, one request -----------------------------------------------------------

    @asynccontextmanager
    async def _up(self, target: Target) -> AsyncIterator[LiveTarget]:
        """A target's server, running for as long as the context lasts."""
        async with AsyncExitStack() as stack:
            url = target.url
            if url is None:
                url = await self._launch(target, stack)
            live = await connect(self.http, target, url)
            if target.launch is not None:
                live.identity = with_launch(live, target.launch)
            await settle_rung(self.http, live, self.experiment.timeouts)
            self.infos[target.name] = live.info(target.launch)
            self.on_info(self.infos)
            self.on_event(Up(target.name, self.infos[target.name]))
            yield live

    async def _launch(self, target: Target, stack: AsyncExitStack) -> str:
        if target.launch is None:
            raise ServerError(f"target {target.name!r} has neither url nor launch")
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        self.on_event(Starting(target.name, target.launch))
        child = ChildServer(
            target.name,
            target.launch,
            port=port,
            log_path=self.folder.log_path(target.name),
            env={
                key: from_environment(value, f"env {key!r} of target {target.name!r}")
                for key, value in target.env.items()
            },
        )
        await child.start()
        stack.push_async_callback(child.stop)

        async def answers() -> bool:
            return await first_token(self.http, target, url, self.experiment.timeouts)

        def report(line: str) -> None:
            self.on_event(Starting(target.name, line))

        await wait_ready(child, probe=answers, timeout_s=target.start_timeout_s, on_line=report)
        return url

    async def _request(
        self,
        live: LiveTarget,
        scenario_name: str,
        pair: int,
        prompt: int,
        *,
        phase: Phase = "measure",
        arm: int | None = None,
        round_number: int = 0,
    ) -> None:
        if any(
            (r.target, r.scenario, r.pair, r.phase, r.arm)
            == (live.name, scenario_name, pair, phase, arm)
            for r in self.records
        ):
            return
        scenario = next(s for s in self.experiment.scenarios if s.name == scenario_name)
        if (live.name, scenario_name) not in self.warm:
            for number in range(self.experiment.warmup):
                # The prompts that are drawn last, so that a kept cache knows none of the first.
                last = len(scenario.prompts) - 1 - number % len(scenario.prompts)
                warm = order.prompt_of(
                    last, len(scenario.prompts), scenario.name, self.experiment.seed
                )
                await self._one(live, scenario, -1 - number, warm, "warmup", None, round_number)
            self.warm.add((live.name, scenario_name))
        await self._one(live, scenario, pair, prompt, phase, arm, round_number)

    async def _one(
        self,
        live: LiveTarget,
        scenario: Scenario,
        pair: int,
        prompt: int,
        phase: Phase,
        arm: int | None,
        round_number: int,
    ) -> None:
        self.on_event(Sending(live.name, scenario.name, phase, pair))
        number = 1 + max((r.id for r in self.records), default=-1)
        if phase != "warmup":
            await self._count(live, number, "before")
        record = await ask_once(
            self.http,
            live,
            scenario,
            self.experiment,
            number=number,
            pair=pair,
            prompt=prompt,
            phase=phase,
            arm=arm,
            round_number=round_number,
            session_s=time.monotonic() - self.begun,
        )
        if phase != "warmup":
            await self._count(live, number, "after")
        self.folder.add_request(record)
        self.records.append(record)
        self.spent_s += (record.done_us or 0) / 1e6
        self.on_event(Finished(record))
        self._watch_failures(record)

    async def _count(self, live: LiveTarget, number: int, moment: str) -> None:
        """Scrape the counters around a request, if this server has any that can be read."""
        if live.metrics_problem is not None:
            return
        settled = True
        if moment == "before":
            seen = await scrape(self.http, live)
        else:
            seen, settled = await scrape_settled(self.http, live)
        self.folder.add_counters(
            CounterRecord(
                target=live.name,
                request=number,
                moment="before" if moment == "before" else "after",
                at=time.time(),
                snapshot=None if isinstance(seen, str) else seen,
                settled=settled,
                problem=seen if isinstance(seen, str) else None,
            )
        )

    def _watch_failures(self, record: RequestRecord) -> None:
        """Stop loading a server that only fails (it may be our requests that hurt it)."""
        if record.error is None:
            self.failures[record.target] = 0
            return
        self.failures[record.target] += 1
        fatal = record.phase == "warmup" or self.failures[record.target] >= GIVE_UP_AFTER
        if fatal:
            status = f" (HTTP {record.error.status})" if record.error.status else ""
            raise ServerError(
                f"target {record.target!r}, scenario {record.scenario!r}: "
                f"{record.error.message}{status}"
                + ("" if record.phase == "warmup" else f"; {GIVE_UP_AFTER} failures in a row")
            )


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


def _counts(record: RequestRecord) -> bool:
    return record.phase == "measure"
