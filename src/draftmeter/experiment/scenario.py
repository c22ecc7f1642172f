"""Scenarios: the built-in ones, users' YAML, and bare files of prompts."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from draftmeter.errors import UsageError
from draftmeter.experiment.fields import Source, flag, mapping, shown, text, whole
from draftmeter.experiment.model import Message, Scenario
from draftmeter.experiment.prompts import UnusableError, messages_of, read_prompts
from draftmeter.experiment.yamlfile import PathKey, read_yaml

_YAML = (".yaml", ".yml")
_PROMPTS = (".jsonl", ".ndjson", ".json", ".txt")
# The measurement's own: a body that changes one of these is another test.
_OURS = {
    "messages": "prompts", "max_tokens": "max_tokens", "max_completion_tokens": "max_tokens",
    "model": "the target's model", "stream": None, "stream_options": None, "n": None,
}  # fmt: skip


def builtin_names() -> list[str]:
    """Names of the built-in scenarios, sorted."""
    return sorted(
        p.name.removesuffix(".yaml") for p in _folder().iterdir() if p.name.endswith(".yaml")
    )


def builtin_text(name: str) -> str:
    """The YAML of a built-in scenario; UsageError with the nearest name when there is none."""
    if name not in builtin_names():
        raise UsageError(_unknown(name))
    text: str = (_folder() / f"{name}.yaml").read_text("utf-8")
    return text


def load_scenario(name: str, base: Path) -> Scenario:
    """A built-in scenario by name, or one from a file (relative to ``base``).

    A file of prompts takes its name as scenario name; its ``max_tokens`` (256) and temperature
    (0.7) are the model's defaults.

    Raises:
        UsageError: no such name or file, or something wrong inside; says where.
    """
    if name in builtin_names():
        with resources.as_file(_folder() / f"{name}.yaml") as path:
            return _from_yaml(path)
    try:
        path = base / Path(name).expanduser()
    except RuntimeError:  # ~someone who does not exist
        path = base / name
    if path.suffix.lower() in _YAML:
        return _from_yaml(path)
    if path.suffix.lower() in _PROMPTS:
        return Scenario(name=path.stem, prompts=read_prompts(path))
    raise UsageError(_unknown(name))


def check_extra_body(data: Any, where: PathKey, source: Source) -> dict[str, Any]:
    """Fields added to a request's body; not those which the measurement sets itself."""
    body = mapping(data, where, source)
    for key in body:
        if key in _OURS:
            hint = f"; use {_OURS[key]}" if _OURS[key] else ""
            source.fail((*where, key), f"{key} in extra_body is set by the measurement{hint}")
    return body


def _from_yaml(path: Path) -> Scenario:
    data, lines = read_yaml(path)
    source = Source(str(path), lines)
    if not isinstance(data, dict):
        source.fail((), "a scenario is a mapping with a list of prompts")
    readers: dict[str, Callable[[Any, PathKey, Source], Any]] = {
        "description": text, "language": text, "max_tokens": partial(whole, least=1),
        "temperature": _temperature, "thinking": flag, "extra_body": check_extra_body,
        "prompts": _prompts,
    }  # fmt: skip
    source.attempt(lambda: source.known(data, readers, ()))
    if "prompts" not in data:
        source.problems.append(source.at((), "a scenario needs prompts, a list of texts"))
    values: dict[str, Any] = {
        key: source.attempt(partial(readers[key], value, (key,), source))
        for key, value in data.items()
        if key in readers and (value is not None or key == "prompts")
    }
    if "temperature" in data and data["temperature"] is None:
        values["temperature"] = None  # null: not sent, the server's default
    source.finish()
    return Scenario(name=path.stem, **values)


def _temperature(data: Any, where: PathKey, source: Source) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float) or not 0 <= data <= 5:
        source.fail(where, f"temperature: a number from 0 is expected, not {shown(data)}")
    return float(data)


def _prompts(data: Any, where: PathKey, source: Source) -> list[list[Message]]:
    if not isinstance(data, list) or not data:
        source.fail(where, "prompts: a list of texts, or of {messages: [...]}, is expected")
    found: list[list[Message]] = []
    for place, entry in enumerate(data):
        try:
            found.append(messages_of(entry))
        except UnusableError as error:
            source.fail((*where, place), f"prompt {place + 1}: {error}")
    return found


def _folder() -> Any:
    return resources.files("draftmeter.experiment") / "scenarios"


def _unknown(name: str) -> str:
    names = builtin_names()
    near = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    files = ", ".join((".yaml", *_PROMPTS))
    return f"unknown scenario {name[:80]!r}; {hint} (or a file: {files})"
