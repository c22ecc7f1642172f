"""The experiment file, checked: every error names the file, the line and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from draftmeter.errors import UsageError
from draftmeter.experiment.fields import (
    Source,
    duration_s,
    flag,
    fraction,
    launch,
    mapping,
    nearest,
    number,
    one_of,
    secrets,
    text,
    url,
    variable,
    whole,
)
from draftmeter.experiment.model import Experiment, Requests, Scenario, Target, Timeouts
from draftmeter.experiment.policy import POLICY_KEYS, read_policy
from draftmeter.experiment.scenario import check_extra_body, load_scenario
from draftmeter.experiment.yamlfile import PathKey, read_yaml

_TOP = (
    "name", "reference", "targets", "scenarios", "requests", "concurrency", "context",
    *POLICY_KEYS, "aa", "predictability", "together", "rounds", "warmup", "cache", "seed",
    "timeouts", "device", "bandwidth",
)  # fmt: skip
_TARGET = ("url", "launch", "model", "engine", "metrics_url", "api_key_env", "headers", "env",
           "extra_body",
           "start_timeout", "files", "kv_dtype")  # fmt: skip
_REQUESTS = ("count", "pilot", "precision", "budget")
_TIMEOUTS = ("connect", "first_token", "stall", "total")
MOST_STREAMS = 4096
MOST_CONTEXT = 4 * 2**20
_TOKENS = re.compile(r"(\d{1,7})\s*(k?)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def load_experiment(path: Path) -> Experiment:
    """An experiment file, checked and with its scenarios read; paths are relative to the file.

    Raises:
        UsageError: the file, the line, what is wrong and what was expected; up to five of them.
    """
    data, lines = read_yaml(path)
    return _experiment(data, path.parent, Source(str(path), lines))


def experiment_of(
    data: Mapping[str, Any], base: Path, *, max_tokens: int | None = None
) -> Experiment:
    """The same from plain data, as a command line gives it; paths are relative to ``base``."""
    experiment = _experiment(data, base, Source("command line"))
    if max_tokens is None:
        return experiment
    if max_tokens < 1:
        raise UsageError(f"--max-tokens must be at least 1, not {max_tokens}")
    capped = [msgspec.structs.replace(s, max_tokens=max_tokens) for s in experiment.scenarios]
    return msgspec.structs.replace(experiment, scenarios=capped)


def resolved(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain data for the run folder. Credentials are in it only as ``$NAME``."""
    data: dict[str, Any] = msgspec.to_builtins(experiment)
    return data


def from_resolved(data: Mapping[str, Any]) -> Experiment:
    """What ``resolved`` wrote, back.

    Raises:
        UsageError: the run folder's file was damaged.
    """
    try:
        return msgspec.convert(data, Experiment)
    except msgspec.ValidationError as error:
        raise UsageError(f"experiment.yaml of the run is damaged: {error}") from None


def _experiment(data: Any, base: Path, source: Source) -> Experiment:
    if not isinstance(data, Mapping):
        source.fail((), "an experiment is a mapping with targets and scenarios")
    source.attempt(lambda: source.known(data, _TOP, ()))
    targets = source.attempt(lambda: _targets(data.get("targets"), source))
    scenarios = source.attempt(lambda: _scenarios(data.get("scenarios"), base, source))
    given = data.get("targets")
    names = [str(name) for name in given] if isinstance(given, Mapping) and given else []
    reference = source.attempt(lambda: _reference(data.get("reference"), names, source))
    values: dict[str, Any] = {
        key: source.attempt(partial(read, data[key]))
        for key, read in _readers(source).items()
        if data.get(key) is not None
    }
    if names and scenarios:
        known = [s.name for s in scenarios]
        values |= read_policy(data, known, names, reference or names[0], source)
    if "device" in values and "bandwidth" in values:
        source.attempt(lambda: source.fail(("bandwidth",), "either device or bandwidth, not both"))
    source.finish()
    if "bandwidth" in values:
        values["bandwidth_gb_s"] = values.pop("bandwidth")
    return Experiment(
        **{"name": Path(source.path).stem, **values},
        reference=reference or "",
        targets=targets or {},
        scenarios=scenarios or [],
    )


def _readers(source: Source) -> dict[str, Callable[[Any], Any]]:
    """The keys of a file that depend on no other, and what reads each."""
    return {
        "name": lambda d: text(d, ("name",), source),
        "requests": lambda d: _requests(d, source),
        "concurrency": lambda d: _concurrency(d, source),
        "context": lambda d: _context(d, source),
        "aa": lambda d: flag(d, ("aa",), source),
        "predictability": lambda d: flag(d, ("predictability",), source),
        "together": lambda d: flag(d, ("together",), source),
        "rounds": lambda d: whole(d, ("rounds",), source, least=1),
        "warmup": lambda d: whole(d, ("warmup",), source, least=0),
        "cache": lambda d: one_of(d, ("bust", "keep"), ("cache",), source),
        "seed": lambda d: whole(d, ("seed",), source, least=0),
        "timeouts": lambda d: _timeouts(d, source),
        "device": lambda d: text(d, ("device",), source),
        "bandwidth": lambda d: _bandwidth(d, source),
    }


def _bandwidth(data: Any, source: Source) -> float:
    gb_s = number(data)
    if gb_s is None or not 0 < gb_s < 1e6:
        source.fail(("bandwidth",), "bandwidth: GB/s are expected, e.g. 1792")
    return gb_s


def _reference(data: Any, names: list[str], source: Source) -> str | None:
    if data is None:
        return names[0] if names else None
    reference = text(data, ("reference",), source)
    if names and reference not in names:
        message = f"reference {reference[:60]!r} is no target; {nearest(reference, names)}"
        source.fail(("reference",), message)
    return reference


def _targets(data: Any, source: Source) -> dict[str, Target]:
    if not isinstance(data, Mapping) or not data:
        source.fail(("targets",), "targets: at least one is needed, e.g. {mine: {url: http://...}}")
    found: dict[str, Target] = {}
    for name, value in data.items():
        target = source.attempt(partial(_target, str(name), value, source))
        if target is not None:
            found[target.name] = target
    return found


def _target(name: str, data: Any, source: Source) -> Target:
    where: PathKey = ("targets", name)
    if not _NAME.fullmatch(name):
        source.fail(where, f"target name {name[:60]!r}: use letters, digits, '.', '_' and '-'")
    if not isinstance(data, Mapping):
        source.fail(where, f"target {name!r} is a mapping with url or launch")
    source.known(data, _TARGET, where)
    given = {key: value for key, value in data.items() if value is not None}
    if "url" in given and "launch" in given:
        source.fail(
            where,
            f"target {name!r} has both url and launch: url is a server that runs already, "
            "launch starts one on a port of its own; keep one of them",
        )
    if "url" not in given and "launch" not in given:
        source.fail(
            where, f"target {name!r} needs either url (a running server) or launch (a command)"
        )
    readers: dict[str, Callable[[Any, PathKey, Source], Any]] = {
        "url": url, "launch": launch, "model": text, "engine": text, "metrics_url": url,
        "api_key_env": variable, "headers": secrets, "env": secrets,
        "extra_body": check_extra_body, "start_timeout": duration_s, "files": text,
        "kv_dtype": lambda d, w, s: one_of(d, ("bf16", "fp8"), w, s),
    }  # fmt: skip
    values = {key: readers[key](value, (*where, key), source) for key, value in given.items()}
    if "start_timeout" in values:
        values["start_timeout_s"] = values.pop("start_timeout")
    return Target(name=name, **values)


def _scenarios(data: Any, base: Path, source: Source) -> list[Scenario]:
    if not isinstance(data, list) or not data:
        source.fail(("scenarios",), "scenarios: a list of built-in names or files of prompts")
    found: list[Scenario] = []
    for place, item in enumerate(data):
        scenario = source.attempt(partial(_scenario, item, ("scenarios", place), base, source))
        if scenario is None:
            continue
        if scenario.name in {s.name for s in found}:
            source.fail(("scenarios", place), f"scenario {scenario.name!r} is there twice")
        found.append(scenario)
    return found


def _scenario(item: Any, where: PathKey, base: Path, source: Source) -> Scenario:
    if not isinstance(item, str):
        source.fail(where, f"a scenario is a name or a file, not {type(item).__name__}")
    try:
        return load_scenario(item, base)
    except UsageError as error:
        if source.lines:
            source.fail(where, str(error))
        raise


def _requests(data: Any, source: Source) -> Requests:
    where: PathKey = ("requests",)
    data = mapping(data, where, source)
    source.known(data, _REQUESTS, where)
    if "count" in data and ("pilot" in data or "precision" in data):
        source.fail(where, "requests: either count, or pilot and precision")
    values: dict[str, Any] = {}
    if "count" in data:
        values["count"] = whole(data["count"], (*where, "count"), source, least=1)
    if "pilot" in data:
        values["pilot"] = whole(data["pilot"], (*where, "pilot"), source, least=3)
    if "precision" in data:
        values["precision"] = fraction(data["precision"], (*where, "precision"), source)
    if data.get("budget") is not None:
        values["budget_s"] = duration_s(data["budget"], (*where, "budget"), source)
    return Requests(**values)


def _timeouts(data: Any, source: Source) -> Timeouts:
    data = mapping(data, ("timeouts",), source)
    source.known(data, _TIMEOUTS, ("timeouts",))
    return Timeouts(
        **{f"{k}_s": duration_s(value, ("timeouts", k), source) for k, value in data.items()}
    )


def _concurrency(data: Any, source: Source) -> list[int]:
    levels = data if isinstance(data, list) else [data]
    found = [whole(n, ("concurrency", i), source, least=1) for i, n in enumerate(levels)]
    if not found or max(found) > MOST_STREAMS:
        source.fail(
            ("concurrency",), f"concurrency: whole numbers up to {MOST_STREAMS}, e.g. [1, 4, 16]"
        )
    return sorted(set(found))


def _context(data: Any, source: Source) -> list[int]:
    """``[1k, 8k, 32k]`` as tokens; k is 1024."""
    levels = data if isinstance(data, list) else [data]
    found = []
    for place, item in enumerate(levels):
        told = _TOKENS.fullmatch(str(item).strip().lower())
        if told is None or isinstance(item, bool):
            source.fail(("context", place), "context: tokens are expected, e.g. [1k, 8k, 32k]")
        found.append(int(told[1]) * (1024 if told[2] else 1))
    if not found or max(found) > MOST_CONTEXT:
        source.fail(("context",), f"context: up to {MOST_CONTEXT} tokens, e.g. [1k, 8k, 32k]")
    return sorted(set(found))
