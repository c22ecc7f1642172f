"""The roofline of a model in one record: what ``draftmeter roofline`` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftmeter.roofline.model import Model
from draftmeter.roofline.read import Component, draft_bytes_per_pass, read_of, total
from draftmeter.roofline.step import (
    KV_BYTES,
    byte_ratio,
    ceiling_tok_s,
    has_draft_head,
    kv_bytes_per_token,
    step_bytes,
)

DRAFT_TOKENS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Speculative:
    """A step that verifies K drafted tokens, by bytes alone.

    ``step_ratio``: its bytes / a plain step's. ``break_even_rate``: (ratio - 1) / K, the
    acceptance rate below which it loses. ``ceiling_tok_s``: with every drafted token accepted.
    """

    draft_tokens: int
    bytes: float | None
    step_ratio: float | None
    break_even_rate: float | None
    ceiling_tok_s: float | None


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked: context, batch, cache type, K's, and the bandwidth where there is one."""

    context: int = 0
    batch: int = 1
    kv_dtype: str = "bf16"
    draft_tokens: tuple[int, ...] = DRAFT_TOKENS
    bandwidth_gb_s: float | None = None
    device: str | None = None
    bandwidth_source: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes per decoded token at batch 1 (``step_bytes``: of one step at the asked batch)."""

    model: str
    source: str
    weights: str
    parameters: int
    read_parameters: float | None
    file_bytes: int
    weight_bytes: float | None
    state_bytes: int | None
    kv_bytes: float | None
    kv_bytes_per_token: int | None
    draft_bytes_per_pass: float | None
    components: tuple[Component, ...]
    question: Question
    step_bytes: float | None
    ceiling_tok_s: float | None
    speculative: tuple[Speculative, ...]
    draft_head: bool
    notes: tuple[str, ...]


def answer(model: Model, question: Question) -> Answer:
    """All figures of a model for a question."""
    components = read_of(model)
    element = KV_BYTES[question.kv_dtype]
    one = step_bytes(model, question.context, 1, 0, element)
    plain = step_bytes(model, question.context, question.batch, 0, element)
    return Answer(
        model=model.name,
        source=model.source,
        weights=model.weights,
        parameters=sum(c.parameters for c in components),
        read_parameters=total(c.read_parameters for c in components),
        file_bytes=sum(c.stored_bytes for c in components),
        weight_bytes=one.weights,
        state_bytes=None if one.state is None else int(one.state),
        kv_bytes=one.kv,
        kv_bytes_per_token=kv_bytes_per_token(model, element),
        draft_bytes_per_pass=draft_bytes_per_pass(model),
        components=components,
        question=question,
        step_bytes=plain.total,
        ceiling_tok_s=_ceiling(plain.total, question, question.batch),
        speculative=tuple(_speculative(model, question, k) for k in question.draft_tokens),
        draft_head=has_draft_head(model),
        notes=model.notes,
    )


def to_dict(found: Answer) -> dict[str, Any]:
    """The JSON of ``roofline --json``: whole bytes and parameters, null for what is not known."""
    q = found.question
    return {
        "model": found.model,
        "source": found.source,
        "weights": found.weights,
        "parameters": found.parameters,
        "read_parameters": _whole(found.read_parameters),
        "file_bytes": found.file_bytes,
        "weight_bytes": _whole(found.weight_bytes),
        "state_bytes": found.state_bytes,
        "kv_bytes": _whole(found.kv_bytes),
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "draft_bytes_per_pass": _whole(found.draft_bytes_per_pass),
        "components": [_component(c) for c in found.components],
        "context_tokens": q.context,
        "batch": q.batch,
        "kv_dtype": q.kv_dtype,
        "step_bytes": _whole(found.step_bytes),
        "device": q.device,
        "bandwidth_gb_s": q.bandwidth_gb_s,
        "bandwidth_source": q.bandwidth_source,
        "ceiling_tok_s": found.ceiling_tok_s,
        "speculative": [
            {**asdict(s), "bytes": _whole(s.bytes)} for s in found.speculative
        ],
        "draft_head": found.draft_head,
        "notes": list(found.notes),
    }  # fmt: skip


def asked_draft_tokens(wanted: int | None) -> tuple[int, ...]:
    """The K's to show: the asked one, or the first five."""
    return DRAFT_TOKENS if wanted is None else (wanted,)


def largest(components: Sequence[Component]) -> Component | None:
    """The component of which a token reads most."""
    known = [c for c in components if c.bytes]
    return max(known, key=lambda c: c.bytes or 0, default=None)


def _speculative(model: Model, q: Question, draft_tokens: int) -> Speculative:
    element = KV_BYTES[q.kv_dtype]
    plain = step_bytes(model, q.context, q.batch, 0, element)
    step = step_bytes(model, q.context, q.batch, draft_tokens, element)
    ratio = byte_ratio(step, plain)
    return Speculative(
        draft_tokens=draft_tokens,
        bytes=step.total,
        step_ratio=ratio,
        break_even_rate=None if ratio is None else (ratio - 1) / draft_tokens,
        ceiling_tok_s=_ceiling(step.total, q, q.batch * (draft_tokens + 1)),
    )


def _ceiling(step: float | None, q: Question, tokens: int) -> float | None:
    if not step or q.bandwidth_gb_s is None:
        return None
    found = ceiling_tok_s(step, q.bandwidth_gb_s, tokens)
    return found if math.isfinite(found) else None


def _component(c: Component) -> dict[str, Any]:
    return {
        "name": c.name,
        "parameters": c.parameters,
        "bytes": _whole(c.bytes),
        "read": c.read,
        "why": c.why,
        "read_parameters": _whole(c.read_parameters),
        "stored_bytes": c.stored_bytes,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
