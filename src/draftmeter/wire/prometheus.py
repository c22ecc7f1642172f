"""Prometheus text to samples, through prometheus-client's own parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftmeter.errors import ServerError

# The library reads character by character; a line beyond this is no sample of an inference server.
MAX_LINE_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of ``/metrics``: full series name (with ``_total``/``_created``), labels, value."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(
    text: str, prefixes: tuple[str, ...] | None = None, max_samples: int = 1_000_000
) -> tuple[Sample, ...]:
    """The samples of a metrics page, in its order, under the names the page gives them.

    Each line goes through prometheus-client by itself: a broken line loses nothing but itself,
    and without its TYPE line the library leaves a counter's name as it stands. Timestamps and
    exemplars are read over (field cases 13, 21a).

    Args:
        text: the page.
        prefixes: only series whose names begin with one of these; the other lines are not parsed.
        max_samples: more than this is no metrics page.

    Raises:
        ServerError: there are more than ``max_samples``.
    """
    samples: list[Sample] = []
    for line in text.split("\n"):
        head = line.lstrip()
        if not head or head[0] == "#" or len(line) > MAX_LINE_CHARACTERS:
            continue
        # A line may begin with "{" and give its name inside, quoted.
        if prefixes is not None and head[0] != "{" and not head.startswith(prefixes):
            continue
        samples.extend(
            sample
            for sample in _samples(line)
            if prefixes is None or sample.name.startswith(prefixes)
        )
        if len(samples) > max_samples:
            raise ServerError(f"the metrics page has more than {max_samples} samples; gave up")
    return tuple(samples)


def _samples(line: str) -> Iterator[Sample]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(line):
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, float(sample.value))
    except (ValueError, OverflowError, LookupError):
        return
