"""Predictability: the prompts once more with log-probabilities, which no timed run asks for.

Asked of targets that do not speculate, and of the reference: speculation does not change what a
model finds likely, but some engines refuse to tell it while they speculate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from draftmeter.experiment.model import Level
from draftmeter.measure import order
from draftmeter.measure.ask import Task
from draftmeter.measure.events import Note
from draftmeter.wire.chat import MOST_LOGPROBS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from draftmeter.experiment.model import Experiment, Scenario
    from draftmeter.measure.probe import LiveTarget
    from draftmeter.measure.session import Session

FEWER_LOGPROBS = 5
"""What OpenAI's first interface gave at most, and some servers still do."""


def missing_logprobs(session: Session, target: str, planned: Mapping[str, int]) -> bool:
    """Is a target still to be asked for log-probabilities? Not again once it refused."""
    experiment, info = session.experiment, session.infos.get(target)
    if not experiment.predictability:
        return False
    if info is not None and info.speculative and target != experiment.reference:
        return False
    if any(r.target == target and r.phase == "logprobs" and r.error for r in session.records):
        return False
    return any(True for _ in _open(session, target, planned))


async def logprobs_pass(session: Session, live: LiveTarget, planned: Mapping[str, int]) -> None:
    """Ask each measured prompt once, with log-probabilities; a refusal ends it with a note."""
    if not missing_logprobs(session, live.name, planned):
        return
    # A copy: a server that refuses these fields must not lose others it takes.
    apart, most = replace(live), MOST_LOGPROBS
    level = _level(session.experiment)
    context = await session.context_text(live, level)
    for scenario, pair in list(_open(session, live.name, planned)):
        prompt = order.prompt_of(
            pair, len(scenario.prompts), scenario.name, session.experiment.seed
        )
        task = Task(pair, prompt, "logprobs", level=level, context=context)
        record = await session.one(apart, _asking(scenario, most), task)
        if record.error is not None and record.error.status in (400, 422) and most > FEWER_LOGPROBS:
            apart, most = replace(live), FEWER_LOGPROBS
            record = await session.one(apart, _asking(scenario, most), task)
        if record.error is not None or not record.logprobs:
            why = record.error.message if record.error else "its answer has none"
            session.on_event(
                Note(f"{live.name} gives no log-probabilities ({why}): no predictability")
            )
            return


def _level(experiment: Experiment) -> Level:
    return Level(1, experiment.levels[0].context_tokens)


def _open(
    session: Session, target: str, planned: Mapping[str, int]
) -> Iterator[tuple[Scenario, int]]:
    """The prompts that were measured and have no log-probabilities yet."""
    level = _level(session.experiment)
    for scenario in session.experiment.scenarios:
        for pair in range(min(planned[scenario.name], len(scenario.prompts))):
            if not session.done(target, scenario.name, pair, level, "logprobs"):
                yield scenario, pair


def _asking(scenario: Scenario, most: int) -> Scenario:
    extra = {**scenario.extra_body, "logprobs": True, "top_logprobs": most}
    return msgspec.structs.replace(scenario, extra_body=extra)
