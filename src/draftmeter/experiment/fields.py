"""Values of an experiment file, read with an eye on errors: where, what is wrong, what to write."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, urlsplit

from draftmeter.errors import UsageError
from draftmeter.experiment.yamlfile import Lines, PathKey

MAX_PROBLEMS = 5
LONGEST_TIME_S = 30 * 24 * 3600.0

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_FROM_ENVIRONMENT = re.compile(rf"\$(?:{_VARIABLE}|\{{{_VARIABLE}\}})")
# "token" but neither max_tokens nor TOKENIZERS_PARALLELISM.
_SECRET = re.compile(
    r"authorization|api[-_]?key|access[-_]?key|token(?!s|iz)|secret|passw|credential|cookie",
    re.IGNORECASE,
)
_SECRET_ARGUMENT = re.compile(
    r"(--(?:[a-z]+-)*(?:(?:api|access)[-_]key|(?:hf|auth|api|access|bearer)[-_]token|token))(?:[=\s]|$)"
)
_ASSIGNMENT = re.compile(rf"\s*({_VARIABLE})=\S*")

_T = TypeVar("_T")


@dataclass
class Source:
    """The file (or command line) that values come from, and what was found wrong in it so far."""

    path: str
    lines: Lines = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def at(self, where: PathKey, message: str) -> str:
        """``message`` with the file and the line of the value, or of what encloses it."""
        while where and where not in self.lines:
            where = where[:-1]
        line = self.lines.get(where)
        return f"{self.path}:{line}: {message}" if line else f"{self.path}: {message}"

    def fail(self, where: PathKey, message: str) -> NoReturn:
        """Give up on the value at ``where``."""
        raise UsageError(self.at(where, message))

    def attempt(self, read: Callable[[], _T]) -> _T | None:
        """What ``read`` gives; None after an error, which is kept so that the rest can be read."""
        try:
            return read()
        except UsageError as error:
            self.problems += str(error).split("\n")
            return None

    def finish(self) -> None:
        """Raise what was found wrong, at most ``MAX_PROBLEMS`` lines of it."""
        if not self.problems:
            return
        shown = self.problems[:MAX_PROBLEMS]
        if len(self.problems) > MAX_PROBLEMS:
            more = len(self.problems) - MAX_PROBLEMS + 1
            shown = [*shown[:-1], f"{self.path}: and {more} more errors"]
        raise UsageError("\n".join(shown))

    def known(self, data: Mapping[str, Any], keys: Iterable[str], where: PathKey) -> None:
        """Refuse keys that are not among ``keys``, all of them at once."""
        keys = list(keys)
        inside = f" in {'.'.join(map(str, where))}" if where else ""
        wrong = [
            self.at(
                (*where, key), f"unknown key {str(key)[:60]!r}{inside}; {nearest(str(key), keys)}"
            )
            for key in data
            if key not in keys
        ]
        if wrong:
            raise UsageError("\n".join(wrong))


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean 'launch'?``, or all there is when nothing comes near."""
    known = list(known)
    near = difflib.get_close_matches(word[:200], known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def mapping(data: Any, where: PathKey, source: Source) -> dict[str, Any]:
    """A mapping; nothing is an empty one."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        source.fail(where, f"{_label(where)}: a mapping is expected, not {shown(data)}")
    return dict(data)


def text(data: Any, where: PathKey, source: Source) -> str:
    """Text; whole numbers are taken as they are written."""
    if isinstance(data, bool | float):
        source.fail(where, f"{_label(where)}: text is expected; put {data} in quotes")
    if not isinstance(data, str | int):
        source.fail(where, f"{_label(where)}: text is expected, not {shown(data)}")
    if not str(data).strip():
        source.fail(where, f"{_label(where)} is empty")
    return str(data)


def flag(data: Any, where: PathKey, source: Source) -> bool:
    """True or false."""
    if not isinstance(data, bool):
        source.fail(where, f"{_label(where)}: true or false is expected, not {shown(data)}")
    return data


def whole(data: Any, where: PathKey, source: Source, *, least: int) -> int:
    """A whole number of at least ``least``."""
    if isinstance(data, bool) or not isinstance(data, int) or data < least:
        source.fail(
            where,
            f"{_label(where)}: a whole number of at least {least} is expected, not {shown(data)}",
        )
    return data


def one_of(data: Any, allowed: tuple[str, ...], where: PathKey, source: Source) -> Any:
    """One of a few words."""
    if data not in allowed:
        words = ", ".join(allowed)
        source.fail(where, f"{_label(where)}: one of {words} is expected, not {shown(data)}")
    return data


def duration_s(data: Any, where: PathKey, source: Source) -> float:
    """``90``, ``90s``, ``5m`` or ``1h`` as seconds; at most 30 days."""
    found = _DURATION.fullmatch(str(data).strip()) if not isinstance(data, bool) else None
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_TIME_S:
        source.fail(where, f"{_label(where)}: a time like 90s or 5m is expected, not {shown(data)}")
    return seconds


def fraction(data: Any, where: PathKey, source: Source) -> float:
    """``3%`` or ``0.03`` as a fraction between 0 and 1."""
    value = number(data)
    if value is None or not 0 < value < 1:
        source.fail(
            where, f"{_label(where)}: a share like 3% or 0.03 is expected, not {shown(data)}"
        )
    return value


def number(data: Any) -> float | None:
    """A number, ``55%`` being 0.55; None when it is none."""
    if isinstance(data, bool) or not isinstance(data, str | int | float):
        return None
    digits = str(data).strip()
    try:
        value = float(digits.removesuffix("%"))
    except ValueError:
        return None
    # Rounded so that 3% is the double 0.03, and 55% 0.55.
    return round(value / 100, 12) if digits.endswith("%") else value


def url(data: Any, where: PathKey, source: Source) -> str:
    """An http(s) address without credentials in it: it is written to the run folder."""
    address = text(data, where, source)
    advice = f"{_label(where)} holds a credential; use api_key_env, or headers with $NAME"
    try:
        parts = urlsplit(address)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if "@" in (parts.netloc or address):
        source.fail(where, advice)
    if any(_SECRET.search(key) for key, _ in parse_qsl(parts.query)):
        source.fail(where, advice)
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        source.fail(where, f"{address[:100]!r} is not an address like http://localhost:8000")
    return address


def launch(data: Any, where: PathKey, source: Source) -> str:
    """A command with ``{port}`` in it and no credential: it is written to the run folder."""
    command = text(data, where, source)
    if "{port}" not in command:
        source.fail(
            where, "launch must contain {port}, e.g. --port {port}: the server is given a free port"
        )
    words = _ASSIGNMENT.match(command)
    while words:
        if _SECRET.search(words[1]):
            source.fail(
                where, f"{words[1]} in launch is recorded; write env: {{{words[1]}: $NAME}}"
            )
        words = _ASSIGNMENT.match(command, words.end())
    found = _SECRET_ARGUMENT.search(command)
    if found:
        source.fail(
            where,
            f"{found[1]} in launch is recorded and in the process list; leave it out, "
            "or give the server its key through env: {NAME: $NAME}",
        )
    return command


def variable(data: Any, where: PathKey, source: Source) -> str:
    """The name of an environment variable. Never shown: people put the key itself here."""
    name = text(data, where, source)
    if not re.fullmatch(_VARIABLE, name):
        source.fail(
            where,
            f"{_label(where)}: the name of an environment variable is expected, like MY_API_KEY",
        )
    return name


def secrets(data: Any, where: PathKey, source: Source) -> dict[str, str]:
    """Headers or environment: what looks like a credential must be ``$NAME``. Never shown."""
    found = {}
    for key, value in mapping(data, where, source).items():
        here = (*where, key)
        if not _SECRET.search(key):
            found[key] = text(value, here, source)
            continue
        if not isinstance(value, str) or not _FROM_ENVIRONMENT.fullmatch(value):
            hint = "write $NAME, the name of an environment variable that holds it"
            source.fail(here, f"{key[:60]}: a secret does not belong in a file; {hint}")
        found[key] = value
    return found


def _label(where: PathKey) -> str:
    return next((part for part in reversed(where) if isinstance(part, str)), "")


def shown(data: Any) -> str:
    """A value in an error text, shortened."""
    if isinstance(data, Mapping):
        return "a mapping"
    if isinstance(data, list | tuple):
        return "a list"
    return "nothing" if data is None else repr(data)[:60]
