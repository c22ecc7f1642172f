"""Live progress on stderr: per cell, requests done, the estimate so far, and the time left."""

from __future__ import annotations

import time
from collections import defaultdict
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from draftmeter.analysis.cells import live
from draftmeter.experiment.model import Experiment
from draftmeter.measure.events import Event, Finished, Note, Planned, Sending, Starting, Up
from draftmeter.record.types import RequestRecord
from draftmeter.report.numbers import duration, number, percent, with_interval
from draftmeter.report.safe import printable

_WORDS = {
    "warmup": "warming up",
    "aa": "measuring against itself",
    "logprobs": "asking for log-probabilities",
}


class Progress:
    """A live table; a context manager, whose ``on_event`` is given to the session."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.records: dict[tuple[str, str], list[RequestRecord]] = defaultdict(list)
        self.planned: dict[str, int] = {}
        self.status = "starting"
        self.begun = time.monotonic()
        self.busy_s = 0.0
        self.count = 0

    def __enter__(self) -> Self:
        """Start drawing."""
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the live table away."""
        self.live.stop()

    def on_event(self, event: Event) -> None:
        """Take in what the session tells and redraw."""
        match event:
            case Starting(target, line):
                self.status = f"{target} is starting: {printable(line, limit=200)}"
            case Up(target, info):
                version = f" {info.engine_version}" if info.engine_version else ""
                self.console.print(Text(f"{target}: {info.engine}{version}, up", style="dim"))
                self.status = ""
            case Planned(scenario, pairs):
                self.planned[scenario] = pairs
            case Sending(target, scenario, phase, _):
                what = _WORDS.get(phase, "")
                self.status = f"{target}, {scenario} {what}".strip()
            case Finished(record):
                if record.phase != "logprobs":
                    self.count += 1
                    self.busy_s += (record.done_us or 0) / 1e6
                if record.phase == "measure":
                    self.records[record.target, record.scenario].append(record)
            case Note(text):
                self.console.print(Text(printable(text)))
        self.live.update(self.draw())

    def draw(self) -> Group:
        """The table as it stands."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("scenario", "target", "done", "decode tok/s", "accepted", "speedup"):
            table.add_column(title, no_wrap=True)
        done = 0
        for scenario in self.experiment.scenarios:
            for target in self.experiment.targets:
                cell = self.records[target, scenario.name]
                reference = self.records[self.experiment.reference, scenario.name]
                done += len(cell)
                now = live(cell, [] if target == self.experiment.reference else reference)
                table.add_row(
                    scenario.name,
                    target,
                    f"{len(cell)}/{self.planned.get(scenario.name, '?')}",
                    number(now.decode_tok_s),
                    percent(now.rate),
                    with_interval(now.speedup, now.speedup_low, now.speedup_high, "x"),
                )
        return Group(
            table, Text(f"{self._left(done)}{self.status}", style="dim", overflow="ellipsis")
        )

    def _left(self, done: int) -> str:
        total = sum(self.planned.get(s.name, 0) for s in self.experiment.scenarios)
        total *= len(self.experiment.targets)
        if not done or total <= done:
            return ""
        each = self.busy_s / max(1, self.count)
        left = (total - done) * each
        budget = self.experiment.requests.budget_s
        if budget is not None:
            left = min(left, max(0.0, budget - self.busy_s))
        return f"about {duration(left)} left; "
