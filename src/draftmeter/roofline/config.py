"""A checked ``config.json``: the fields that decide how many bytes a step reads.

Field names are those of Hugging Face transformers. Values are untrusted: every number is
bounded, nothing in the file is executed, and unknown architectures are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftmeter.errors import UsageError

Attention = Literal["full", "sliding", "linear"]

MAX_LAYERS = 2000
MAX_VALUE = 2**31

_DENSE = {
    "llama", "mistral", "ministral", "mistral3_text", "qwen2", "qwen3", "gemma2", "gemma3",
    "gemma3_text", "phi3", "mimo", "smollm3",
}  # fmt: skip
_MOE = {
    "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next",
    "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "gpt_oss",
}  # fmt: skip
FAMILIES = frozenset(_DENSE | _MOE | {"qwen3_5", "qwen3_5_text"})

# transformers leaves a class's default values out of config.json; these are the classes' own.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2": {"vocab_size": 256000, "head_dim": 256, "num_attention_heads": 8,
               "num_key_value_heads": 4, "sliding_window": 4096, "tie_word_embeddings": True},
    "gemma3": {"vocab_size": 262208, "head_dim": 256, "num_attention_heads": 8,
               "num_key_value_heads": 4, "sliding_window": 4096, "tie_word_embeddings": True,
               "sliding_window_pattern": 6},
    "qwen3_5": {"full_attention_interval": 4, "attn_output_gate": True,
                "linear_conv_kernel_dim": 4},
    "gpt_oss": {"sliding_window": 128, "head_dim": 64},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8},
    "mistral": {"num_key_value_heads": 8},
    "deepseek": {"n_shared_experts": 0, "first_k_dense_replace": 0},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2 2405.04434): ranks and head parts."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class Gdn:
    """Gated DeltaNet: key and value heads, their sizes, convolution and state precision."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_bytes_per_element: int


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts, those one token uses, and the expert that every token uses."""

    experts: int
    experts_per_token: int
    intermediate: int
    shared_intermediate: int
    shared_gate: bool
    bias: bool


@dataclass(frozen=True, slots=True)
class Vision:
    """A Qwen vision tower (never read while text is decoded)."""

    depth: int
    hidden: int
    intermediate: int
    patch: int
    temporal: int
    merge: int
    positions: int
    out_hidden: int


@dataclass(frozen=True, slots=True)
class Config:
    """The text part of a configuration, with defaults filled in.

    ``layers`` holds each layer's attention; ``moe_layers`` says which have experts.
    ``mtp_in_layers``: the draft head is stored as one more layer (DeepSeek) and is quantised
    like the others; else as ``mtp.*``, which exporters leave in bf16.
    """

    family: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    layers: tuple[Attention, ...]
    window: int | None
    moe_layers: frozenset[int]
    moe: Moe | None
    mla: Mla | None
    gdn: Gdn | None
    output_gate: bool
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    sinks: bool
    norms_per_layer: int
    mtp_layers: int
    mtp_in_layers: bool
    vision: Vision | None
    quantization: Mapping[str, Any]
    notes: tuple[str, ...]


def parse_config(raw: Any) -> Config:
    """Check a decoded ``config.json``; the text part may be nested under ``text_config``.

    Raises:
        UsageError: An unknown architecture, or a field that is missing or out of bounds.
    """
    if not isinstance(raw, dict):
        raise UsageError("config.json: expected a JSON object")
    nested = raw.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else raw
    family = str(text.get("model_type") or raw.get("model_type") or "")
    if family not in FAMILIES:
        named = family[:60] or "(no model_type)"
        raise UsageError(
            f"config.json: the architecture {named!r} is not known, so its size cannot be "
            "computed from the configuration alone\n"
            "give the folder with its .safetensors files, or a .gguf: their tensors are read"
        )
    return _config(family, {**_defaults(family), **_stated(text)}, raw)


def _stated(text: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in text.items() if v is not None}


def _defaults(family: str) -> dict[str, Any]:
    group = {
        "gemma3_text": "gemma3", "qwen3_5_text": "qwen3_5", "qwen3_5_moe": "qwen3_5",
        "qwen3_5_moe_text": "qwen3_5", "qwen3_next": "qwen3_5", "deepseek_v2": "deepseek",
        "deepseek_v3": "deepseek", "kimi_k2": "deepseek", "ministral": "mistral",
    }  # fmt: skip
    return _DEFAULTS.get(group.get(family, family), {})


def _config(family: str, text: dict[str, Any], raw: dict[str, Any]) -> Config:
    hidden = number(text, "hidden_size")
    heads = number(text, "num_attention_heads")
    count = number(text, "num_hidden_layers", most=MAX_LAYERS)
    mla = _mla(text) if "kv_lora_rank" in text else None
    gdn = _gdn(text) if family.startswith(("qwen3_5", "qwen3_next")) else None
    moe = _moe(family, text) if family in _MOE else None
    moe_layers = _moe_layers(text, count) if moe else frozenset()
    dense = len(moe_layers) < count
    mtp_field = _named(text, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    notes: list[str] = []
    return Config(
        family=family,
        hidden=hidden,
        intermediate=number(text, "intermediate_size", None if dense else 0, least=0),
        heads=heads,
        kv_heads=number(text, "num_key_value_heads", heads),
        head_dim=number(text, "head_dim", max(1, hidden // heads)),
        vocab=number(text, "vocab_size"),
        tied=bool(text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False))),
        layers=_attention_of_layers(family, text, count),
        window=number(text, "sliding_window", 0, least=0) or None,
        moe_layers=moe_layers,
        moe=moe,
        mla=mla,
        gdn=gdn,
        output_gate=gdn is not None and bool(text.get("attn_output_gate", True)),
        qkv_bias=bool(
            text.get("attention_bias", family in {"qwen2", "qwen2_moe", "mimo", "gpt_oss"})
        ),
        o_bias=family == "gpt_oss" or (family == "llama" and bool(text.get("attention_bias"))),
        qk_norm=family.startswith(("qwen3", "gemma3")) or bool(text.get("use_qk_norm")),
        sinks=family == "gpt_oss",
        norms_per_layer=4 if family.startswith("gemma") else 2,
        mtp_layers=number(text, mtp_field, 0, least=0, most=64),
        mtp_in_layers="num_nextn_predict_layers" in text and family != "mimo",
        vision=_vision(raw, hidden, notes),
        quantization=_quantization(text, raw),
        notes=tuple(notes),
    )


def number(
    fields: Mapping[str, Any],
    name: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = MAX_VALUE,
) -> int:
    """An integer field within bounds, or its default.

    Raises:
        UsageError: Missing without a default, not an integer, or out of bounds.
    """
    value = fields.get(name, default)
    if value is None:
        raise UsageError(f"config.json: {name!r} is missing; without it the size is not known")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"config.json: {name!r} must be an integer from {least} to {most}")
    return value


def _quantization(text: Mapping[str, Any], raw: Mapping[str, Any]) -> Mapping[str, Any]:
    found = raw.get("quantization_config", text.get("quantization_config"))
    return found if isinstance(found, dict) else {}


def _attention_of_layers(family: str, text: Mapping[str, Any], count: int) -> tuple[Attention, ...]:
    kinds: dict[str, Attention] = {
        "full_attention": "full", "sliding_attention": "sliding", "linear_attention": "linear",
    }  # fmt: skip
    window = bool(text.get("sliding_window"))
    if family.startswith(("qwen2", "qwen3")) and not text.get("use_sliding_window"):
        window = False
    stated = text.get("layer_types")
    if isinstance(stated, list) and len(stated) == count:
        unknown = [k for k in stated if not isinstance(k, str) or k not in kinds]
        if unknown:
            raise UsageError(
                f"config.json: layer_types has the unknown kind {str(unknown[0])[:40]!r}"
            )
        return tuple(kinds[k] for k in stated)
    if family.startswith(("qwen3_5", "qwen3_next")):
        every = number(text, "full_attention_interval", 4)
        return _every(count, every, "linear")
    if not window:
        return _every(count, 1, "full")
    if family.startswith("gemma3"):
        every = number(text, "sliding_window_pattern", 6)
        return _every(count, every, "sliding")
    if family in {"gemma2", "gpt_oss"}:
        return _every(count, 2, "sliding")
    return _every(count, count + 1, "sliding")


def _every(count: int, nth: int, others: Attention) -> tuple[Attention, ...]:
    """Every nth layer sees everything, the others do not."""
    kinds: dict[bool, Attention] = {True: "full", False: others}
    return tuple(kinds[(i + 1) % nth == 0] for i in range(count))


def _moe_layers(text: Mapping[str, Any], count: int) -> frozenset[int]:
    first = number(text, "first_k_dense_replace", 0, least=0)
    step = number(text, _named(text, "decoder_sparse_step", "moe_layer_freq"), 1)
    dense = text.get("mlp_only_layers")
    dense_layers = (
        set(dense) if isinstance(dense, list) and all(isinstance(i, int) for i in dense) else set()
    )
    offset = 1 if "decoder_sparse_step" in text else 0
    return frozenset(
        i for i in range(first, count) if (i + offset) % step == 0 and i not in dense_layers
    )


def _moe(family: str, text: Mapping[str, Any]) -> Moe:
    experts = number(text, _named(text, "num_experts", "n_routed_experts", "num_local_experts"),
                     most=2**20)  # fmt: skip
    inner = number(text, _named(text, "moe_intermediate_size", "intermediate_size"))
    per_token = number(text, _named(text, "num_experts_per_tok", "experts_per_token"), most=experts)
    if "shared_expert_intermediate_size" in text:
        shared = number(text, "shared_expert_intermediate_size", least=0)
    else:
        shared = number(text, "n_shared_experts", 0, least=0, most=1024) * inner
    gate = shared > 0 and family.startswith("qwen")
    return Moe(experts, per_token, inner, shared, shared_gate=gate, bias=family == "gpt_oss")


def _named(text: Mapping[str, Any], *names: str) -> str:
    """The first of a field's names that is there; the first name if none is."""
    return next((name for name in names if name in text), names[0])


def _mla(text: Mapping[str, Any]) -> Mla:
    return Mla(
        q_rank=number(text, "q_lora_rank", 0, least=0),
        kv_rank=number(text, "kv_lora_rank"),
        nope=number(text, "qk_nope_head_dim"),
        rope=number(text, "qk_rope_head_dim"),
        value=number(text, "v_head_dim"),
    )


def _gdn(text: Mapping[str, Any]) -> Gdn:
    return Gdn(
        key_heads=number(text, "linear_num_key_heads"),
        value_heads=number(text, "linear_num_value_heads"),
        key_dim=number(text, "linear_key_head_dim"),
        value_dim=number(text, "linear_value_head_dim"),
        kernel=number(text, "linear_conv_kernel_dim", 4),
        state_bytes_per_element=2 if text.get("mamba_ssm_dtype") in ("bfloat16", "float16") else 4,
    )


def _vision(raw: Mapping[str, Any], hidden: int, notes: list[str]) -> Vision | None:
    found = raw.get("vision_config")
    if not isinstance(found, dict):
        return None
    fields = ("depth", "hidden_size", "intermediate_size", "patch_size", "temporal_patch_size",
              "spatial_merge_size", "num_position_embeddings")  # fmt: skip
    if any(isinstance(found.get(f), bool) or not isinstance(found.get(f), int) for f in fields):
        notes.append(
            "the vision tower's size cannot be computed from this configuration: it is left out "
            "of the total (it is not read while text is decoded)"
        )
        return None
    depth, inner_width, inner, patch, temporal, merge, positions = (
        number(found, f, most=10**6) for f in fields
    )
    out = number(found, "out_hidden_size", hidden, most=10**6)
    return Vision(depth, inner_width, inner, patch, temporal, merge, positions, out)
