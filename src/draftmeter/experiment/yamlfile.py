"""YAML to plain data, with the line of every value for errors that say where. Bounded, tagless.

Scalars are read as YAML 1.2 has them: ``no``, ``1:30`` and ``010`` are text, not False, 90 and 8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from draftmeter.errors import UsageError

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 50
MAX_VALUES = 1_000_000

PathKey = tuple[str | int, ...]
Lines = dict[PathKey, int]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it is there
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
# `{launch: vllm serve m --port {port}}`: how people write it, though YAML forbids bare braces
# in there. Any key, so that a mistyped one is named. The keys that may follow the command end it.
_LAUNCH = re.compile(r"([{,]\s*[a-z_]+:\s)(?:[ \t]*[>|]-?(?=\s))?(\s*)(?=[^\s\"'>|{}])")
_KEY_BEFORE = re.compile(r",\s*[a-z_]+:\s")
_NEXT_KEY = re.compile(
    r",\s+(?=(?:url|model|engine|metrics_url|api_key_env|headers|env|extra_body|start_timeout|files|kv_dtype)\s*:)"
)
_LONGEST_LAUNCH = 8_000
_MOST_LAUNCHES = 500


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """A text file as UTF-8, with a bound; a byte order mark is dropped.

    Raises:
        UsageError: it is missing, unreadable, too large or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    if len(raw) > limit:
        raise UsageError(f"{path} is larger than {limit >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None


def read_yaml(path: Path) -> tuple[Any, Lines]:
    """A YAML file as plain data, and the line (from 1) on which each value stands.

    Aliases and tags are refused (an alias bomb is ten lines long); so are duplicate keys.
    In a mapping, a value's line is that of its key.

    Raises:
        UsageError: names the file, the line and what is wrong.
    """
    text = read_text(path)
    try:
        return _parse(text, path)
    except UsageError as error:
        quoted = quote_launch(text)
        if quoted == text:
            raise
        try:
            return _parse(quoted, path)
        except UsageError:
            raise error from None


def quote_launch(text: str) -> str:
    """``{launch: COMMAND with {port}}`` with the command in quotes, line for line."""
    out: list[str] = []
    position = 0
    for count, found in enumerate(_LAUNCH.finditer(text)):
        if count >= _MOST_LAUNCHES:
            break
        end = _closing_brace(text, found.end()) if found.start() >= position else None
        if end is None:
            continue
        command = text[found.end() : end]
        before, port, _ = command.partition("{port}")
        if not port or _KEY_BEFORE.search(before):
            continue
        more = _NEXT_KEY.search(command)
        rest = command[more.start() :] if more else ""
        command = command[: more.start()] if more else command
        # Line by line: within double quotes YAML folds a line end into one space.
        lines = [json.dumps(line, ensure_ascii=False)[1:-1] for line in command.split("\n")]
        out += [text[position : found.start()], found[1], found[2]]
        out += ['"', "\n".join(lines), '"', rest]
        position = end
    return "".join([*out, text[position:]])


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for place in range(start, min(len(text), start + _LONGEST_LAUNCH)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return None


def _parse(text: str, path: Path) -> tuple[Any, Lines]:
    tree = _Tree(str(path))
    try:
        for event in _events(text):
            tree.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: not valid YAML: {error.problem or error}") from None
    except yaml.YAMLError:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = text.count("\n", 0, bad.start()) + 1 if bad else 1
        raise UsageError(f"{path}:{line}: not valid YAML: a control character") from None
    return tree.root, tree.lines


def _events(text: str) -> Iterator[Any]:
    return iter(yaml.parse(text, Loader=_LOADER))


@dataclass
class _Open:
    """A mapping or sequence that has not ended yet; ``key`` waits for its value."""

    value: dict[str, Any] | list[Any]
    where: PathKey
    key: str | None = None


@dataclass
class _Tree:
    """Plain data grown from parser events: no recursion, so depth in a file is only a number."""

    path: str
    root: Any = None
    lines: Lines = field(default_factory=dict)
    _stack: list[_Open] = field(default_factory=list)
    _values: int = 0
    _documents: int = 0

    def take(self, event: Any) -> None:
        """Add one event of the parser."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._fail(event, "a second document (---) begins here; one file, one document")
        elif isinstance(event, yaml.AliasEvent):
            self._fail(event, "aliases (*name) are not read; write it out")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._stack.pop()
        elif isinstance(event, yaml.NodeEvent):
            self._node(event)

    def _node(self, event: Any) -> None:
        if event.tag not in (None, "!"):
            self._fail(event, f"tags ({event.tag[:40]}) are not read; quotes make a value text")
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            self._key(event, top, top.value)
            return
        self._values += 1
        if self._values > MAX_VALUES or len(self._stack) >= MAX_DEPTH:
            deep = len(self._stack) >= MAX_DEPTH
            self._fail(event, "nested too deeply" if deep else f"more than {MAX_VALUES} values")
        value: Any = _scalar(event)
        if isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        where = self._place(event, top, value)
        if isinstance(event, yaml.CollectionStartEvent):
            self._stack.append(_Open(value, where))

    def _key(self, event: Any, top: _Open, mapping: dict[str, Any]) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            self._fail(event, "a key must be a plain word")
        if event.value in mapping:
            self._fail(event, f"{event.value[:60]!r} stands here twice")
        top.key = event.value
        self.lines[*top.where, event.value] = event.start_mark.line + 1

    def _place(self, event: Any, top: _Open | None, value: Any) -> PathKey:
        if top is None:
            self.root = value
            where: PathKey = ()
        elif isinstance(top.value, list):
            where = (*top.where, len(top.value))
            top.value.append(value)
        else:
            where = (*top.where, str(top.key))
            top.value[str(top.key)] = value
            top.key = None
        self.lines.setdefault(where, event.start_mark.line + 1)
        return where

    def _fail(self, event: Any, message: str) -> None:
        raise UsageError(f"{self.path}:{event.start_mark.line + 1}: {message}")


def _scalar(event: Any) -> Any:
    if not isinstance(event, yaml.ScalarEvent):
        return None
    text = event.value
    if event.style:  # quoted or a block: text as it stands
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
