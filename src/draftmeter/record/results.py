"""``results.json``, schema ``draftmeter.results/1``. Names are a contract (docs/design.md).

A quantity that was not measured is None (``null``), never 0; ``warnings`` of its cell say why.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "draftmeter.results/1"


class Run(msgspec.Struct, frozen=True):
    """Which run this is."""

    id: str
    name: str
    started: str
    draftmeter: str


class TargetResult(msgspec.Struct, frozen=True, kw_only=True):
    """A target as it was measured; ``draft_tokens`` is K."""

    engine: str
    engine_version: str | None
    model: str | None
    method: str | None
    draft_tokens: int | None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A median over requests with its 95 % interval (order statistics), and the 95th percentile.

    ``low``/``high`` are None below six requests, where no 95 % interval of a median exists;
    ``p95`` is None below 20 requests.
    """

    median: float
    low: float | None
    high: float | None
    p95: float | None = None


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """Ratio of decode rates to the reference, paired by prompt (geometric mean), 95 % Student t."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of a cell, from ``witness``.

    Attributes:
        rate: accepted / drafted; interval by linearised clustered t, the request is the cluster.
        tokens_per_step: 1 + accepted / drafts, over drafted steps.
        position_acceptance: P(first i+1 tokens of a draft all accepted), i = 0..
        drafted_share: share of completion tokens that were accepted drafts (field case 20).
        witnesses_agree: None when there is only one witness.
    """

    witness: Literal["counters", "response", "stream"]
    drafts: int | None
    drafted: int | None
    accepted: int | None
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    tokens_per_step: float | None
    position_acceptance: list[float] | None
    drafted_share: float | None
    witnesses_agree: bool | None


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95 % interval; low and high are None where no interval can be given."""

    value: float
    low: float | None
    high: float | None


class Warn(msgspec.Struct, frozen=True):
    """Something that makes a cell doubtful: ``code`` for programs, ``text`` for people.

    ``severity`` "error" marks the cell as not trustworthy (exit code 4).
    """

    code: str
    text: str
    severity: Literal["note", "warning", "error"] = "warning"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Target x scenario (x concurrency x context): every number of it.

    ``requests`` are the counted ones that succeeded; ``errors`` counts the failed by kind;
    ``speed_requests`` of the requests were long enough to give a decode rate (field case 10).
    ``tokens_per_engine_step`` = decode tokens / (decode tokens - accepted), over all steps, drafted
    or not (decode tokens leave out the first chunk, which the prefill gave; it equals
    1 + accepted / drafts when every step drafts), geometric mean over requests; ``step_ms`` is
    the time of such a step; ``server_step_ms`` the same by the engine's own clock, where it tells
    its decode time: an independent check. ``step_cost`` is the geometric mean of the paired
    requests' own, so speedup over the plain target = tokens per engine step / step cost.
    ``total_tok_s`` is what all streams got together while every one of them was busy; None with
    one stream.
    """

    target: str
    scenario: str
    concurrency: int
    context_tokens: int | None
    requests: int
    speed_requests: int
    errors: dict[str, int]
    completion_tokens: int | None
    ttft_ms: Spread | None
    visible_ttft_ms: Spread | None
    decode_tok_s: Spread | None
    decode_tok_s_article: float | None
    step_ms: float | None
    server_step_ms: float | None = None
    tokens_per_engine_step: float | None
    total_tok_s: Estimate | None = None
    speedup: Speedup | None
    drafting: Drafting | None
    step_cost: Estimate | None
    break_even_rate: float | None
    warnings: list[Warn]


class MachineNoise(msgspec.Struct, frozen=True, kw_only=True):
    """The reference measured against itself (``aa: true``): ratios that mean nothing here.

    ``low``/``high`` bound them: the widest of the interval and its mirror image around 1.
    """

    scenario: str
    ratio: float
    low: float | None
    high: float | None
    pairs: int


class RooflineRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a target's step moves, what the device could reach with it, and how near it came.

    ``ceiling_tok_s`` = tokens per engine step x bandwidth / step bytes: the speed if a step took
    no longer than its bytes. ``utilisation`` = measured decode tok/s / ceiling, which for a
    speculative target is the same as the share of the bandwidth that is used.
    ``bytes_ms`` of ``step_ms`` are the bytes; the rest is launches, sampling, waiting.
    ``extra_ms`` is what a speculative step takes beyond a plain one; ``extra_bytes_ms`` of it are
    more bytes, and the rest is ``rest_ms_per_draft`` for each of the K draft passes.
    """

    target: str
    scenario: str
    device: str | None
    bandwidth_gb_s: float | None
    parameters: int
    read_parameters: float | None
    weight_bytes: float | None
    state_bytes: float | None
    kv_bytes: float | None
    draft_bytes: float | None
    step_bytes: float | None
    ceiling_tok_s: float | None
    utilisation: float | None
    step_ms: float | None
    bytes_ms: float | None
    extra_ms: Estimate | None = None
    extra_bytes_ms: float | None = None
    rest_ms_per_draft: Estimate | None = None
    notes: list[str]


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Why one plain target is not as much faster than another as its parameters are fewer.

    Ratios of ``large`` to ``small``: parameters read, bytes moved, and the other way round of
    decode tok/s. Each stage loses something: quantisation and state, then fixed cost per step.
    ``overhead_ms`` and ``effective_gb_s`` solve T = overhead + bytes / bandwidth for the two.
    """

    scenario: str
    large: str
    small: str
    parameters_ratio: float
    bytes_ratio: float
    speed_ratio: float
    overhead_ms: float | None
    effective_gb_s: float | None


class DraftLength(msgspec.Struct, frozen=True, kw_only=True):
    """What K = ``draft_tokens`` brings: speedup over the same model without speculation.

    ``basis`` says where it comes from. measured: a target with that K is in the run; predicted: K
    is below a measured one, so its position acceptance is known; extrapolated: beyond the largest
    measured K, bounded by what a further position can bring at all.
    """

    draft_tokens: int
    speedup: float
    low: float | None
    high: float | None
    tokens_per_step: float
    step_cost: float
    basis: Literal["measured", "predicted", "extrapolated"]


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The best draft length for a target and a scenario, from the K that were measured.

    Attributes:
        measured_draft_tokens: this target's own K.
        best_draft_tokens: K with the highest speedup; 0: leave speculation off.
        also_good: other K that cannot be told apart from the best (0 included).
        predicted: every K from 1 to one beyond the largest measured.
        fixed_cost: s, what having speculation on costs, in plain steps.
        pass_cost: c, what one more drafted token costs, in plain steps. From one K both are
            brackets: only s + cK is known.
        residual: largest distance of a measured step cost from 1 + s + cK, from three K on.
        first_position: acceptance at the first position for each measured K (field case 30a).
        next_draft_tokens: the K whose measurement would narrow the answer most.
        flags: the best K as flags to paste, by whom they are for: the engine, and planners.
    """

    target: str
    scenario: str
    concurrency: int
    context_tokens: int | None
    measured_draft_tokens: int
    best_draft_tokens: int
    also_good: list[int]
    predicted: list[DraftLength]
    fixed_cost: Estimate
    pass_cost: Estimate
    residual: float | None
    first_position: dict[str, Estimate]
    next_draft_tokens: int | None
    flags: dict[str, str]
    notes: list[str]


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """How many streams at a time it takes for speculation to stop paying.

    ``concurrency`` is where the speedup over the same model when plain falls to 1, interpolated on
    a logarithmic scale; ``low``/``high`` where its interval's ends do. None: not within what was
    measured; ``text`` says which side. ``schedule`` is vLLM's
    ``num_speculative_tokens_per_batch_size``: [from, to, K], from the best K at each concurrency.
    """

    target: str
    scenario: str
    context_tokens: int | None
    concurrency: float | None
    low: float | None
    high: float | None
    text: str
    schedule: list[list[int]]


class Predictability(msgspec.Struct, frozen=True, kw_only=True):
    """How sure the model is of its next token on this scenario, from an untimed pass.

    Attributes:
        tokens: that the means are over; ``requests`` they came from.
        p_max: mean probability of the likeliest token (the model's own distribution).
        entropy_nats: the middle of the mean entropy's bounds; the interval covers what 20
            log-probabilities leave open of the tail as well as the sampling of requests.
        ceiling: mean p_max at the scenario's temperature: no greedy drafter is accepted more often
            at the first position. None where the temperature is the server's own, unknown.
        first_position: acceptance there; None where the drafter did not draft in every step.
        text_loss: 1 - ceiling: what the text's own uncertainty costs a greedy drafter.
        drafter_loss: ceiling - first position's acceptance: what a better drafter could bring.
        correlation: of a prompt's mean p_max with its acceptance rate; None where there are
            fewer than four prompts or nothing varies.
    """

    target: str
    scenario: str
    requests: int
    tokens: int
    p_max: Estimate
    entropy_nats: Estimate
    ceiling: Estimate | None
    drafter: str | None
    first_position: Estimate | None
    text_loss: Estimate | None
    drafter_loss: Estimate | None
    correlation: Estimate | None
    text: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the policy, judged for one target by the interval of what was measured.

    ``against`` is the other target of a ratio. ``more_requests`` would settle an undecided one,
    if they are like those measured; None where that cannot be said. ``text`` says it all.
    """

    scenario: str
    target: str
    rule: str
    against: str | None
    concurrency: int
    context_tokens: int | None
    limit: float
    measured: float | None
    low: float | None
    high: float | None
    outcome: Literal["pass", "fail", "undecided"]
    more_requests: int | None
    text: str


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What to run for a scenario; with ``scenario`` None, one server for all of them.

    ``target`` None: nothing that was measured meets the policy. ``accepted_costs`` name what the
    choice gives up, and against whom.
    """

    scenario: str | None
    target: str | None
    text: str
    accepted_costs: list[str]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of ``results.json``."""

    schema: str
    run: Run
    reference: str
    targets: dict[str, TargetResult]
    cells: list[Cell]
    machine_noise: list[MachineNoise]
    tuning: list[Tuning]
    crossovers: list[Crossover] = []
    predictability: list[Predictability] = []
    roofline: list[RooflineRow]
    waterfall: list[Waterfall]
    verdicts: list[Verdict]
    recommendations: list[Recommendation] = []
    warnings: list[Warn]
