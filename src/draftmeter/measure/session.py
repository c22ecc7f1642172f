"""A session: every target, every scenario, in the decided order, one request after the other.

Each request is on disk before the next is sent.

Statistics stay out of here: how many pairs are enough is asked of ``Judge``, given by the caller.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import aiohttp

from draftmeter.errors import ServerError, UsageError
from draftmeter.experiment.filler import filler
from draftmeter.experiment.model import Experiment, Level, Scenario, Target
from draftmeter.measure import order
from draftmeter.measure.ask import Task, ask_once, words_per_token
from draftmeter.measure.counting import count
from draftmeter.measure.environment import gpu_memory_used_bytes
from draftmeter.measure.events import Finished, Note, OnEvent, Planned, Sending
from draftmeter.measure.load import load_block, pairs_under_load
from draftmeter.measure.logprobs import logprobs_pass, missing_logprobs
from draftmeter.measure.probe import LiveTarget
from draftmeter.measure.serving import gpu_free, up
from draftmeter.record.folder import RunFolder
from draftmeter.record.types import Phase, RequestRecord, TargetInfo

MINIMUM_PAIRS = 3  # below this no interval exists, so a time budget never ends earlier
MAXIMUM_PAIRS = 200  # a noisy pilot may ask for thousands
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
    next_id: int = 0
    words_per_token: float | None = None

    async def run(self) -> None:
        """Measure all that is not measured yet.

        Raises:
            ServerError: a target could not be started or keeps failing; what was measured is kept.
        """
        self.spent_s = sum(
            (r.done_us or 0) / 1e6 / r.concurrency for r in self.records if r.phase != "logprobs"
        )
        self.next_id = 1 + max((r.id for r in self.records), default=-1)
        targets = list(self.experiment.targets.values())
        if self.experiment.together or all(t.url for t in targets):
            await self._interleaved(targets)
        else:
            await self._in_blocks(targets)

    # --- interleaved: all targets up at the same time -------------------------------------

    async def _interleaved(self, targets: list[Target]) -> None:
        async with AsyncExitStack() as stack:
            live = {t.name: await stack.enter_async_context(up(self, t)) for t in targets}
            await self._against_itself(live[self.experiment.reference])
            planned = self._planned()
            for level in self.experiment.levels:
                if level.concurrency == 1:
                    await self._turns(live, planned, level)
                else:
                    await self._loads(live, planned, level)
            for one in live.values():
                await logprobs_pass(self, one, planned)

    async def _turns(
        self, live: dict[str, LiveTarget], planned: dict[str, int], level: Level
    ) -> None:
        """One stream: prompt by prompt, the targets in turn."""
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
                    task = Task(pair, turn.prompt, level=level)
                    await self._request(live[name], turn.scenario, task)
            pair += 1
            if level == self.experiment.levels[0]:
                self._after_pilot(pair, planned)

    async def _loads(
        self, live: dict[str, LiveTarget], planned: dict[str, int], level: Level
    ) -> None:
        """Many streams: the targets one after the other, in alternating rounds of load."""
        rounds = self.experiment.rounds
        for number in range(rounds):
            for name in order.blocks(list(live), number):
                await self._load(live[name], planned, level, number, rounds)

    async def _load(
        self,
        live: LiveTarget,
        planned: dict[str, int],
        level: Level,
        number: int,
        rounds: int,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """A target's share of a round of load, scenario by scenario."""
        if self._budget_spent(MINIMUM_PAIRS):
            return
        for scenario in self.experiment.scenarios:
            end = pairs_under_load(planned[scenario.name], level) if last is None else last
            share = [first + p for p in order.share(end - first, rounds, number)]
            pairs = [p for p in share if not self.done(live.name, scenario.name, p, level)]
            if pairs:
                await load_block(self, live, scenario, level, pairs, number)

    def _planned(self) -> dict[str, int]:
        wish = self.experiment.requests
        first = wish.count if wish.count is not None else wish.pilot
        for scenario in self.experiment.scenarios:
            self._tell_plan(scenario.name, first)
        return {s.name: first for s in self.experiment.scenarios}

    def _after_pilot(self, pairs_done: int, planned: dict[str, int]) -> None:
        """Stein's second stage: after the pilot, and only then, fix the number of pairs."""
        wish = self.experiment.requests
        if wish.count is not None or pairs_done != wish.pilot:
            return
        for scenario in self.experiment.scenarios:
            first = self.experiment.levels[0]
            records = [
                r
                for r in self.records
                if r.phase == "measure"
                and r.pair < wish.pilot
                and (r.concurrency, r.context_tokens) == (first.concurrency, first.context_tokens)
            ]
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
            self._tell_plan(scenario.name, planned[scenario.name])

    def _tell_plan(self, scenario: str, pairs: int) -> None:
        whole = sum(pairs_under_load(pairs, level) for level in self.experiment.levels)
        self.on_event(Planned(scenario, whole))

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
                if not self._missing(name, (first, last), rounds, planned, number):
                    continue
                if live is None or live.name != name:
                    await stack.aclose()
                    await gpu_free(name, empty, self.on_event)
                    live = await stack.enter_async_context(up(self, self.experiment.targets[name]))
                    self.warm = {w for w in self.warm if w[0] != name}
                if name == self.experiment.reference and number == 0 and first == 0:
                    await self._against_itself(live)
                await self._block(live, (first, last), rounds, planned, number)

    async def _block(
        self,
        live: LiveTarget,
        span: tuple[int, int],
        rounds: int,
        planned: dict[str, int],
        number: int,
    ) -> None:
        """A target's share of a round at every level, while its server is up."""
        first, last = span
        for level in self.experiment.levels:
            if level.concurrency > 1:
                if first == 0:  # the pilot's number decides; a second stage is for one stream
                    await self._load(live, planned, level, number, rounds)
                continue
            for pair in (first + p for p in order.share(last - first, rounds, number)):
                for turn in order.turns(
                    pair,
                    [(s.name, len(s.prompts)) for s in self.experiment.scenarios],
                    [live.name],
                    self.experiment.seed,
                ):
                    if pair < planned[turn.scenario]:
                        task = Task(pair, turn.prompt, round_number=number, level=level)
                        await self._request(live, turn.scenario, task)
        if first == 0 and number == rounds - 1:
            await logprobs_pass(self, live, planned)

    def _missing(
        self, name: str, span: tuple[int, int], rounds: int, planned: dict[str, int], number: int
    ) -> bool:
        """Is anything of a target's share of a round not measured yet?"""
        first, last = span
        if first == 0 and number == rounds - 1 and missing_logprobs(self, name, planned):
            return True
        for level in self.experiment.levels:
            for scenario in self.experiment.scenarios:
                wanted = planned[scenario.name]
                begin, end = (first, last) if level.concurrency == 1 else (
                    0, pairs_under_load(wanted, level) if first == 0 else 0
                )  # fmt: skip
                share = (begin + p for p in order.share(end - begin, rounds, number))
                if any(
                    (level.concurrency > 1 or pair < wanted)
                    and not self.done(name, scenario.name, pair, level)
                    for pair in share
                ):
                    return True
        return False

    def done(
        self,
        target: str,
        scenario: str,
        pair: int,
        level: Level,
        phase: Phase = "measure",
        arm: int | None = None,
    ) -> bool:
        """Is this request on record?"""
        return any(
            (r.target, r.scenario, r.pair, r.phase, r.arm, r.concurrency, r.context_tokens)
            == (target, scenario, pair, phase, arm, level.concurrency, level.context_tokens)
            for r in self.records
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
                    task = Task(pair, prompt, phase="aa", arm=arm)
                    await self._request(live, scenario.name, task)

    # --- one server, one request -----------------------------------------------------------

    async def _request(self, live: LiveTarget, scenario_name: str, task: Task) -> None:
        """Make a request of one stream, unless it was made; the target is warmed up before."""
        level = task.level
        if self.done(live.name, scenario_name, task.pair, level, task.phase, task.arm):
            return
        scenario = next(s for s in self.experiment.scenarios if s.name == scenario_name)
        if (live.name, scenario_name) not in self.warm:
            for number in range(self.experiment.warmup):
                # The prompts that are drawn last, so that a kept cache knows none of the first.
                last = len(scenario.prompts) - 1 - number % len(scenario.prompts)
                warm = order.prompt_of(
                    last, len(scenario.prompts), scenario.name, self.experiment.seed
                )
                filler = Task(-1 - number, warm, "warmup", round_number=task.round_number)
                await self.one(live, scenario, filler)
            self.warm.add((live.name, scenario_name))
        context = await self.context_text(live, level)
        await self.one(live, scenario, replace(task, context=context))

    async def one(self, live: LiveTarget, scenario: Scenario, task: Task) -> RequestRecord:
        """One request: counters around it if it is alone, and its line on disk when it ends."""
        self.on_event(Sending(live.name, scenario.name, task.phase, task.pair))
        number = self.next_id
        self.next_id += 1
        counted = task.phase in ("measure", "aa") and task.level.concurrency == 1
        if counted:
            await count(self.http, self.folder, live, number, "before")
        record = await ask_once(
            self.http, live, scenario, self.experiment, task,
            number=number, session_s=time.monotonic() - self.begun,
        )  # fmt: skip
        if counted:
            await count(self.http, self.folder, live, number, "after")
        self.folder.add_request(record)
        self.records.append(record)
        self.on_event(Finished(record))
        if task.phase != "logprobs":  # asked for beside the budget; a refusal is an answer
            if task.level.concurrency == 1:
                self.spent_s += (record.done_us or 0) / 1e6
            self._watch_failures(record)
        return record

    async def context_text(self, live: LiveTarget, level: Level) -> str:
        """The text that stands before a prompt at a level, as long as the server counts it.

        The first target's count of a sample decides for all, so that all get the same text.
        """
        if not level.context_tokens:
            return ""
        room = live.identity.max_context
        longest = max(s.max_tokens for s in self.experiment.scenarios)
        if room is not None and level.context_tokens + longest > room:
            raise UsageError(
                f"target {live.name!r} takes {room} tokens of context; {level.context_tokens} and "
                f"an answer of {longest} do not fit: shorten context or max_tokens"
            )
        if self.words_per_token is None:
            self.words_per_token = await words_per_token(self.http, live, self.experiment.timeouts)
        return filler(round(level.context_tokens * self.words_per_token))

    def _watch_failures(self, record: RequestRecord) -> None:
        """Stop loading a server that only fails (it may be our requests that hurt it)."""
        if record.error is None:
            self.failures[record.target] = 0
            return
        self.failures[record.target] += 1
        alone = record.concurrency == 1
        limit = max(GIVE_UP_AFTER, record.concurrency)
        fatal = (record.phase == "warmup" and alone) or self.failures[record.target] >= limit
        if fatal:
            status = f" (HTTP {record.error.status})" if record.error.status else ""
            raise ServerError(
                f"target {record.target!r}, scenario {record.scenario!r}: "
                f"{record.error.message}{status}"
                + ("" if record.phase == "warmup" and alone else f"; {limit} failures in a row")
            )
