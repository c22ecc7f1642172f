"""The best draft length of each target as flags to paste, for its engine and for planners."""

from __future__ import annotations

import shlex

import msgspec

from draftmeter.engines import by_name
from draftmeter.record.results import Results, Tuning
from draftmeter.record.types import Environment, TargetInfo


def with_flags(results: Results, environment: Environment) -> Results:
    """The results with ``flags`` filled in wherever a best draft length is known."""
    tuning = [
        msgspec.structs.replace(t, flags=flags_of(t, environment.targets.get(t.target)))
        for t in results.tuning
    ]
    return msgspec.structs.replace(results, tuning=tuning)


def flags_of(tuning: Tuning, info: TargetInfo | None) -> dict[str, str]:
    """Flags for the best K by whom they are for.

    AIConfigurator's ``--nextn-accepted`` is the mean number of accepted tokens per step.
    """
    if info is None or info.engine == "unknown":
        return {}
    k = tuning.best_draft_tokens
    found = {info.engine: by_name(info.engine).flags(k, info.method, words_of(info.launch))}
    if k > 0:
        accepted = next(p.tokens_per_step for p in tuning.predicted if p.draft_tokens == k) - 1
        found["aiconfigurator"] = f"--nextn {k} --nextn-accepted {accepted:.3f}"
    return found


def words_of(launch: str | None) -> list[str]:
    """A launch command's words; none where it cannot be split."""
    try:
        return shlex.split(launch or "")
    except ValueError:
        return []
