"""What a decode step reads of a model's weights, component by component, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from draftmeter.roofline.model import Model, Role, Tensor

_ORDER: tuple[Role, ...] = (
    "embedding", "attention", "linear_attention", "mlp", "experts", "shared_expert", "router",
    "lm_head", "other",
)  # fmt: skip
_EVERY = "every weight takes part in every token"
_WHY: dict[str, str] = {
    "attention": _EVERY,
    "linear_attention": _EVERY,
    "mlp": _EVERY,
    "shared_expert": "every token goes through it",
    "router": "scores all experts for every token",
    "lm_head": "the whole matrix gives the next token's scores, once per step",
    "other": "norms, convolutions, biases and the like of every layer",
    "mtp": "the draft head is read by draft passes only, not by plain decoding",
    "vision": "images are encoded before decoding",
}


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a model.

    ``parameters`` and ``stored_bytes`` are all of it; ``read_parameters`` and ``bytes`` are what
    one token at batch 1 reads, None where that is not known.
    """

    name: str
    parameters: int
    read_parameters: float | None
    stored_bytes: int
    bytes: float | None
    why: str

    @property
    def read(self) -> bool:
        """Whether a decoded token reads any of it."""
        return self.bytes is None or self.bytes > 0


def read_of(model: Model, tokens: int = 1) -> tuple[Component, ...]:
    """The components, and what one step over ``tokens`` tokens reads of each."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in model.tensors:
        name = tensor.role if tensor.part == "text" else tensor.part
        groups.setdefault(name, []).append(tensor)
    order = (*_ORDER, "mtp", "vision")
    return tuple(_component(model, n, groups[n], tokens) for n in order if n in groups)


def weight_bytes(model: Model, tokens: int = 1) -> float | None:
    """Bytes of weights that one step over ``tokens`` tokens reads: the sum over components."""
    return total(c.bytes for c in read_of(model, tokens))


def draft_bytes_per_pass(model: Model, batch: int = 1) -> float | None:
    """Bytes of weights that one draft pass reads: a draft layer, and the whole lm_head again.

    With several draft layers a pass reads one of them. None without a draft head, and where
    the experts it uses are not known. (Source: vLLM's qwen3_5_mtp; field cases 26 and 29.)
    """
    inside = [t for t in model.tensors if t.part == "mtp" and t.role != "embedding"]
    layers = {t.layer for t in inside if t.layer is not None}
    if not inside:
        return None
    share = expert_share(model, batch)
    read = 0.0
    for tensor in inside:
        if tensor.role == "experts" and share is None:
            return None
        part = (share or 0.0) if tensor.role == "experts" else 1.0
        read += tensor.bytes * part / (len(layers) if tensor.layer is not None else 1)
    if not any(t.role == "lm_head" for t in inside):
        read += head_bytes(model)
    return read


def head_bytes(model: Model) -> int:
    """Bytes of the lm_head: its own matrix, or the tied embedding."""
    role = "embedding" if model.shape.tied else "lm_head"
    return sum(t.bytes for t in model.tensors if t.part == "text" and t.role == role)


def expert_union(experts: int, per_token: int, tokens: float) -> float:
    """Experts that ``tokens`` tokens use together: E x (1 - (1 - k/E)^tokens).

    Uniform and independent routing, an upper estimate: neighbouring tokens share experts.
    """
    return experts * (1 - math.pow(1 - per_token / experts, tokens))


def expert_share(model: Model, tokens: float) -> float | None:
    """The part of the routed experts that a step over ``tokens`` tokens reads."""
    shape = model.shape
    if shape.experts_per_token is None or shape.experts <= 0:
        return None
    return expert_union(shape.experts, shape.experts_per_token, tokens) / shape.experts


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None when any part is not known."""
    parts = list(values)
    known = [v for v in parts if v is not None]
    return sum(known) if len(known) == len(parts) else None


def _component(model: Model, name: str, tensors: list[Tensor], tokens: int) -> Component:
    parameters = sum(t.parameters for t in tensors)
    stored = sum(t.bytes for t in tensors)
    share, why = _share(model, name, tokens)
    return Component(
        name=name,
        parameters=parameters,
        read_parameters=None if share is None else parameters * share,
        stored_bytes=stored,
        bytes=None if share is None else stored * share,
        why=why,
    )


def _share(model: Model, name: str, tokens: int) -> tuple[float | None, str]:
    if name == "embedding":
        if model.shape.tied:
            return 1.0, "tied: the same matrix is the lm_head, read whole once per step"
        return 0.0, "a token needs one row of it: a few kilobytes"
    if name in {"mtp", "vision"}:
        return 0.0, _WHY[name]
    if name == "experts":
        share = expert_share(model, tokens)
        if share is None:
            return None, "how many experts a token uses is not known: give the config.json"
        used = share * model.shape.experts
        return share, f"{used:.3g} of {model.shape.experts} experts are used"
    return 1.0, _WHY[name]
