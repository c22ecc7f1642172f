"""The policy of an experiment file, or in a file of its own: limits per scenario, traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftmeter.experiment.fields import Source, fraction, mapping, nearest, number, text
from draftmeter.experiment.yamlfile import PathKey, read_yaml

POLICY_KEYS = ("policy", "traffic", "candidates")
_AGAINST = {"min_speedup": "over", "max_slowdown": "than"}
_RULES = (*_AGAINST, "min_tok_s", "ttft_ms_p95", "visible_ttft_ms_p95", "max_errors")


def load_policy(
    path: Path, scenarios: Sequence[str], targets: Sequence[str], reference: str
) -> dict[str, Any]:
    """``policy``, ``traffic`` and ``candidates`` of a file; a bare mapping is a policy.

    Raises:
        UsageError: the file, the line, what is wrong and what was expected.
    """
    data, lines = read_yaml(path)
    source = Source(str(path), lines)
    if not isinstance(data, Mapping) or not data:
        source.fail((), "a policy is a mapping of scenarios to rules")
    if not any(key in data for key in POLICY_KEYS):
        policy = source.attempt(lambda: _policy(data, scenarios, targets, reference, source, ()))
        source.finish()
        return {"policy": policy}
    # An experiment file will do: only what belongs to the policy is read.
    values = read_policy(data, scenarios, targets, reference, source)
    source.finish()
    return values


def read_policy(
    data: Mapping[str, Any],
    scenarios: Sequence[str],
    targets: Sequence[str],
    reference: str,
    source: Source,
) -> dict[str, Any]:
    """The three keys of a file that make the policy; mistakes are collected in ``source``."""
    values: dict[str, Any] = {}
    if data.get("policy") is not None:
        values["policy"] = source.attempt(
            lambda: _policy(data["policy"], scenarios, targets, reference, source)
        )
    if data.get("traffic") is not None:
        values["traffic"] = source.attempt(lambda: _traffic(data["traffic"], scenarios, source))
    if data.get("candidates") is not None:
        values["candidates"] = source.attempt(
            lambda: _candidates(data["candidates"], targets, source)
        )
    return values


def _traffic(data: Any, scenarios: Sequence[str], source: Source) -> dict[str, float]:
    shares = mapping(data, ("traffic",), source)
    source.known(shares, scenarios, ("traffic",))
    return {
        name: 1.0 if number(share) == 1 else fraction(share, ("traffic", name), source)
        for name, share in shares.items()
    }


def _candidates(data: Any, targets: Sequence[str], source: Source) -> list[str]:
    names = data if isinstance(data, list) else [data]
    for place, name in enumerate(names):
        if text(name, ("candidates", place), source) not in targets:
            message = f"candidate {name[:60]!r} is no target; {nearest(name, targets)}"
            source.fail(("candidates", place), message)
    return list(names)


def _policy(
    data: Any,
    scenarios: Sequence[str],
    targets: Sequence[str],
    reference: str,
    source: Source,
    at: PathKey = ("policy",),
) -> dict[str, dict[str, Any]]:
    data = mapping(data, at, source)
    source.known(data, scenarios, at)
    found: dict[str, dict[str, Any]] = {}
    for name, rules in data.items():
        where: PathKey = (*at, name)
        rules = mapping(rules, where, source)  # noqa: PLW2901  the same thing, checked
        source.known(rules, _RULES, where)
        found[name] = {
            rule: _limit(rule, limit, (*where, rule), targets, reference, source)
            for rule, limit in rules.items()
        }
    return found


def _limit(
    rule: str, data: Any, where: PathKey, targets: Sequence[str], reference: str, source: Source
) -> Any:
    """A rule's limit: a number, or ``{over|than: TARGET, by: NUMBER}`` (default: the reference)."""
    side = _AGAINST.get(rule)
    if side is None:
        value = number(data)
        if value is None or not 0 <= value < float("inf"):
            source.fail(where, f"{rule}: a number is expected, e.g. 150")
        return value if isinstance(data, str) else data
    example = f"{{{side}: {targets[0]}, by: {1.5 if side == 'over' else 0.25}}}"
    if not isinstance(data, Mapping):
        source.fail(where, f"{rule}: a mapping is expected, e.g. {example}")
    source.known(data, (side, "by"), where)
    target = data.get(side, reference)
    if target not in targets:
        message = f"{str(target)[:60]!r} is no target of this file; {nearest(str(target), targets)}"
        source.fail((*where, side), message)
    by = number(data.get("by"))
    if by is None or not 0 < by < (1 if rule == "max_slowdown" else float("inf")):
        source.fail((*where, "by"), f"{rule}: by is missing or out of range, e.g. {example}")
    return {side: target, "by": by}
