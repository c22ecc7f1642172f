"""From a scenario's prompt to a record: the request's body, the ladder of fields, the result."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from draftmeter.errors import ServerError
from draftmeter.experiment.filler import WORDS_PER_TOKEN, filler
from draftmeter.experiment.model import (
    ONE_STREAM,
    Experiment,
    Level,
    Message,
    Scenario,
    Target,
    Timeouts,
)
from draftmeter.measure import order
from draftmeter.measure.probe import LiveTarget, connect
from draftmeter.measure.request import Answer, Call, send
from draftmeter.record.types import Phase, RequestRecord

SAMPLE_WORDS = 600
_GREETING = [Message(role="user", content="Say hello in one short sentence.")]


def body_of(
    model: str, messages: list[Message], scenario: Scenario, *extras: dict[str, Any]
) -> dict[str, Any]:
    """The request's body. Later ``extras`` win, except that nested objects are merged."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in messages],
        "max_tokens": scenario.max_tokens,
        "stream": True,
    }
    if scenario.temperature is not None:
        body["temperature"] = scenario.temperature
    if scenario.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": scenario.thinking}
    for extra in (scenario.extra_body, *extras):
        for key, value in extra.items():
            if isinstance(value, dict) and isinstance(body.get(key), dict):
                body[key] = {**body[key], **value}
            else:
                body[key] = value
    return body


def with_nonce(messages: list[Message], mark: str | None) -> list[Message]:
    """The messages with a mark before the first, so that no prefix cache has seen them."""
    if mark is None:
        return messages
    first = messages[0]
    return [Message(role=first.role, content=f"[{mark}]\n{first.content}"), *messages[1:]]


def call_of(live: LiveTarget, body: dict[str, Any], timeouts: Timeouts) -> Call:
    """The body as a call to the target's chat endpoint."""
    return Call(
        url=f"{live.base_url}/v1/chat/completions",
        headers=live.headers,
        body=msgspec.json.encode(body),
        timeouts=timeouts,
    )


async def send_on_ladder(
    http: aiohttp.ClientSession,
    live: LiveTarget,
    messages: list[Message],
    scenario: Scenario,
    timeouts: Timeouts,
) -> Answer:
    """Send; when the server refuses a field of ours (HTTP 400), ask again without it."""
    while True:
        rung = dict(live.engine.request_ladder[live.rung])
        body = body_of(live.model, messages, scenario, live.extra_body, rung)
        answer = await send(http, call_of(live, body, timeouts))
        refused = answer.error is not None and answer.error.status in (400, 422)
        if not refused or live.rung + 1 >= len(live.engine.request_ladder):
            return answer
        live.rung += 1


async def settle_rung(http: aiohttp.ClientSession, live: LiveTarget, timeouts: Timeouts) -> None:
    """Find the best rung of the ladder that this server honours.

    Raises:
        ServerError: it refuses every form of the request, or fails.
    """
    scenario = Scenario(name="hello", prompts=[_GREETING], max_tokens=8, temperature=0.0)
    best: int | None = None
    while True:
        answer = await send_on_ladder(http, live, _GREETING, scenario, timeouts)
        if answer.error is not None and answer.error.kind != "no_tokens":
            status = f" (HTTP {answer.error.status})" if answer.error.status else ""
            raise ServerError(
                f"target {live.name!r} at {live.base_url}: {answer.error.message}{status}"
            )
        if answer.token_source in ("token_ids", "running_usage"):
            return
        if answer.token_source == "final_usage" and best is None:
            best = live.rung
        if live.rung + 1 >= len(live.engine.request_ladder):
            live.rung = best if best is not None else live.rung
            return
        live.rung += 1


async def words_per_token(
    http: aiohttp.ClientSession, live: LiveTarget, timeouts: Timeouts
) -> float:
    """Words of filler that make one token, by the server's count of a sample; 0.75 untold."""
    counts = []
    for text in ("", filler(SAMPLE_WORDS)):
        messages = with_context(_GREETING, text)
        scenario = Scenario(name="sample", prompts=[messages], max_tokens=1, temperature=0.0)
        answer = await send_on_ladder(http, live, messages, scenario, timeouts)
        counts.append(answer.usage.prompt_tokens if answer.usage is not None else None)
    short, long = counts
    if short is None or long is None or long <= short:
        return WORDS_PER_TOKEN
    return len(filler(SAMPLE_WORDS).split()) / (long - short)


async def first_token(
    http: aiohttp.ClientSession, target: Target, url: str, timeouts: Timeouts
) -> bool:
    """Does the server of a launched target answer with a token yet?"""
    try:
        live = await connect(http, target, url)
    except ServerError:
        return False
    scenario = Scenario(name="hello", prompts=[_GREETING], max_tokens=1, temperature=0.0)
    body = body_of(live.model, _GREETING, scenario, live.extra_body)
    answer = await send(http, call_of(live, body, timeouts))
    if answer.error is None or answer.error.kind == "no_tokens":
        return True
    if (
        answer.error.status is not None
        and 400 <= answer.error.status < 500
        and answer.error.status != 429
    ):
        raise ServerError(
            f"target {target.name!r} is up but refuses a request: {answer.error.message} "
            f"(HTTP {answer.error.status})"
        )
    return False


def _accepted_so_far(answer: Answer) -> list[int] | None:
    """The running count for the record: empty when it stayed 0, None when it was not kept."""
    told = answer.accepted_so_far
    if told is None or answer.token_source != "running_usage":
        return None
    # A count for each chunk, or for each but the last, which the end of the answer brought.
    if len(told) not in (len(answer.at_us), len(answer.at_us) - 1):
        return None
    return told if any(told) else []


def _apart(experiment: Experiment, target: str, arm: int | None) -> str:
    """What keeps two askings of one server apart: the same mark twice would be a cached prompt.

    Targets on servers of their own get the same mark, so that their prompts are the same.
    """
    url = experiment.targets[target].url
    shared = url is not None and sum(t.url == url for t in experiment.targets.values()) > 1
    return f"{target if shared else ''}{'' if arm is None else f'aa{arm}'}"


def _load_mark(level: Level) -> str:
    """The same prompt under another load is another prompt to the prefix cache."""
    return "" if level == ONE_STREAM else f"{level.concurrency}/{level.context_tokens}"


@dataclass(frozen=True)
class Task:
    """One request to make: which prompt, what for, under which load.

    ``cap`` shortens the answer (of fillers); ``context`` is the text that stands before the prompt.
    """

    pair: int
    prompt: int
    phase: Phase = "measure"
    arm: int | None = None
    round_number: int = 0
    level: Level = ONE_STREAM
    context: str = ""
    cap: int | None = None


def with_context(messages: list[Message], context: str) -> list[Message]:
    """The messages with other text before the first thing the user says."""
    place = next((i for i, m in enumerate(messages) if m.role == "user"), 0)
    first = messages[place]
    longer = Message(role=first.role, content=context + first.content)
    return [*messages[:place], longer, *messages[place + 1 :]]


async def ask_once(
    http: aiohttp.ClientSession,
    live: LiveTarget,
    scenario: Scenario,
    experiment: Experiment,
    task: Task,
    *,
    number: int,
    session_s: float,
) -> RequestRecord:
    """Send one prompt of a scenario to a target and record all that came back."""
    mark = None
    if experiment.cache == "bust":
        apart = _apart(experiment, live.name, task.arm) + _load_mark(task.level)
        apart += "p" if task.phase == "logprobs" else ""  # the second time it is asked
        mark = order.nonce(experiment.seed, scenario.name, task.pair, apart)
    messages = scenario.prompts[task.prompt]
    if task.context:
        messages = with_context(messages, task.context)
    messages = with_nonce(messages, mark)
    if task.cap is not None:
        scenario = msgspec.structs.replace(scenario, max_tokens=task.cap)
    cpu, wall, started = time.process_time(), time.monotonic(), time.time()
    answer = await send_on_ladder(http, live, messages, scenario, experiment.timeouts)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    drafted = live.engine.read_drafting(answer.final)
    timings = answer.final.timings
    known = answer.token_source in ("token_ids", "running_usage")
    return RequestRecord(
        id=number,
        target=live.name,
        scenario=scenario.name,
        phase=task.phase,
        pair=task.pair,
        prompt=task.prompt,
        concurrency=task.level.concurrency,
        context_tokens=task.level.context_tokens,
        arm=task.arm,
        round=task.round_number,
        nonce=mark,
        started=round(started, 3),
        session_s=round(session_s, 6),
        max_tokens=scenario.max_tokens,
        connect_ms=answer.connect_ms,
        first_byte_us=answer.first_byte_us,
        done_us=answer.done_us,
        at_us=answer.at_us,
        pieces=answer.pieces,
        kinds="".join(answer.kinds),
        tokens=answer.tokens if known else None,
        token_source=answer.token_source,
        accepted_so_far=_accepted_so_far(answer),
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        model=answer.model,
        drafting=drafted.counts if drafted else None,
        drafted_steps=drafted.drafted_steps if drafted else None,
        accepted_steps=drafted.accepted_steps if drafted else None,
        server_decode_ms=timings.predicted_ms if timings else None,
        client_cpu=round(cpu / wall, 4) if wall > 0 else None,
        logprobs=[[round(p, 5) for p in tops] for tops in answer.logprobs] or None,
        error=answer.error,
    )
