"""The figures of a run in plain sentences, by rule: the answer first, then why.

No sentence says more than its interval supports: "faster" and "slower" need an interval that
excludes 1 and, where the machine's own noise was measured, lies outside that too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from draftmeter.report.numbers import (
    count,
    number,
    percent,
    percent_with_interval,
    ratio_with_interval,
    with_interval,
)
from draftmeter.report.safe import printable

if TYPE_CHECKING:
    from draftmeter.record.results import Cell, Drafting, MachineNoise, Results, Speedup, Warn

Outcome = Literal[
    "faster", "barely", "slower", "same", "noise", "undecided", "unknown", "untrustworthy", "alone"
]

SMALL = 0.05
"""A difference below 5 % either way is too small to act upon."""
RARE_SHARE = 0.10
"""Below this share of tokens from drafts, the step cost hardly matters: there is little to gain."""
GOOD_RATE = 0.60
LONG_RUN = 4.0
"""Accepted tokens per draft from which accepted runs are called long."""

# Where the reference is the same server without speculation, and where it is something else.
_OPENINGS: dict[Outcome, tuple[str, str]] = {
    "faster": ("Switch it on", "Faster"),
    "barely": ("Hardly worth it", "Hardly faster"),
    "slower": ("Leave it off", "Slower"),
    "same": ("No difference that matters", "No difference that matters"),
}


@dataclass(frozen=True)
class Answer:
    """What a run says of one cell; ``sentences`` are printable, the first is the answer."""

    target: str
    scenario: str
    concurrency: int
    context_tokens: int | None
    label_parts: tuple[str, ...]
    outcome: Outcome
    sentences: tuple[str, ...]

    @property
    def label(self) -> str:
        """The cell's name in its run, on one line."""
        return ", ".join(self.label_parts)


def explain(results: Results, scenario: str) -> list[str]:
    """One paragraph for each target that was compared, at most three sentences each."""
    paragraphs = []
    for answer in answers(results, scenario):
        text = " ".join(answer.sentences)
        paragraphs.append(f"{answer.label}: {text[:1].lower()}{text[1:]}")
    return paragraphs


def answers(results: Results, scenario: str | None = None) -> list[Answer]:
    """Answers for every compared cell, or for the only target's cells if there is nothing else.

    Speculative targets come before others; otherwise the order is that of the results.
    """
    cells = [c for c in results.cells if scenario is None or c.scenario == scenario]
    compared = [c for c in cells if c.target != results.reference]
    alone = not any(c.target != results.reference for c in results.cells)
    found = [_answer(results, cell, alone=alone) for cell in (cells if alone else compared)]
    order = list(dict.fromkeys(a.scenario for a in found))
    return sorted(
        found, key=lambda a: (order.index(a.scenario), not is_speculative(results, a.target))
    )


def is_speculative(results: Results, target: str) -> bool:
    """Speculation is configured for this target, or something was drafted."""
    info = results.targets.get(target)
    if info is not None and (info.method is not None or info.draft_tokens is not None):
        return True
    return any(c.drafting is not None for c in results.cells if c.target == target)


def label_of(results: Results, cell: Cell) -> tuple[str, ...]:
    """The cell's name in this run: its scenario, and whatever else tells it from others."""
    others = {c.target for c in results.cells} - {results.reference}
    target = (printable(cell.target, 60),) if len(others) > 1 else ()
    return (printable(cell.scenario, 60), *target, *load_of(results, cell))


def load_of(results: Results, cell: Cell) -> tuple[str, ...]:
    """Concurrency and context of a cell, where they are not the same one stream everywhere."""
    load: tuple[str, ...] = ()
    if cell.concurrency != 1 or len({c.concurrency for c in results.cells}) > 1:
        load = (f"{cell.concurrency:,} at a time",)
    if cell.context_tokens is not None:
        load = (*load, f"{count(cell.context_tokens, 'token')} of context")
    return load


def _answer(results: Results, cell: Cell, *, alone: bool) -> Answer:
    outcome, first = _alone(cell) if alone else _verdict(results, cell)
    return Answer(
        target=cell.target,
        scenario=cell.scenario,
        concurrency=cell.concurrency,
        context_tokens=cell.context_tokens,
        label_parts=label_of(results, cell),
        outcome=outcome,
        sentences=(first, *_why(results, cell, outcome)),
    )


def _alone(cell: Cell) -> tuple[Outcome, str]:
    doubt = _first_error(cell.warnings)
    if doubt is not None and cell.requests > 0:
        return "untrustworthy", f"Do not rely on these figures: {_clause(doubt)}."
    if cell.decode_tok_s is None:
        return "unknown", f"No answer: {_missing_speed(cell)}."
    d = cell.decode_tok_s
    text = with_interval(d.median, d.low, d.high, "tok/s")
    if cell.ttft_ms is not None:
        t = cell.ttft_ms
        text += f", first token after {with_interval(t.median, t.low, t.high, 'ms')}"
    return "alone", f"{text}."


def _verdict(results: Results, cell: Cell) -> tuple[Outcome, str]:
    """The outcome and the first sentence for a cell that has a reference."""
    reference = printable(results.reference, 40)
    doubt = _doubt(results, cell)
    if doubt is not None and cell.requests > 0:
        return "untrustworthy", f"Do not rely on these figures: {_clause(doubt)}."
    speedup = cell.speedup
    if speedup is None:
        return "unknown", f"No answer: {_missing_comparison(results, cell, reference)}."
    noise = next((n for n in results.machine_noise if n.scenario == cell.scenario), None)
    outcome = outcome_of(speedup, noise)
    figure = with_interval(speedup.ratio, speedup.low, speedup.high, "x")
    told = f"{figure} the speed of {reference}"
    if outcome == "undecided":
        return outcome, _undecided(speedup, noise, told)
    if outcome == "noise":
        return outcome, f"No difference beyond this machine's own noise{_band(noise)}: {told}."
    advice, finding = _OPENINGS[outcome]
    return outcome, f"{advice if _answers_whether_it_pays(results, cell) else finding}: {told}."


def outcome_of(speedup: Speedup, noise: MachineNoise | None = None) -> Outcome:
    """What the interval of a speedup supports, given the machine's own noise."""
    low, high = speedup.low, speedup.high
    if low is None or high is None:
        return "undecided"
    quiet_low, quiet_high = _noise_bounds(noise)
    if low > quiet_high:
        return "barely" if high < 1 + SMALL else "faster"
    if high < quiet_low:
        return "slower"
    if low >= 1 - SMALL and high <= 1 + SMALL:
        return "same"
    if quiet_low <= low and high <= quiet_high:
        return "noise"
    return "undecided"


def _undecided(speedup: Speedup, noise: MachineNoise | None, told: str) -> str:
    pairs = count(speedup.pairs, "pair")
    if speedup.low is None or speedup.high is None:
        return f"Undecided: {told}, from {pairs} of requests, too few for an interval."
    if speedup.low > 1 or speedup.high < 1:
        return f"Undecided: {told}, which reaches into this machine's own noise{_band(noise)}."
    return f"Undecided: {told} after {pairs} of requests; slower and faster are both possible."


def _why(results: Results, cell: Cell, outcome: Outcome) -> list[str]:
    """At most two sentences on the chain from acceptance to speed."""
    drafting = cell.drafting
    if outcome == "untrustworthy" or cell.requests == 0:
        return []
    if drafting is None:
        speculative = is_speculative(results, cell.target)
        return ["How many drafted tokens were accepted is not known."] if speculative else []
    if drafting.drafted == 0 or drafting.drafts == 0:
        return ["Nothing was drafted."]
    if drafting.accepted == 0:
        drafted = "drafted" if drafting.drafted is None else f"{drafting.drafted:,} drafted"
        return [f"None of the {drafted} tokens was accepted."]
    sentences = [_mechanism(results, cell, drafting, outcome)]
    hint = _hint(results, cell, drafting, outcome)
    return [s for s in (*sentences, hint) if s]


def _mechanism(results: Results, cell: Cell, drafting: Drafting, outcome: Outcome) -> str:
    """Acceptance, then what a step gave and what it cost; or that drafts were rare."""
    rate = None
    if drafting.rate is not None:
        figure = percent_with_interval(drafting.rate, drafting.rate_low, drafting.rate_high)
        rate = f"{figure} of drafted tokens were accepted"
    share = drafting.drafted_share
    if share is not None and share < RARE_SHARE:
        few = f"only {percent(share)} of all tokens came from drafts"
        best = f", so {number(1 / (1 - share), 'x', 2)} is the most they can bring"
        if outcome == "slower":
            best = ", too few to pay for drafting"
        return _sentence(f"{rate}, but {few}{best}" if rate else f"{few}{best}")
    gave = _step_gave(cell, drafting)
    cost = cell.step_cost
    if gave is not None and cost is not None:
        same = "" if _answers_whether_it_pays(results, cell) else " of the same model"
        gave += f" for the price of {number(cost.value, decimals=2)} plain steps{same}"
    return _sentence("; ".join(part for part in (rate, gave) if part))


def _step_gave(cell: Cell, drafting: Drafting) -> str | None:
    """Tokens per step over all steps; the drafted steps' own beside it where they differ."""
    overall, drafted = cell.tokens_per_engine_step, drafting.tokens_per_step
    if overall is None:
        return None if drafted is None else f"a step gave {number(drafted, decimals=2)} tokens"
    text = f"a step gave {number(overall, decimals=2)} tokens"
    if drafted is not None and abs(drafted / overall - 1) > SMALL:
        text += f" ({number(drafted, decimals=2)} where there was a draft)"
    return text


def _hint(results: Results, cell: Cell, drafting: Drafting, outcome: Outcome) -> str | None:
    """One more sentence, where the figures have something to add."""
    if outcome == "alone":
        return "Whether that pays, only the same server without speculation beside it can tell."
    info = results.targets.get(cell.target)
    k = info.draft_tokens if info is not None else None
    cost, even, rate = cell.step_cost, cell.break_even_rate, drafting.rate
    share = drafting.drafted_share
    if share is not None and share < RARE_SHARE:
        return None
    if outcome != "faster" and cost is not None and even is not None and rate is not None:
        if even > 1 and k is not None and (cost.low is None or cost.low > k + 1):
            cost_text = ratio_with_interval(cost.value, cost.low, cost.high)
            return (
                f"The step is too dear for any acceptance: a draft of {k} gives at most "
                f"{count(k + 1, 'token')} a step, and a step costs "
                f"{cost_text} plain ones; look at CUDA graphs and the draft head, not at the text."
            )
        if outcome == "slower" and even > 0:
            cause = "Acceptance is fine, the step is too dear" if rate >= GOOD_RATE else None
            needs = f"at this step cost it breaks even at {percent(even)} accepted"
            return _sentence(f"{cause}: {needs}" if cause else needs)
    return _about_k(cell, drafting, outcome, k)


def _about_k(cell: Cell, drafting: Drafting, outcome: Outcome, k: int | None) -> str | None:
    """Long runs, or drafts accepted whole so often that one more token could pay.

    Marginal rule: token K+1 pays if and only if a_(K+1) > c S, with a_(K+1) <= a_K and
    c <= (C - 1) / K. So a_K > S (C - 1) / K says that a larger K may pay, not that it does.
    """
    positions, cost = drafting.position_acceptance, cell.step_cost
    if outcome == "faster" and positions and k == len(positions) and cost is not None:
        gain = cell.speedup.ratio if cell.speedup is not None else 1.0
        whole = positions[-1]
        if whole >= 0.5 and whole > gain * (cost.value - 1) / k:
            return f"{percent(whole)} of drafts were accepted whole: a larger K may bring more."
    run = None if drafting.tokens_per_step is None else drafting.tokens_per_step - 1
    if run is not None and run >= LONG_RUN:
        return f"Accepted runs are long: {number(run, decimals=1)} tokens per draft."
    return None


def _answers_whether_it_pays(results: Results, cell: Cell) -> bool:
    """The reference is the same server without speculation, as far as is known."""
    if not is_speculative(results, cell.target) or is_speculative(results, results.reference):
        return False
    ours, other = results.targets.get(cell.target), results.targets.get(results.reference)
    if ours is None or other is None:
        return True
    same_model = None in (ours.model, other.model) or ours.model == other.model
    return same_model and ours.engine == other.engine


def _doubt(results: Results, cell: Cell) -> Warn | None:
    """The first error of this cell, of its reference's, or of the run."""
    own = _first_error(cell.warnings)
    if own is not None:
        return own
    place = (cell.scenario, cell.concurrency, cell.context_tokens)
    for other in results.cells:
        if other.target == results.reference and place == (
            other.scenario, other.concurrency, other.context_tokens,
        ):  # fmt: skip
            found = _first_error(other.warnings)
            if found is not None:
                return found
    return _first_error(results.warnings)


def _first_error(warnings: list[Warn]) -> Warn | None:
    return next((w for w in warnings if w.severity == "error"), None)


def _missing_speed(cell: Cell) -> str:
    if cell.requests == 0:
        failed = sum(cell.errors.values())
        return (
            f"{count(failed, 'request')} failed, none succeeded"
            if failed
            else "no request was measured"
        )
    if cell.speed_requests == 0:
        return "no request gave a decode rate"
    return "the speed was not measured"


def _missing_comparison(results: Results, cell: Cell, reference: str) -> str:
    if cell.decode_tok_s is None or cell.requests == 0:
        return _missing_speed(cell)
    beside = any(
        c.target == results.reference and c.scenario == cell.scenario and c.decode_tok_s
        for c in results.cells
    )
    if not beside:
        return f"no speed of {reference} was measured here to compare with"
    return f"no request could be paired with one of {reference}"


def _noise_bounds(noise: MachineNoise | None) -> tuple[float, float]:
    if noise is None or noise.low is None or noise.high is None:
        return 1.0, 1.0
    return min(1.0, noise.low), max(1.0, noise.high)


def _band(noise: MachineNoise | None) -> str:
    low, high = _noise_bounds(noise)
    return f" ({number(low, decimals=2)}-{number(high, decimals=2)})"


def _clause(warn: Warn) -> str:
    return printable(warn.text, 160).rstrip(".")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
