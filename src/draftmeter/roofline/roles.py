"""Which part of a network a tensor belongs to, from its name in a checkpoint or a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from draftmeter.roofline.model import Part, Role

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks|mtp_layers|layer)\.(\d{1,5})\.")
_VISION = (
    "visual.", "vision", "multi_modal_projector", "mm_projector", "img_processor", "audio",
    "image_newline", "patch_embed", "mmproj", "speech",
)  # fmt: skip
_MTP = ("mtp.", "model.mtp", "mtp_layers", "nextn.", "model.nextn")
_EMBEDDING = {"embed_tokens", "wte", "word_embeddings", "tok_embeddings", "token_embd", "embed_in",
              "embed_tokens_per_layer", "per_layer_token_embd", "wpe", "position_embd"}  # fmt: skip
_HEAD = {"lm_head", "output", "embed_out", "shared_head_head"}
_ROUTER = {"router", "ffn_gate_inp", "exp_probs_b", "e_score_correction_bias"}
_LINEAR = ("linear_attn", "mamba", "mixer", "ssm", "delta_net", "time_mix", "short_conv")
_ATTENTION = ("attn", "attention", "self_attention")
_MLP = ("mlp", "ffn", "feed_forward", "fc1", "fc2", "mixture")
_SMALL = {"conv1d", "A_log", "dt_bias", "D", "sinks", "ssm_a", "ssm_d", "ssm_dt", "ssm_conv1d"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor sits."""

    role: Role
    part: Part
    layer: int | None


def place_of(
    name: str, layers: int | None = None, mtp_layers: Collection[int] = (),
    linear_layers: Collection[int] = (),
) -> Place:  # fmt: skip
    """The place of a tensor, its name without ``.weight``.

    ``layers``: the target's own number of layers, where known; layers behind them are draft
    layers (DeepSeek-V3 keeps its draft head as layer 61 of 61, field case 29). ``mtp_layers``
    and ``linear_layers``: layers known to be such from other tensors (GGUF).
    """
    found = _LAYER.search(name)
    layer = int(found[1]) if found else None
    draft = name.startswith(_MTP) or ".mtp." in name or ".nextn." in name
    if layer is not None and not draft:
        draft = layer in mtp_layers or (layers is not None and layer >= layers)
    lowered = name.lower()
    part: Part = "mtp" if draft else "text"
    if not draft and (
        lowered.startswith(("v.", "mm.", "a.")) or any(v in lowered for v in _VISION)
    ):
        part = "vision"
    return Place(_role(name, layer in linear_layers), part, layer)


def _role(name: str, linear_layer: bool) -> Role:
    words = name.split(".")
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    role: Role | None = None
    if last in _EMBEDDING:
        role = "embedding"
    elif last in _HEAD or (before == "shared_head" and last == "head"):
        role = "lm_head"
    elif any(w in _ROUTER for w in words) or "gate" in {last, before}:
        role = "router"
    elif "experts" in words or "_exps" in name:
        role = "experts"
    elif last == "bias" or "norm" in last or before in _SMALL or last in _SMALL:
        role = "other"
    elif any(w.startswith("shared_") for w in words) or last.endswith("_shexp"):
        role = "shared_expert"
    return role or _block(words, linear_layer)


def _block(words: list[str], linear_layer: bool) -> Role:
    if any(w.startswith(_LINEAR) for w in words):
        return "linear_attention"
    if any(w.startswith(_ATTENTION) or w.endswith(_ATTENTION) for w in words):
        return "linear_attention" if linear_layer else "attention"
    if any(w.startswith(_MLP) for w in words):
        return "mlp"
    return "other"
