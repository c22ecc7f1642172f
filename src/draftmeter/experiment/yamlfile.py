"""YAML to plain data, with the line of every value for errors that say where. Bounded, tagless."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from draftmeter.errors import UsageError

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 50

PathKey = tuple[str | int, ...]
Lines = dict[PathKey, int]

_SCALARS = {
    "tag:yaml.org,2002:int": yaml.SafeLoader.construct_yaml_int,
    "tag:yaml.org,2002:float": yaml.SafeLoader.construct_yaml_float,
    "tag:yaml.org,2002:bool": yaml.SafeLoader.construct_yaml_bool,
}
_TEXTS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "timestamp", "value", "merge")}
# `{launch: vllm serve m --port {port}}`: how people write it, though YAML forbids bare braces
# in there. The keys that may follow the command end it.
_LAUNCH = re.compile(r"(\{\s*[a-z_]+:\s*)(?:[>|]-?)?\s*(?=[^\s\"'>|{}])")
_NEXT_KEY = re.compile(
    r",\s+(?=(?:url|model|engine|metrics_url|api_key_env|headers|env|extra_body|start_timeout)\s*:)"
)


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

    Raises:
        UsageError: names the file, the line and what is wrong.
    """
    text = read_text(path)
    try:
        return _parse(text, path)
    except UsageError:
        quoted = quote_launch(text)
        if quoted == text:
            raise
    return _parse(quoted, path)


def quote_launch(text: str) -> str:
    """``{launch: COMMAND with {port}}`` with the command in quotes, line for line."""
    out: list[str] = []
    position = 0
    for found in _LAUNCH.finditer(text):
        if found.start() < position:
            continue
        end = _closing_brace(text, found.end())
        if end is None:
            continue
        command = text[found.end() : end]
        if "{port}" not in command:
            continue
        more = _NEXT_KEY.search(command)
        rest = command[more.start() :] if more else ""
        command = command[: more.start()] if more else command
        quoted = json.dumps(command, ensure_ascii=False).replace("\\n", "\n")
        gap = "\n" * text.count("\n", found.end(1), found.end())  # lines keep their numbers
        out += [text[position : found.start()], found[1], gap, quoted, rest]
        position = end
    return "".join([*out, text[position:]])


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for place in range(start, min(len(text), start + 20_000)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return None


def _parse(text: str, path: Path) -> tuple[Any, Lines]:
    lines: Lines = {}
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise UsageError(f"{_at(path, event)}: aliases (*name) are not read; write it out")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _plain(node, (), lines, path) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: not valid YAML: {error.problem or error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    return data, lines


def _plain(node: yaml.Node, where: PathKey, lines: Lines, path: Path) -> Any:
    lines[where] = node.start_mark.line + 1
    if len(where) > MAX_DEPTH:
        raise UsageError(f"{_at(path, node)}: nested too deeply")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in found:
                raise UsageError(f"{_at(path, key_node)}: {key!r} stands here twice")
            found[key] = _plain(value_node, (*where, key), lines, path)
            lines[*where, key] = key_node.start_mark.line + 1
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_plain(v, (*where, i), lines, path) for i, v in enumerate(node.value)]
    return _scalar(node, path)


def _scalar(node: yaml.Node, path: Path) -> Any:
    assert isinstance(node, yaml.ScalarNode)  # noqa: S101  the third kind of node there is
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if node.tag in _SCALARS:
        try:
            return _SCALARS[node.tag](yaml.SafeLoader(""), node)
        except (ValueError, OverflowError):
            raise UsageError(f"{_at(path, node)}: {node.value[:40]!r} is not a number") from None
    if node.tag in _TEXTS:
        return node.value  # text; dates and the like stay as they were written
    raise UsageError(f"{_at(path, node)}: tags ({node.tag[:40]}) are not read")


def _at(path: Path, thing: Any) -> str:
    return f"{path}:{thing.start_mark.line + 1}"
