"""What there is to know about an engine, as data and small pure functions.

An engine is added by one module that fills in an ``Engine`` and one line in ``engines.ENGINES``.
No other room branches on an engine's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftmeter.record.types import CounterSnapshot, DraftCounts
from draftmeter.wire.chat import FinalFields
from draftmeter.wire.prometheus import Sample


@dataclass(frozen=True)
class Facts:
    """What a server answered to the questions asked of any server.

    Attributes:
        headers: response headers seen, lower case names.
        version, props, models: parsed JSON of ``/version``, ``/props``, ``/v1/models``,
            None where the server has no such page.
        slots: parsed JSON of ``/slots`` (llama.cpp).
        samples: parsed ``/metrics``; None where unreadable (``metrics_problem`` says why).
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    version: Any = None
    props: Any = None
    models: Any = None
    slots: Any = None
    samples: tuple[Sample, ...] | None = None
    metrics_problem: str | None = None


@dataclass(frozen=True)
class Identity:
    """What an engine makes of the facts. ``speculative`` None: the server does not tell."""

    version: str | None = None
    model: str | None = None
    speculative: bool | None = None
    method: str | None = None
    draft_tokens: int | None = None
    max_context: int | None = None


@dataclass(frozen=True)
class Speculation:
    """Speculation as a command asks for it: method and K; None where it does not say."""

    method: str | None = None
    draft_tokens: int | None = None


@dataclass(frozen=True)
class Drafted:
    """A response's own account of its drafting: totals, and step by step where told."""

    counts: DraftCounts
    drafted_steps: list[int] | None = None
    accepted_steps: list[int] | None = None


@dataclass(frozen=True)
class Engine:
    """One engine.

    Attributes:
        name: as in ``targets.*.engine``.
        recognises: facts of a server of this engine?
        identify: what they say of it.
        request_ladder: fields to add to a request so that token counts can be learned, best
            first. When the server refuses a field with HTTP 400, or a response does not bring
            what the rung is for, the next rung is tried. The last rung asks for nothing.
        read_counters: the samples of ``/metrics`` for one model (None: the only one) as a snapshot.
        read_drafting: the fields at the end of a response as its drafting, or None.
        chunk_is_step: one chunk is one engine step (True), one token (False), unknown (None).
        series: beginnings of the names of the series that ``read_counters`` looks at; the rest of
            a metrics page need not be parsed.
        draft_metrics: names of the drafting series, as advice when they are missing.
        how_to_measure: one sentence: the flags that make a server of this engine measurable.
        launch_example: a command that starts one, for documentation and error texts.
        read_launch: what a launch command says of speculation, where no page of the server does.
        flags: the flags for K drafted tokens with a method (0: none), to paste; the launch
            command's words, if known, are where everything else is taken from.
        with_draft_tokens: the words of a launch command with K replaced; None where it does not
            say K in a way that is known.
    """

    name: str
    recognises: Callable[[Facts], bool]
    identify: Callable[[Facts], Identity]
    request_ladder: tuple[Mapping[str, Any], ...]
    read_counters: Callable[[tuple[Sample, ...], str | None], CounterSnapshot]
    read_drafting: Callable[[FinalFields], Drafted | None]
    chunk_is_step: bool | None
    series: tuple[str, ...]
    draft_metrics: str
    how_to_measure: str
    launch_example: str
    flags: Callable[[int, str | None, Sequence[str]], str]
    read_launch: Callable[[Sequence[str]], Speculation] = lambda _: Speculation()
    with_draft_tokens: Callable[[Sequence[str], int], list[str] | None] = lambda _words, _k: None
