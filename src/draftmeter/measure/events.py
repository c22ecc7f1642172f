"""What a session tells whoever watches it: plain records, one callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftmeter.record.types import RequestRecord, TargetInfo


@dataclass(frozen=True)
class Starting:
    """A launched server is starting; ``line`` is the last line of its log."""

    target: str
    line: str


@dataclass(frozen=True)
class Up:
    """A target answers."""

    target: str
    info: TargetInfo


@dataclass(frozen=True)
class Planned:
    """How many pairs a scenario will take, now that this is known."""

    scenario: str
    pairs: int


@dataclass(frozen=True)
class Sending:
    """A request is about to be sent."""

    target: str
    scenario: str
    phase: str
    pair: int


@dataclass(frozen=True)
class Finished:
    """A request ended and is on disk."""

    record: RequestRecord


@dataclass(frozen=True)
class Note:
    """Something the user should read once."""

    text: str


Event = Starting | Up | Planned | Sending | Finished | Note
OnEvent = Callable[[Event], None]
