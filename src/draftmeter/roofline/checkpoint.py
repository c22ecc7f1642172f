"""A model from the headers of its safetensors files, with what its configuration adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftmeter.errors import UsageError
from draftmeter.roofline.config import Config, parse_config
from draftmeter.roofline.formula import from_config
from draftmeter.roofline.layout import shape_of
from draftmeter.roofline.model import Model, Shape, Tensor
from draftmeter.roofline.safetensors import Stored
from draftmeter.roofline.schemes import scheme_named, weigh
from draftmeter.roofline.stored import Unpacked, unpack


def from_stored(
    stored: Sequence[Stored], raw_config: Any, name: str, weights: str | None = None
) -> Model:
    """Tensors give parameters and bytes; the configuration gives heads, windows and top-k.

    Where they disagree the tensors win and a note says so. ``weights`` asks what the same
    tensors would weigh under another scheme.

    Raises:
        UsageError: No tensors, or an unknown scheme.
    """
    if not stored:
        raise UsageError(f"{name}: no tensors in the files")
    raw = raw_config if isinstance(raw_config, dict) else {}
    nested = raw.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else raw
    quantization = raw.get("quantization_config") or text.get("quantization_config")
    layers = _small(text, "num_hidden_layers")
    found = unpack(stored, layers, quantization if isinstance(quantization, dict) else {})
    config, notes = _parsed(raw)
    notes = [*found.notes, *notes]
    shape = _shape(found, config, text, notes)
    tensors, label = found.tensors, found.kinds
    if weights is not None:
        in_layers = config is not None and config.mtp_in_layers
        tensors = tuple(
            weigh(_merged(tensors), scheme_named(weights), layers or 1, mtp_in_layers=in_layers)
        )
        notes.append(f"the files hold {label}; --weights asks what {weights} would weigh")
        label = weights
    elif config is not None:
        notes += disagreements(found.tensors, raw, config)
    return Model(name, "safetensors", label, tensors, shape, tuple(notes))


def disagreements(tensors: Sequence[Tensor], raw: Any, config: Config) -> list[str]:
    """Where the tensors and the configuration contradict each other (the tensors are used)."""
    notes = []
    text = [t for t in tensors if t.part == "text"]
    if config.mtp_layers and not any(t.part == "mtp" for t in tensors):
        notes.append(
            f"config.json announces {config.mtp_layers} draft layer(s) but the files hold none: "
            "speculation with the model's own head will fail or accept nothing"
        )
    has_head = any(t.role == "lm_head" for t in text)
    if not has_head and not config.tied:
        notes.append("config.json says the lm_head is not tied, but the files hold none: tied")
    try:
        formula = from_config(raw, "")
    except UsageError as error:
        return [*notes, str(error).splitlines()[0]]
    expected = [t for t in formula.tensors if t.part == "text"]
    for what, ours, theirs, slack in (
        ("parameters", sum(t.parameters for t in text), sum(t.parameters for t in expected), 0.005),
        ("bytes", sum(t.bytes for t in text), sum(t.bytes for t in expected), 0.02),
    ):
        if config.tied and has_head:
            continue  # a tied head stored twice: same reads, other totals
        if abs(ours - theirs) > slack * theirs:
            notes.append(
                f"config.json gives {theirs / 1e9:.3f} billion {what} for the language model, the "
                f"tensors hold {ours / 1e9:.3f}: the tensors are used"
            )
    return notes


def _parsed(raw: Mapping[str, Any]) -> tuple[Config | None, list[str]]:
    if not raw:
        return None, ["no config.json: context and linear-attention state are not known"]
    try:
        return parse_config(raw), []
    except UsageError as error:
        reason = str(error).splitlines()[0]
        return None, [f"{reason}; its tensors are read, the cache per token stays unknown"]


def _shape(
    found: Unpacked, config: Config | None, text: Mapping[str, Any], notes: list[str]
) -> Shape:
    tied = not any(t.role == "lm_head" and t.part == "text" for t in found.tensors)
    if config is not None:
        shape = replace(shape_of(config), tied=tied)
        if found.experts and shape.experts and found.experts != shape.experts:
            notes.append(
                f"config.json says {shape.experts} experts, the tensors hold {found.experts}: "
                "the tensors are used"
            )
        return replace(shape, experts=found.experts or shape.experts)
    per_token = next(
        (n for k in ("num_experts_per_tok", "num_experts_per_token", "experts_per_token",
                     "moe_topk", "moe_k")
         if (n := _small(text, k))), None,
    )  # fmt: skip
    linear = any(t.role == "linear_attention" for t in found.tensors)
    return Shape(
        experts=found.experts,
        experts_per_token=per_token if found.experts else 0,
        tied=tied,
        caches=None,
        linear_state_bytes=None if linear else 0,
    )


def _merged(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Without scales: another scheme brings its own."""
    return [t for t in tensors if t.parameters]


def _small(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**6
    return value if good else None
