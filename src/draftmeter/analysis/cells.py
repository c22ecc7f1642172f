"""A run's records to its results: one cell per target, scenario, concurrency and context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

import msgspec

from draftmeter.analysis import alarms
from draftmeter.analysis.drafting import (
    drafting_of,
    index_counters,
    total,
)
from draftmeter.analysis.groups import CellKey, Group, groups_of, names_of, plain_counterpart
from draftmeter.analysis.intervals import (
    log_ratio_interval,
    median_interval,
    percentile,
)
from draftmeter.analysis.load import crossovers, total_tok_s
from draftmeter.analysis.pairs import log_ratios, speeds, speedup_of
from draftmeter.analysis.predictability import predictabilities
from draftmeter.analysis.stepcost import break_even_rate, step_cost, step_ms
from draftmeter.analysis.tuning import tunings
from draftmeter.record.results import (
    SCHEMA,
    Cell,
    Estimate,
    MachineNoise,
    Results,
    Run,
    Spread,
    TargetResult,
    Warn,
)
from draftmeter.record.types import CounterRecord, RequestRecord, RunData, TargetInfo

MINIMUM_FOR_P95 = 20


def summarise(data: RunData) -> Results:
    """All numbers of a run. Warm-up requests are not counted."""
    groups = groups_of(data)
    noise = _machine_noise(data.records)
    cells = [_cell(group, groups, data, noise) for group in groups.values()]
    environment = data.environment
    tuning = tunings(groups, data.reference, environment)
    measured = [key[0] for key in groups]
    names = list(dict.fromkeys([*names_of(data.experiment.get("targets")), *measured]))
    return Results(
        schema=SCHEMA,
        run=Run(environment.run_id, environment.name, environment.started, environment.draftmeter),
        reference=data.reference,
        targets={n: _target(environment.targets[n]) for n in names if n in environment.targets},
        cells=cells,
        machine_noise=noise,
        tuning=tuning,
        crossovers=crossovers(groups, data.reference, data.experiment, tuning),
        predictability=predictabilities(groups, data),
        roofline=[],
        waterfall=[],
        verdicts=[],
        warnings=_run_warnings(data, groups),
    )


def _cell(
    group: Group, groups: Mapping[CellKey, Group], data: RunData, noise: Sequence[MachineNoise]
) -> Cell:
    target, scenario, concurrency, context = group.key
    timings, rates = group.timings, list(group.rates.values())
    reference = groups.get((data.reference, *group.key[1:]))
    speedup = None
    if target != data.reference and reference is not None:
        speedup = speedup_of(group.rates, reference.rates, data.experiment)
    plain = plain_counterpart(group, groups, data.reference)
    cost = _step_cost(group, plain) if plain is not None else None
    decode = spread(rates)
    per_step = _tokens_per_engine_step(group, plain)
    cell = Cell(
        target=target,
        scenario=scenario,
        concurrency=concurrency,
        context_tokens=context,
        requests=len(group.ok),
        speed_requests=len(rates),
        errors=dict(Counter(r.error.kind for r in group.records if r.error is not None)),
        completion_tokens=total(r.completion_tokens for r in group.ok),
        ttft_ms=spread([t.ttft_ms for t in timings if t.ttft_ms is not None and not t.buffered]),
        visible_ttft_ms=_visible(group),
        decode_tok_s=decode,
        decode_tok_s_article=_article(group),
        step_ms=step_ms(per_step, decode.median) if per_step and decode else None,
        server_step_ms=_server_step_ms(group),
        tokens_per_engine_step=per_step,
        total_tok_s=total_tok_s(_load_records(data, group.key)) if concurrency > 1 else None,
        speedup=speedup,
        drafting=group.drafting.drafting,
        step_cost=cost,
        break_even_rate=_break_even(group, cost),
        warnings=[],
    )
    seen = alarms.Seen(
        cell=cell,
        info=group.info,
        records=group.records,
        ok=group.ok,
        timings=timings,
        reference=reference.ok if reference is not None and reference is not group else None,
        noise=next((n for n in noise if n.scenario == scenario), None),
        no_counterpart=group.drafting.drafting is not None
        and plain is None
        and len({key[0] for key in groups}) > 1,
        cache_bust=data.experiment.get("cache", "bust") == "bust",
    )
    warnings = [*group.drafting.warnings, *alarms.all_of(seen)]
    return msgspec.structs.replace(cell, warnings=warnings)


def _load_records(data: RunData, key: CellKey) -> list[RequestRecord]:
    """Everything a target was asked under a cell's load, fillers included."""
    return [
        r
        for r in data.records
        if (r.target, r.scenario, r.concurrency, r.context_tokens) == key
        and r.phase in ("measure", "warmup")
    ]


def spread(values: Sequence[float]) -> Spread | None:
    """Median with its interval, and the 95th percentile from 20 values on; None without values."""
    if not values:
        return None
    bounds = median_interval(values)
    return Spread(
        median=median(values),
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        p95=percentile(values, 95) if len(values) >= MINIMUM_FOR_P95 else None,
    )


def _visible(group: Group) -> Spread | None:
    if not any("r" in r.kinds for r in group.ok):
        return None
    return spread(
        [
            t.visible_ttft_ms
            for t in group.timings
            if t.visible_ttft_ms is not None and not t.buffered
        ]
    )


def _server_step_ms(group: Group) -> float | None:
    """Engine's decode time / (tokens - accepted), median over requests (field case 21c)."""
    found = []
    for record in group.ok:
        counts = group.drafting.by_request.get(record.id)
        off = group.info.speculative is False and group.drafting.drafting is None
        accepted = 0 if off else counts.accepted if counts is not None else None
        total_ms, tokens = record.server_decode_ms, record.completion_tokens
        if total_ms and tokens and accepted is not None and tokens > accepted:
            found.append(total_ms / (tokens - accepted))
    return median(found) if found else None


def _article(group: Group) -> float | None:
    rates = [
        t.decode_tok_s_article
        for t in group.timings
        if t.long_enough and t.decode_tok_s_article is not None
    ]
    return median(rates) if rates else None


def _tokens_per_engine_step(group: Group, plain: Group | None) -> float | None:
    """Geometric mean over requests, drafted steps or not; of the paired ones where there are any.

    The same mean and the same requests as speedup and step cost have, so that
    speedup over the plain target = tokens per engine step / step cost holds exactly.
    """
    keys = list(group.steps)
    if plain is not None:
        keys = [k for k in log_ratios(group.rates, plain.rates) if k in group.steps] or keys
    per_step = [group.steps[key][0] / group.steps[key][1] for key in keys]
    return geometric_mean(per_step) if per_step else None


def _step_cost(group: Group, plain: Group) -> Estimate | None:
    d = log_ratios(group.rates, plain.rates)
    keys = [key for key in d if key in group.steps]
    per_step = [group.steps[key][0] / group.steps[key][1] for key in keys]
    return step_cost(per_step, [d[key] for key in keys])


def _break_even(group: Group, cost: Estimate | None) -> float | None:
    """Only where every step drafts K tokens: otherwise C is a mean over unlike steps."""
    drafting, k = group.drafting.drafting, group.info.draft_tokens
    if cost is None or drafting is None or not k or not drafting.drafts or drafting.drafted is None:
        return None
    steps = sum(n for _, n in group.steps.values())
    full = drafting.drafted >= 0.99 * k * drafting.drafts
    return break_even_rate(cost.value, k) if full and drafting.drafts >= 0.95 * steps else None


def _machine_noise(records: Iterable[RequestRecord]) -> list[MachineNoise]:
    """The reference against itself: by scenario, the ratio of arm 1 to arm 0, paired by prompt."""
    arms: dict[str, tuple[list[RequestRecord], list[RequestRecord]]] = {}
    for record in records:
        if record.phase == "aa" and record.arm in (0, 1):
            arms.setdefault(record.scenario, ([], []))[record.arm].append(record)
    found = []
    for scenario, (zero, one) in arms.items():
        d = log_ratios(speeds(one), speeds(zero))
        estimate = log_ratio_interval(list(d.values()))
        if estimate is None:
            continue
        low = high = None
        if estimate.low is not None and estimate.high is not None:
            high = max(estimate.high, 1 / estimate.low)
            low = 1 / high
        found.append(
            MachineNoise(scenario=scenario, ratio=estimate.value, low=low, high=high, pairs=len(d))
        )
    return found


def _run_warnings(data: RunData, groups: Mapping[CellKey, Group]) -> list[Warn]:
    if not groups:
        return [Warn("nothing_measured", "no request was measured: go on with --resume", "error")]
    others = any(key[0] != data.reference for key in groups)
    answered = any(key[0] == data.reference and g.ok for key, g in groups.items())
    if others and not answered:
        return [Warn("no_reference", f"the reference {data.reference!r} was not measured, so there "
                     "is no speedup: go on with --resume", "error")]  # fmt: skip
    return []


def _target(info: TargetInfo) -> TargetResult:
    return TargetResult(
        engine=info.engine,
        engine_version=info.engine_version,
        model=info.model,
        method=info.method,
        draft_tokens=info.draft_tokens,
    )


@dataclass(frozen=True)
class LiveCell:
    """A cell while it is being measured: estimates to watch, not to stop on."""

    requests: int
    decode_tok_s: float | None
    rate: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None


def live(
    records: Sequence[RequestRecord],
    reference: Sequence[RequestRecord] = (),
    *,
    counters: Sequence[CounterRecord] = (),
    info: TargetInfo | None = None,
) -> LiveCell:
    """A running estimate for the progress display, cheap enough to be made after every request.

    Acceptance comes from what the responses say of themselves, or from ``counters`` where given.
    ``reference`` is empty for the reference itself.
    """
    ok = [r for r in records if r.error is None]
    rates = speeds(ok)
    ratio = log_ratio_interval(list(log_ratios(rates, speeds(reference)).values()))
    known = info or TargetInfo(engine="unknown", metrics_problem=None if counters else "not read")
    drafting = drafting_of(ok, index_counters(counters), known).drafting
    return LiveCell(
        requests=len(ok),
        decode_tok_s=median(rates.values()) if rates else None,
        rate=drafting.rate if drafting else None,
        speedup=ratio.value if ratio else None,
        speedup_low=ratio.low if ratio else None,
        speedup_high=ratio.high if ratio else None,
    )
