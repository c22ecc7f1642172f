"""What a model is to the roofline: tensors with bytes and roles, and what a sequence keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal[
    "embedding", "attention", "linear_attention", "mlp", "experts", "shared_expert",
    "router", "lm_head", "other",
]  # fmt: skip
Part = Literal["text", "mtp", "vision"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One logical tensor: a matrix with its scales, or all routed experts of a layer.

    ``parameters`` are weights before packing (a byte of NVFP4 holds two); ``bytes`` is what
    is stored, scales included. ``matrix`` marks the weights that quantisation applies to.
    """

    name: str
    parameters: int
    bytes: int
    role: Role
    part: Part = "text"
    layer: int | None = None
    matrix: bool = False


@dataclass(frozen=True, slots=True)
class KvCache:
    """Layers whose caches look alike: elements per token and layer, and the window if any."""

    layers: int
    elements: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tensors alone do not say.

    ``caches`` is None when the attention's geometry is unknown. ``linear_state_bytes`` is one
    copy of the recurrent state of all linear-attention layers of one sequence; None when there
    are such layers and their state is unknown.
    """

    experts: int = 0
    experts_per_token: int | None = 0
    tied: bool = False
    caches: tuple[KvCache, ...] | None = None
    draft_caches: tuple[KvCache, ...] = ()
    linear_state_bytes: int | None = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model as read from headers or computed from its configuration.

    ``source`` is where the sizes come from ("safetensors", "gguf" or "config"), ``weights``
    the scheme in words, ``notes`` what a reader should know before believing the figures.
    """

    name: str
    source: str
    weights: str
    tensors: tuple[Tensor, ...]
    shape: Shape
    notes: tuple[str, ...] = ()
