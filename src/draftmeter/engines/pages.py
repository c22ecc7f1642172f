"""What the pages of several engines have in common: the model list, series that are summed.

Pages come from anywhere: every value is checked before it is used, and what does not fit is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from draftmeter.wire.prometheus import Sample
from draftmeter.wire.text import printable

# More draft positions than any engine makes; a label beyond it is not a position.
MAX_POSITIONS = 1024


def mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def word(value: Any) -> str | None:
    """A short printable text, or None."""
    return (printable(value, 100) or None) if isinstance(value, str) else None


def positive(value: Any) -> int | None:
    """A positive whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def served_models(models: Any) -> list[dict[str, Any]]:
    """The entries of ``/v1/models`` without adapters of other entries (those have a parent)."""
    data = mapping(models).get("data")
    entries = [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []
    return [m for m in entries if isinstance(m.get("id"), str) and not m.get("parent")]


def owned_by(models: Any, owner: str) -> bool:
    """Does a served model name ``owner`` as its owner?"""
    return any(m.get("owned_by") == owner for m in served_models(models))


def only_model(models: Any) -> dict[str, Any]:
    """The one model served, also under several names; empty when there are several or none."""
    served = served_models(models)
    roots = {str(m.get("root") or m["id"]) for m in served}
    return served[0] if len(roots) == 1 else {}


def has_series(samples: Iterable[Sample] | None, prefix: str) -> bool:
    """Is there a series whose name begins with ``prefix``?"""
    return any(s.name.startswith(prefix) for s in samples or ())


@dataclass
class Series:
    """Samples of one model, with what went wrong in reading them.

    A value that is not a finite, non-negative number makes its sum unknown, with a note.
    """

    samples: list[Sample]
    notes: list[str] = field(default_factory=list)

    def total(self, name: str) -> float | None:
        """The sum of a series over its engines; ``name`` without ``_total`` (field case 12)."""
        found = self._of(name)
        return self._sum(name, [s.value for s in found]) if found else None

    def positions(self, name: str) -> list[float] | None:
        """A per-position series summed over its engines, by label ``position``."""
        found = self._of(name)
        by_position: dict[int, list[float]] = {}
        for sample in found:
            label = sample.labels.get("position", "")
            position = (
                int(label) if label.isascii() and label.isdecimal() and len(label) < 6 else -1
            )
            if not 0 <= position < MAX_POSITIONS:
                self.notes.append(f"{name} has a position {word(label)!r}: not used")
                return None
            by_position.setdefault(position, []).append(sample.value)
        if sorted(by_position) != list(range(len(by_position))):
            self.notes.append(f"{name} lacks some of its positions: not used")
            return None
        sums = [self._sum(name, by_position[i]) for i in range(len(by_position))]
        known = [value for value in sums if value is not None]
        return known if found and len(known) == len(sums) else None

    def created(self, names: Iterable[str]) -> float | None:
        """The newest ``_created`` time of these series (Unix seconds; field case 13)."""
        wanted = {f"{name}_created" for name in names}
        times = [s.value for s in self.samples if s.name in wanted]
        return max((t for t in times if math.isfinite(t) and t > 0), default=None)

    def _of(self, name: str) -> list[Sample]:
        with_suffix = [s for s in self.samples if s.name == f"{name}_total"]
        return with_suffix or [s for s in self.samples if s.name == name]

    def _sum(self, name: str, values: list[float]) -> float | None:
        for value in values:
            if not math.isfinite(value) or value < 0:
                self.notes.append(f"{name} is {value}: not used")
                return None
        return math.fsum(values)


def labels_of(samples: Iterable[Sample], label: str) -> Iterator[str]:
    """The distinct values of a label, sorted."""
    yield from sorted({s.labels[label] for s in samples if label in s.labels})
