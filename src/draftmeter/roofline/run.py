"""The roofline of a run: what each target's step moves, and how near it came to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from draftmeter.errors import UsageError
from draftmeter.record.results import Cell, Estimate, Results, RooflineRow, Waterfall
from draftmeter.record.types import Environment, RequestRecord, RunData, StepSize, TargetInfo
from draftmeter.roofline.devices import device_named, local_gpu
from draftmeter.roofline.load import load_model
from draftmeter.roofline.read import read_of, total
from draftmeter.roofline.step import (
    KV_BYTES,
    affine_fit,
    ceiling_tok_s,
    step_bytes,
    utilisation,
    waterfall,
)


def mean_context(records: Iterable[RequestRecord], target: str) -> int:
    """Mean tokens of context over a target's counted requests: the prompt and half the answer."""
    records = list(records)
    least = min((r.context_tokens or 0 for r in records if r.phase == "measure"), default=0)
    seen = [
        r.usage.prompt_tokens + (r.completion_tokens or 0) / 2
        for r in records
        if r.target == target
        and r.phase == "measure"
        and (r.concurrency, r.context_tokens or 0) == (1, least)
        and r.error is None
        and r.usage is not None
        and r.usage.prompt_tokens is not None
    ]
    return round(sum(seen) / len(seen)) if seen else 0


def step_size(files: str, info: TargetInfo, context: int, kv_dtype: str) -> StepSize:
    """A target's step from the headers of its model's files (file I/O: about a second).

    n-grams draft without a pass over the model; K counts only where speculation is not off.

    Raises:
        UsageError: the files cannot be read or are of no known kind.
    """
    model = load_model(files)
    element = KV_BYTES[kv_dtype]
    drafts = 0 if info.speculative is False else info.draft_tokens or 0
    plain = step_bytes(model, context, 1, 0, element)
    step = step_bytes(model, context, 1, drafts, element)
    if (info.method or "").startswith("ngram"):
        step = replace(step, draft=0)
    components = read_of(model)
    return StepSize(
        files=files,
        source=model.source,
        weights=model.weights,
        parameters=sum(c.parameters for c in components),
        read_parameters=total(c.read_parameters for c in components),
        context_tokens=context,
        kv_dtype=kv_dtype,
        draft_tokens=drafts,
        weight_bytes=step.weights,
        state_bytes=step.state,
        kv_bytes=step.kv,
        draft_bytes=step.draft,
        step_bytes=step.total,
        plain_bytes=plain.total,
        notes=list(model.notes),
    )


def with_step_sizes(
    environment: Environment, targets: Iterable[tuple[str, str | None, str]], data: RunData
) -> Environment:
    """The environment with each target's step, from (name, files, kv dtype).

    What cannot be read is a ``step_problem`` of its target, never an error: the run is measured.
    """
    infos = dict(environment.targets)
    for name, files, kv_dtype in targets:
        info = infos.get(name)
        if info is None or files is None:
            continue
        try:
            size = step_size(files, info, mean_context(data.records, name), kv_dtype)
            infos[name] = msgspec.structs.replace(info, step=size, step_problem=None)
        except UsageError as error:
            infos[name] = msgspec.structs.replace(info, step=None, step_problem=str(error))
    return msgspec.structs.replace(environment, targets=infos)


def with_bandwidth(
    environment: Environment, device: str | None, bandwidth_gb_s: float | None, *, local: bool
) -> Environment:
    """The environment with the bandwidth to draw ceilings with.

    As given, by the device's name, or of this machine's GPU where servers were launched here.

    Raises:
        UsageError: no device has that name.
    """
    if bandwidth_gb_s is not None:
        return msgspec.structs.replace(
            environment, bandwidth_gb_s=bandwidth_gb_s, bandwidth_source="as given"
        )
    found = device_named(device) if device is not None else local_gpu() if local else None
    if found is None:
        return environment
    return msgspec.structs.replace(
        environment,
        device=found.name,
        bandwidth_gb_s=found.bandwidth_gb_s,
        bandwidth_source=found.source,
    )


def explained(results: Results, environment: Environment) -> Results:
    """The results with a roofline row per cell whose step is known, and the waterfalls. Pure."""
    rows = [
        _row(cell, size, environment)
        for cell in _lightest(results)
        if (size := _size(environment, cell.target)) is not None
    ]
    return msgspec.structs.replace(
        results, roofline=rows, waterfall=_waterfalls(results, environment)
    )


def _lightest(results: Results) -> list[Cell]:
    """Cells of one stream with the least context: what step bytes are worked out for."""
    least = min((c.context_tokens or 0 for c in results.cells), default=0)
    return [c for c in results.cells if c.concurrency == 1 and (c.context_tokens or 0) == least]


def _size(environment: Environment, target: str) -> StepSize | None:
    info = environment.targets.get(target)
    return info.step if info is not None else None


def _row(cell: Cell, size: StepSize, environment: Environment) -> RooflineRow:
    bandwidth = environment.bandwidth_gb_s
    ceiling = used = bytes_ms = None
    extra, extra_bytes, rest = _extra(cell, size, bandwidth)
    if bandwidth is not None and size.step_bytes:
        bytes_ms = size.step_bytes / bandwidth / 1e6
        if cell.tokens_per_engine_step is not None:
            ceiling = ceiling_tok_s(size.step_bytes, bandwidth, cell.tokens_per_engine_step)
            used = utilisation(cell.decode_tok_s.median, ceiling) if cell.decode_tok_s else None
    return RooflineRow(
        target=cell.target,
        scenario=cell.scenario,
        device=environment.device,
        bandwidth_gb_s=bandwidth,
        parameters=size.parameters,
        read_parameters=size.read_parameters,
        weight_bytes=size.weight_bytes,
        state_bytes=size.state_bytes,
        kv_bytes=size.kv_bytes,
        draft_bytes=size.draft_bytes,
        step_bytes=size.step_bytes,
        ceiling_tok_s=ceiling,
        utilisation=used,
        step_ms=cell.step_ms,
        bytes_ms=bytes_ms,
        extra_ms=extra,
        extra_bytes_ms=extra_bytes,
        rest_ms_per_draft=rest,
        notes=size.notes,
    )


def _extra(
    cell: Cell, size: StepSize, bandwidth: float | None
) -> tuple[Estimate | None, float | None, Estimate | None]:
    """What a speculative step takes beyond a plain one: in all, for bytes, the rest per draft.

    extra = step x (1 - 1/C); bytes = (step bytes - plain bytes) / bandwidth; the rest is divided
    by K. Intervals are those of C: the step's own time is far better known.
    """
    cost, step = cell.step_cost, cell.step_ms
    if cost is None or step is None:
        return None, None, None
    extra = _mapped(cost, lambda c: step * (1 - 1 / c))
    if bandwidth is None or size.step_bytes is None or size.plain_bytes is None:
        return extra, None, None
    more = (size.step_bytes - size.plain_bytes) / bandwidth / 1e6
    if not size.draft_tokens:
        return extra, more, None
    return extra, more, _mapped(extra, lambda e: (e - more) / size.draft_tokens)


def _mapped(value: Estimate, change: Callable[[float], float]) -> Estimate:
    """A rising function of an estimate, applied to its interval too."""
    low, high = value.low, value.high
    return Estimate(
        change(value.value),
        None if low is None else change(low),
        None if high is None else change(high),
    )


def _waterfalls(results: Results, environment: Environment) -> list[Waterfall]:
    """For each scenario, every two plain targets whose models read different amounts."""
    plain = [
        (cell, size, cell.decode_tok_s.median)
        for cell in _lightest(results)
        if cell.drafting is None
        and cell.decode_tok_s is not None
        and (size := _size(environment, cell.target)) is not None
        and size.read_parameters
        and size.step_bytes
    ]
    return [
        _waterfall(one, two)
        for place, one in enumerate(plain)
        for two in plain[place + 1 :]
        if one[0].scenario == two[0].scenario and one[1].step_bytes != two[1].step_bytes
    ]


def _waterfall(one: tuple[Cell, StepSize, float], two: tuple[Cell, StepSize, float]) -> Waterfall:
    large, small = (one, two) if (one[1].step_bytes or 0) > (two[1].step_bytes or 0) else (two, one)
    moved = (large[1].step_bytes or 0.0, small[1].step_bytes or 0.0)
    read = (large[1].read_parameters or 0.0, small[1].read_parameters or 0.0)
    stages = waterfall(read, moved, (large[2], small[2]))
    try:
        fit = affine_fit([(moved[0], 1e3 / large[2]), (moved[1], 1e3 / small[2])])
    except UsageError:  # the larger one is the faster: nothing to fit
        fit = None
    return Waterfall(
        scenario=large[0].scenario,
        large=large[0].target,
        small=small[0].target,
        parameters_ratio=stages[0].ratio,
        bytes_ratio=stages[1].ratio,
        speed_ratio=stages[2].ratio,
        overhead_ms=fit.overhead_ms if fit else None,
        effective_gb_s=fit.bandwidth_gb_s if fit else None,
    )
