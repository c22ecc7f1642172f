"""The experiment file, checked: every error names the file, the line and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from draftmeter.errors import UsageError
from draftmeter.experiment.model import Experiment, Requests, Scenario, Target, Timeouts
from draftmeter.experiment.scenario import load_scenario
from draftmeter.experiment.yamlfile import Lines, PathKey, read_yaml

_TOP = ("name", "reference", "targets", "scenarios", "requests", "concurrency", "policy", "aa",
        "together", "rounds", "warmup", "cache", "seed", "timeouts")  # fmt: skip
_TARGET = ("url", "launch", "model", "engine", "metrics_url", "api_key_env", "headers", "env",
           "extra_body", "start_timeout")  # fmt: skip
_REQUESTS = ("count", "pilot", "precision", "budget")
_TIMEOUTS = ("connect", "first_token", "stall", "total")
_RULES = ("min_speedup", "max_slowdown", "min_tok_s", "ttft_ms_p95", "visible_ttft_ms_p95",
          "max_errors")  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECRET = re.compile(r"authorization|api[-_]?key|token|secret|password", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


@dataclass
class _File:
    """Where the data came from, for error texts."""

    path: str
    lines: Lines = field(default_factory=dict)

    def fail(self, where: PathKey, message: str) -> NoReturn:
        while where and where not in self.lines:
            where = where[:-1]
        line = self.lines.get(where)
        raise UsageError(f"{self.path}:{line}: {message}" if line else f"{self.path}: {message}")

    def known(self, data: Mapping[str, Any], keys: tuple[str, ...], where: PathKey) -> None:
        for key in data:
            if key not in keys:
                near = difflib.get_close_matches(str(key), keys, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(keys)}"
                inside = f" in {'.'.join(map(str, where))}" if where else ""
                self.fail((*where, key), f"unknown key {str(key)[:60]!r}{inside}; {hint}")


def load_experiment(path: Path) -> Experiment:
    """An experiment file, checked and with its scenarios read.

    Raises:
        UsageError: the file, the line, what is wrong and what was expected.
    """
    data, lines = read_yaml(path)
    return _experiment(data, path.parent, _File(str(path), lines))


def experiment_of(
    data: Mapping[str, Any], base: Path, *, max_tokens: int | None = None
) -> Experiment:
    """The same from plain data, as a command line gives it; paths are relative to ``base``."""
    experiment = _experiment(data, base, _File("command line"))
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
    """What ``resolved`` wrote, back."""
    try:
        return msgspec.convert(data, Experiment)
    except msgspec.ValidationError as error:
        raise UsageError(f"experiment.yaml of the run is damaged: {error}") from None


def _experiment(data: Any, base: Path, file: _File) -> Experiment:
    if not isinstance(data, Mapping):
        file.fail((), "an experiment is a mapping with targets and scenarios")
    file.known(data, _TOP, ())
    targets = _targets(data.get("targets"), file)
    reference = data.get("reference") or next(iter(targets))
    if reference not in targets:
        near = difflib.get_close_matches(str(reference), targets, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"targets: {', '.join(targets)}"
        file.fail(("reference",), f"reference {str(reference)[:60]!r} is no target; {hint}")
    scenarios = _scenarios(data.get("scenarios"), base, file)
    return Experiment(
        name=_text(data.get("name", Path(file.path).stem), ("name",), file),
        reference=reference,
        targets=targets,
        scenarios=scenarios,
        requests=_requests(data.get("requests") or {}, file),
        concurrency=_concurrency(data.get("concurrency", [1]), file),
        policy=_policy(data.get("policy") or {}, scenarios, targets, file),
        aa=_flag(data, "aa", file),
        together=_flag(data, "together", file),
        rounds=_whole(data.get("rounds", 2), ("rounds",), file, least=1),
        warmup=_whole(data.get("warmup", 1), ("warmup",), file, least=0),
        cache=_one_of(data.get("cache", "bust"), ("bust", "keep"), ("cache",), file),
        seed=_whole(data.get("seed", 0), ("seed",), file, least=0),
        timeouts=_timeouts(data.get("timeouts") or {}, file),
    )


def _targets(data: Any, file: _File) -> dict[str, Target]:
    if not isinstance(data, Mapping) or not data:
        file.fail(("targets",), "targets: at least one is needed, e.g. {mine: {url: http://...}}")
    return {str(name): _target(str(name), value, file) for name, value in data.items()}


def _target(name: str, data: Any, file: _File) -> Target:
    where = ("targets", name)
    if not _NAME.fullmatch(name):
        file.fail(where, f"target name {name[:60]!r}: use letters, digits, '.', '_' and '-'")
    if not isinstance(data, Mapping):
        file.fail(where, f"target {name!r} is a mapping with url or launch")
    file.known(data, _TARGET, where)
    if ("url" in data) == ("launch" in data):
        file.fail(
            where, f"target {name!r} needs either url (a running server) or launch (a command)"
        )
    texts = {
        key: _text(data[key], (*where, key), file)
        for key in ("url", "launch", "model", "engine", "metrics_url", "api_key_env")
        if data.get(key) is not None
    }
    for key in ("url", "metrics_url"):
        if key in texts:
            _check_url(texts[key], (*where, key), file)
    if "launch" in texts and "{port}" not in texts["launch"]:
        file.fail((*where, "launch"), "launch must contain {port}: the server is given a free port")
    start = data.get("start_timeout")
    return Target(
        name=name,
        **texts,
        headers=_secrets(data.get("headers"), (*where, "headers"), file),
        env=_secrets(data.get("env"), (*where, "env"), file),
        extra_body=_mapping(data.get("extra_body"), (*where, "extra_body"), file),
        start_timeout_s=900.0
        if start is None
        else duration_s(start, (*where, "start_timeout"), file),
    )


def _check_url(url: str, where: PathKey, file: _File) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        file.fail(where, f"{url[:100]!r} is not an address like http://localhost:8000")
    if parts.username or parts.password:
        file.fail(where, "the address holds a password; use api_key_env or headers with $NAME")


def _scenarios(data: Any, base: Path, file: _File) -> list[Scenario]:
    if not isinstance(data, list) or not data:
        file.fail(("scenarios",), "scenarios: a list of built-in names or files of prompts")
    found: list[Scenario] = []
    for place, item in enumerate(data):
        where = ("scenarios", place)
        try:
            scenario = load_scenario(_text(item, where, file), base)
        except UsageError as error:
            if file.lines:
                file.fail(where, str(error))
            raise
        if scenario.name in {s.name for s in found}:
            file.fail(where, f"scenario {scenario.name!r} is there twice")
        found.append(scenario)
    return found


def _requests(data: Any, file: _File) -> Requests:
    where: PathKey = ("requests",)
    data = _mapping(data, where, file)
    file.known(data, _REQUESTS, where)
    if "count" in data and ("pilot" in data or "precision" in data):
        file.fail(where, "requests: either count, or pilot and precision")
    budget = data.get("budget")
    return Requests(
        count=_whole(data["count"], (*where, "count"), file, least=1) if "count" in data else None,
        pilot=_whole(data.get("pilot", 10), (*where, "pilot"), file, least=3),
        precision=fraction(data.get("precision", 0.03), (*where, "precision"), file),
        budget_s=None if budget is None else duration_s(budget, (*where, "budget"), file),
    )


def _timeouts(data: Any, file: _File) -> Timeouts:
    data = _mapping(data, ("timeouts",), file)
    file.known(data, _TIMEOUTS, ("timeouts",))
    given = {f"{key}_s": duration_s(value, ("timeouts", key), file) for key, value in data.items()}
    return Timeouts(**given)


def _policy(
    data: Any, scenarios: list[Scenario], targets: Mapping[str, Target], file: _File
) -> dict[str, dict[str, Any]]:
    data = _mapping(data, ("policy",), file)
    file.known(data, tuple(s.name for s in scenarios), ("policy",))
    for name, rules in data.items():
        where: PathKey = ("policy", name)
        file.known(_mapping(rules, where, file), _RULES, where)
        for rule, limit in rules.items():
            for side in ("than", "over"):
                if isinstance(limit, Mapping) and side in limit and limit[side] not in targets:
                    file.fail((*where, rule, side), f"{limit[side]!r} is no target of this file")
    return dict(data)


def _concurrency(data: Any, file: _File) -> list[int]:
    levels = data if isinstance(data, list) else [data]
    if not levels:
        file.fail(("concurrency",), "concurrency: a list of whole numbers, e.g. [1]")
    found = [_whole(n, ("concurrency", i), file, least=1) for i, n in enumerate(levels)]
    if found != [1]:
        file.fail(("concurrency",), "this version measures one stream at a time: concurrency: [1]")
    return found


def _secrets(data: Any, where: PathKey, file: _File) -> dict[str, str]:
    found = {}
    for key, value in _mapping(data, where, file).items():
        text = _text(value, (*where, key), file)
        if _SECRET.search(key) and not text.startswith("$"):
            file.fail(
                (*where, key), f"{key}: a secret in a file; write $NAME of an environment variable"
            )
        found[key] = text
    return found


def _mapping(data: Any, where: PathKey, file: _File) -> dict[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        file.fail(where, f"{_name(where)}: a mapping is expected, not {_shown(data)}")
    return dict(data)


def _text(data: Any, where: PathKey, file: _File) -> str:
    if isinstance(data, bool) or not isinstance(data, str | int | float):
        file.fail(where, f"{_name(where)}: text is expected, not {_shown(data)}")
    return str(data)


def _flag(data: Mapping[str, Any], key: str, file: _File) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        file.fail((key,), f"{key}: true or false is expected, not {_shown(value)}")
    return value


def _whole(data: Any, where: PathKey, file: _File, *, least: int) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or data < least:
        file.fail(
            where,
            f"{_name(where)}: a whole number of at least {least} is expected, not {_shown(data)}",
        )
    return data


def _one_of(data: Any, allowed: tuple[str, ...], where: PathKey, file: _File) -> Any:
    if data not in allowed:
        file.fail(
            where, f"{_name(where)}: one of {', '.join(allowed)} is expected, not {_shown(data)}"
        )
    return data


def duration_s(data: Any, where: PathKey, file: _File) -> float:
    """``90``, ``90s``, ``5m`` or ``1h`` as seconds."""
    found = _DURATION.fullmatch(str(data).strip()) if not isinstance(data, bool) else None
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        file.fail(where, f"{_name(where)}: a time like 90s or 5m is expected, not {_shown(data)}")
    return seconds


def fraction(data: Any, where: PathKey, file: _File) -> float:
    """``3%`` or ``0.03`` as a fraction between 0 and 1."""
    text = str(data).strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if isinstance(data, bool) or not 0 < value < 1:
        file.fail(where, f"{_name(where)}: a share like 3% or 0.03 is expected, not {_shown(data)}")
    return value


def _name(where: PathKey) -> str:
    """The nearest key with a name: an entry of a list is named by its list."""
    return next((part for part in reversed(where) if isinstance(part, str)), "value")


def _shown(data: Any) -> str:
    return repr(data)[:60]
