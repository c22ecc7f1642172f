"""Server-sent events, incrementally: bytes in any split to whole events.

Follows the line and field rules of the HTML standard (section "Server-sent events"): lines end
with LF, CR or CRLF and with nothing else, so U+2028 inside a payload is text (field cases 5, 11a).
Two deliberate differences: an event whose data is empty is dropped (a keep-alive), and the last
event counts even when no blank line follows it.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its data lines joined by LF, and its ``event:`` name, if it has one."""

    data: bytes
    name: str | None


class SseTooLargeError(ValueError):
    """A line, or the data of one event, is larger than the parser was told to hold."""


class SseParser:
    """Feeds of bytes to events. Holds at most about twice ``max_event_bytes``.

    The same bytes give the same events however they are split into feeds. After
    ``SseTooLargeError`` the parser is of no more use.
    """

    def __init__(self, max_event_bytes: int = 8 * 2**20) -> None:
        self._max = max_event_bytes
        self._started = False  # past the place where a byte order mark may stand
        self._after_cr = False  # the last byte seen was CR: an LF that follows belongs to it
        self._tail: list[bytes] = []  # pieces of the unfinished line, joined once it ends
        self._tail_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._name: str | None = None

    def feed(self, data: bytes) -> list[Event]:
        """Take what arrived; return the events that are now complete.

        Raises:
            SseTooLargeError: a line, or an event, exceeds the bound.
        """
        # By far most feeds are exactly one event of one line; nothing else may be pending.
        if (
            data[-2:] == b"\n\n"
            and data[:6] == b"data: "
            and self._started
            and not (self._after_cr or self._tail or self._data or self._name)
            and data.find(b"\n") == len(data) - 2
            and b"\r" not in data
            and 8 < len(data) <= self._max
        ):
            return [Event(data[6:-2], None)]
        return self._feed(data)

    def close(self) -> list[Event]:
        """The stream is over: return the last event, if it lacked its blank line."""
        self._started = True
        events = self._lines([b"".join(self._tail), b""]) if self._tail else []
        self._tail, self._tail_size, self._after_cr = [], 0, False
        self._end_event(events)
        return events

    def _feed(self, data: bytes) -> list[Event]:
        if not self._started:
            data = self._after_mark(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":
                data = data[1:]
        if not data:
            return []
        if b"\r" in data:
            self._after_cr = data[-1:] == b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        last = lines.pop()
        if lines and self._tail:
            lines[0] = b"".join((*self._tail, lines[0]))
            self._tail, self._tail_size = [], 0
        events = self._lines(lines)
        if last:
            self._tail.append(last)
            self._tail_size += len(last)
            if self._tail_size > self._max:
                raise self._too_large("a line")
        return events

    def _after_mark(self, data: bytes) -> bytes:
        """The first bytes without their byte order mark; nothing while it may still be one."""
        head = b"".join((*self._tail, data))
        self._tail, self._tail_size = [], 0
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._tail = [head] if head else []
            return b""
        self._started = True
        return head.removeprefix(_BOM)

    def _lines(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            if len(line) > self._max:
                raise self._too_large("a line")
            if not line:
                self._end_event(events)
            elif line[:5] == b"data:":
                self._add_data(line[6:] if line[5:6] == b" " else line[5:])
            elif line[:6] == b"event:":
                name = line[6:].removeprefix(b" ").decode("utf-8", "replace")
                self._name = name or None
            elif line == b"data":
                self._add_data(b"")
        return events

    def _add_data(self, value: bytes) -> None:
        self._data.append(value)
        self._data_size += len(value) + 1
        if self._data_size > self._max:
            raise self._too_large("an event")

    def _end_event(self, events: list[Event]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            if data:
                events.append(Event(data, self._name))
            self._data, self._data_size = [], 0
        self._name = None

    def _too_large(self, what: str) -> SseTooLargeError:
        return SseTooLargeError(f"{what} of the stream is larger than {self._max} bytes")
