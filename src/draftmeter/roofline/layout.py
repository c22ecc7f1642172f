"""Logical tensors of a model, by formula, from its configuration.

Shapes are those of the models' own code in Hugging Face transformers; each function is one
block of the network. Totals are checked in the tests against the checkpoints' published sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftmeter.roofline.config import Attention, Config, Gdn, Mla, Moe, Vision
from draftmeter.roofline.model import KvCache, Role, Shape, Tensor

BF16 = 2


def layout(config: Config) -> list[Tensor]:
    """Every tensor of the model, in bf16; routed experts as one tensor per layer and matrix."""
    h = config.hidden
    tensors = [_tensor("model.embed_tokens", config.vocab * h, "embedding")]
    for layer, kind in enumerate(config.layers):
        tensors += _layer(config, f"model.layers.{layer}", layer, kind)
    tensors.append(_tensor("model.norm", h, "other"))
    if not config.tied:
        tensors.append(_tensor("lm_head", config.vocab * h, "lm_head"))
    for n in range(config.mtp_layers):
        tensors += _mtp(config, n)
    if config.vision is not None:
        tensors += _vision(config.vision)
    return tensors


def shape_of(config: Config) -> Shape:
    """What a sequence keeps: caches by kind of attention, and the linear-attention state."""
    elements = kv_elements(config)
    kinds = config.layers
    caches = []
    if full := kinds.count("full"):
        caches.append(KvCache(full, elements))
    if sliding := kinds.count("sliding"):
        caches.append(KvCache(sliding, elements, config.window))
    draft = (KvCache(config.mtp_layers, elements),) if config.mtp_layers else ()
    return Shape(
        experts=config.moe.experts if config.moe else 0,
        experts_per_token=config.moe.experts_per_token if config.moe else 0,
        tied=config.tied,
        caches=tuple(caches),
        draft_caches=draft,
        linear_state_bytes=linear_state_bytes(config.gdn, kinds.count("linear")),
    )


def kv_elements(config: Config) -> int:
    """Cached elements per token and layer: 2 x kv heads x head size; with MLA one latent.

    MLA keeps kv_lora_rank + qk_rope_head_dim for all heads together (DeepSeek-V2 2405.04434).
    """
    if config.mla is not None:
        return config.mla.kv_rank + config.mla.rope
    return 2 * config.kv_heads * config.head_dim


def linear_state_bytes(gdn: Gdn | None, layers: int) -> int:
    """One copy of the recurrent state: layers x value heads x key size x value size x 4.

    The convolution's last inputs, 2 % of that, are neglected, as activations are.
    """
    if gdn is None:
        return 0
    per_layer = gdn.value_heads * gdn.key_dim * gdn.value_dim
    return layers * per_layer * gdn.state_bytes_per_element


def _tensor(
    name: str, parameters: int, role: Role, layer: int | None = None, *, matrix: bool = False
) -> Tensor:
    return Tensor(name, parameters, parameters * BF16, role, "text", layer, matrix)


def _layer(config: Config, name: str, layer: int, kind: Attention) -> Iterator[Tensor]:
    yield _tensor(f"{name}.norms", config.norms_per_layer * config.hidden, "other", layer)
    if kind == "linear" and config.gdn is not None:
        yield from _linear_attention(config.gdn, config.hidden, f"{name}.linear_attn", layer)
    elif config.mla is not None:
        yield from _latent_attention(config, config.mla, f"{name}.self_attn", layer)
    else:
        yield from _attention(config, f"{name}.self_attn", layer)
    if config.moe is not None and (layer in config.moe_layers or layer >= len(config.layers)):
        yield from _experts(config.moe, config.hidden, f"{name}.mlp", layer)
    else:
        yield from _mlp(config.hidden, config.intermediate, f"{name}.mlp", layer, "mlp")


def _attention(config: Config, name: str, layer: int) -> Iterator[Tensor]:
    h, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    gated = q * (2 if config.output_gate else 1)
    yield _tensor(f"{name}.q_proj", h * gated, "attention", layer, matrix=True)
    yield _tensor(f"{name}.k_proj", h * kv, "attention", layer, matrix=True)
    yield _tensor(f"{name}.v_proj", h * kv, "attention", layer, matrix=True)
    yield _tensor(f"{name}.o_proj", q * h, "attention", layer, matrix=True)
    small = gated + 2 * kv if config.qkv_bias else 0
    small += h if config.o_bias else 0
    small += 2 * config.head_dim if config.qk_norm else 0
    small += config.heads if config.sinks else 0
    if small:
        yield _tensor(f"{name}.norms", small, "other", layer)


def _latent_attention(config: Config, mla: Mla, name: str, layer: int) -> Iterator[Tensor]:
    h, heads = config.hidden, config.heads
    query = heads * (mla.nope + mla.rope)
    if mla.q_rank:
        yield _tensor(f"{name}.q_a_proj", h * mla.q_rank, "attention", layer, matrix=True)
        yield _tensor(f"{name}.q_b_proj", mla.q_rank * query, "attention", layer, matrix=True)
    else:
        yield _tensor(f"{name}.q_proj", h * query, "attention", layer, matrix=True)
    latent = h * (mla.kv_rank + mla.rope)
    expand = mla.kv_rank * heads * (mla.nope + mla.value)
    yield _tensor(f"{name}.kv_a_proj_with_mqa", latent, "attention", layer, matrix=True)
    yield _tensor(f"{name}.kv_b_proj", expand, "attention", layer, matrix=True)
    yield _tensor(f"{name}.o_proj", heads * mla.value * h, "attention", layer, matrix=True)
    yield _tensor(f"{name}.norms", mla.q_rank + mla.kv_rank, "other", layer)


def _linear_attention(gdn: Gdn, h: int, name: str, layer: int) -> Iterator[Tensor]:
    keys, values = gdn.key_heads * gdn.key_dim, gdn.value_heads * gdn.value_dim
    mixed = 2 * keys + values
    for part, size in (
        ("in_proj_qkv", h * mixed), ("in_proj_z", h * values), ("in_proj_a", h * gdn.value_heads),
        ("in_proj_b", h * gdn.value_heads), ("out_proj", values * h),
    ):  # fmt: skip
        yield _tensor(f"{name}.{part}", size, "linear_attention", layer, matrix=True)
    small = mixed * gdn.kernel + 2 * gdn.value_heads + gdn.value_dim
    yield _tensor(f"{name}.conv1d", small, "other", layer)


def _mlp(h: int, inner: int, name: str, layer: int, role: Role) -> Iterator[Tensor]:
    for part in ("gate_proj", "up_proj", "down_proj"):
        yield _tensor(f"{name}.{part}", h * inner, role, layer, matrix=True)


def _experts(moe: Moe, h: int, name: str, layer: int) -> Iterator[Tensor]:
    for part in ("gate_proj", "up_proj", "down_proj"):
        size = moe.experts * h * moe.intermediate
        yield _tensor(f"{name}.experts.0.{part}", size, "experts", layer, matrix=True)
    if moe.bias:
        size = moe.experts * (2 * moe.intermediate + h)
        yield _tensor(f"{name}.experts.0.bias", size, "experts", layer)
    yield _tensor(f"{name}.gate", moe.experts * (h + int(moe.bias)), "router", layer)
    if moe.shared_intermediate:
        yield from _mlp(h, moe.shared_intermediate, f"{name}.shared_expert", layer, "shared_expert")
    if moe.shared_gate:
        yield _tensor(f"{name}.shared_expert_gate", h, "shared_expert", layer)


def _mtp(config: Config, n: int) -> Iterator[Tensor]:
    """One draft layer: joins embedding and hidden state (2h x h), then a full-attention layer.

    Embedding and lm_head are the target's (DeepSeek-V3 README_WEIGHTS; vLLM's qwen3_5_mtp).
    """
    layer = len(config.layers) + n
    name = f"model.layers.{layer}" if config.mtp_in_layers else f"mtp.layers.{n}"
    joined = 2 * config.hidden * config.hidden
    inside = [
        _tensor(f"{name}.eh_proj", joined, "attention", layer, matrix=True),
        _tensor(f"{name}.enorm", 3 * config.hidden, "other", layer),
        *_layer(config, name, layer, "full"),
    ]
    return (replace(t, part="mtp") for t in inside)


def _vision(v: Vision) -> Iterator[Tensor]:
    """A Qwen vision tower: patch and position embedding, blocks with biases, a merger."""
    d, merged = v.hidden, v.hidden * v.merge * v.merge
    block = 4 * d + (d * 3 * d + 3 * d) + (d * d + d) + 2 * d * v.intermediate + v.intermediate + d
    patch = 3 * v.temporal * v.patch * v.patch * d + d
    merger = 2 * d + merged * merged + merged + merged * v.out_hidden + v.out_hidden
    total = patch + v.positions * d + v.depth * block + merger
    yield replace(_tensor("visual", total, "other"), part="vision")
