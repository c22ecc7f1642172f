"""Bytes that one engine step moves, and the speed they allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftmeter.errors import UsageError
from draftmeter.roofline.model import KvCache, Model
from draftmeter.roofline.read import draft_bytes_per_pass, total, weight_bytes

KV_BYTES = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of one step: target weights, caches, linear-attention state, draft passes.

    A part that is not known is None, and so is the total.
    """

    weights: float | None
    kv: float | None
    state: float | None
    draft: float | None

    @property
    def total(self) -> float | None:
        """All bytes that the step moves."""
        return total((self.weights, self.kv, self.state, self.draft))


def kv_bytes_per_token(model: Model, element_bytes: int) -> int | None:
    """Cache bytes that each further token of context adds: layers without a window only.

    2 x layers x kv heads x head size x bytes per element; MLA: layers x latent.
    """
    caches = model.shape.caches
    if caches is None:
        return None
    return sum(c.layers * c.elements for c in caches if c.window is None) * element_bytes


def kv_bytes(caches: Sequence[KvCache] | None, context: int, element_bytes: int) -> int | None:
    """Cache bytes one sequence reads per step; a layer with a window reads at most that."""
    if caches is None:
        return None
    return sum(c.layers * c.elements * _seen(c, context) for c in caches) * element_bytes


def state_bytes(model: Model, draft_tokens: int = 0) -> int | None:
    """Linear-attention state that a step moves: read once, written once per verified token.

    2 states in a plain step, K + 2 in a speculative one: vLLM keeps a snapshot per verified
    token (vllm-project/vllm#49887).
    """
    one = model.shape.linear_state_bytes
    return None if one is None else one * (draft_tokens + 2)


def step_bytes(
    model: Model, context: int = 0, batch: int = 1, draft_tokens: int = 0, kv_element_bytes: int = 2
) -> StepBytes:
    """Bytes of one step over ``batch`` sequences, each verifying ``draft_tokens`` + 1 tokens.

    W(batch x (K+1) tokens) + batch x (KV(context) + states) + K x draft pass. A model without a
    draft head has no draft bytes: that is a step of n-gram drafting.
    """
    kv = kv_bytes(model.shape.caches, context, kv_element_bytes)
    state = state_bytes(model, draft_tokens)
    return StepBytes(
        weights=weight_bytes(model, batch * (draft_tokens + 1)),
        # without context no cache is read, whatever its geometry
        kv=0 if context == 0 else None if kv is None else kv * batch,
        state=None if state is None else state * batch,
        draft=_draft_bytes(model, context, batch, draft_tokens, kv_element_bytes),
    )


def _draft_bytes(
    model: Model, context: int, batch: int, draft_tokens: int, kv_element_bytes: int
) -> float | None:
    if draft_tokens == 0 or not has_draft_head(model):
        return 0
    weights = draft_bytes_per_pass(model, batch)
    if weights is None:
        return None
    layers = sum(c.layers for c in model.shape.draft_caches) or 1
    cache = kv_bytes(model.shape.draft_caches, context, kv_element_bytes) or 0
    return draft_tokens * (weights + batch * cache / layers)


def has_draft_head(model: Model) -> bool:
    """Whether the model brings its own draft head (MTP)."""
    return any(t.part == "mtp" for t in model.tensors)


def byte_ratio(speculative: StepBytes, plain: StepBytes) -> float | None:
    """Bytes of a speculative step / bytes of a plain one: the step cost if bytes were all."""
    if speculative.total is None or not plain.total:
        return None
    return speculative.total / plain.total


def ceiling_tok_s(step: float, bandwidth_gb_s: float, tokens: float = 1) -> float:
    """Tokens per second if a step took no longer than its bytes: tokens x bandwidth / bytes."""
    return tokens * bandwidth_gb_s * 1e9 / step


def utilisation(measured_tok_s: float, ceiling: float) -> float:
    """Measured speed / ceiling."""
    return measured_tok_s / ceiling


@dataclass(frozen=True, slots=True)
class AffineFit:
    """T = overhead + bytes / bandwidth: milliseconds per step that are not bytes, and GB/s."""

    overhead_ms: float
    bandwidth_gb_s: float


def affine_fit(points: Sequence[tuple[float, float]]) -> AffineFit:
    """Least squares of step time over bytes, from (bytes per step, ms per step).

    Two points are two equations for two unknowns: plausible, not proven.

    Raises:
        UsageError: Fewer than two different sizes, or time that does not grow with bytes.
    """
    n = len(points)
    if n < 2:
        raise UsageError("a fit of time over bytes needs at least two points")
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    if slope <= 0:
        raise UsageError("the time of a step does not grow with its bytes: no bandwidth to fit")
    return AffineFit(mean_y - slope * mean_x, 1e-6 / slope)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a comparison: the ratio that is left, and the part lost on the way to it."""

    name: str
    ratio: float
    lost: float


def waterfall(
    read_parameters: tuple[float, float], moved: tuple[float, float], tok_s: tuple[float, float]
) -> tuple[Stage, Stage, Stage]:
    """From a ratio of parameters read to the ratio of measured speeds, of models a and b.

    ``read_parameters`` and ``moved`` (bytes per step) of (a, b), b the smaller; ``tok_s`` of
    (a, b). Parameters -> bytes loses what quantisation and state take; bytes -> speed loses what
    a step costs besides bytes. lost = 1 - ratio / the stage's before.
    """
    parameters = read_parameters[0] / read_parameters[1]
    size = moved[0] / moved[1]
    speed = tok_s[1] / tok_s[0]
    return (
        Stage("parameters read", parameters, 0.0),
        Stage("bytes moved", size, 1 - size / parameters),
        Stage("measured speed", speed, 1 - speed / size),
    )


def _seen(cache: KvCache, context: int) -> int:
    return context if cache.window is None else min(context, cache.window)
