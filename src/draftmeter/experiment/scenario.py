"""Scenarios: the built-in ones, users' YAML, and bare files of prompts."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from draftmeter.errors import UsageError
from draftmeter.experiment.model import Scenario
from draftmeter.experiment.prompts import UnusableError, messages_of, read_prompts
from draftmeter.experiment.yamlfile import read_yaml

BARE_MAX_TOKENS = 256
BARE_TEMPERATURE = 0.7
_KEYS = (
    "description",
    "language",
    "max_tokens",
    "temperature",
    "thinking",
    "extra_body",
    "prompts",
)
_FILES = (".yaml", ".yml", ".jsonl", ".ndjson", ".json", ".txt")


class _Head(msgspec.Struct, frozen=True):
    """A scenario file without its prompts."""

    description: str = ""
    language: str | None = None
    max_tokens: int = BARE_MAX_TOKENS
    temperature: float | None = BARE_TEMPERATURE
    thinking: bool | None = None
    extra_body: dict[str, Any] = {}


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

    Raises:
        UsageError: no such name or file, or something wrong inside; says where.
    """
    if name in builtin_names():
        with resources.as_file(_folder() / f"{name}.yaml") as path:
            return _from_yaml(path)
    path = base / Path(name).expanduser()
    if path.suffix.lower() not in _FILES:
        raise UsageError(_unknown(name))
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(path)
    return Scenario(name=path.stem, prompts=read_prompts(path))


def _from_yaml(path: Path) -> Scenario:
    data, lines = read_yaml(path)
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("prompts"), list)
        or not data["prompts"]
    ):
        raise UsageError(f"{path}: a scenario is a mapping with a list of prompts")
    for key in data:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_KEYS)}"
            raise UsageError(f"{path}:{lines.get((key,), 1)}: unknown key {key[:60]!r}; {hint}")
    prompts = []
    for place, entry in enumerate(data["prompts"]):
        try:
            prompts.append(messages_of(entry))
        except UnusableError as error:
            raise UsageError(f"{path}:{lines.get(('prompts', place), 1)}: {error}") from None
    try:
        head = msgspec.convert({k: v for k, v in data.items() if k != "prompts"}, _Head)
    except msgspec.ValidationError as error:
        key = str(error).rpartition("$.")[2].strip("`")
        raise UsageError(f"{path}:{lines.get((key,), 1)}: {key}: {error}") from None
    if head.max_tokens < 1:
        raise UsageError(f"{path}:{lines.get(('max_tokens',), 1)}: max_tokens must be at least 1")
    return Scenario(name=path.stem, prompts=prompts, **msgspec.structs.asdict(head))


def _folder() -> Any:
    return resources.files("draftmeter.experiment") / "scenarios"


def _unknown(name: str) -> str:
    names = builtin_names()
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    return (
        f"unknown scenario {name[:80]!r}; {hint} (or a file of prompts: .jsonl, .json, .txt, .yaml)"
    )
