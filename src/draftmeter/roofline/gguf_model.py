"""A model from the header of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftmeter.roofline.gguf import GgufHeader, GgufTensor, Value
from draftmeter.roofline.model import KvCache, Model, Shape, Tensor
from draftmeter.roofline.roles import place_of

_MATRIX_ROLES = {"attention", "linear_attention", "mlp", "experts", "shared_expert"}
# Which layers of a windowed model see everything, where the file has no pattern (llama.cpp).
_EVERY_NTH_IS_FULL = {
    "gemma3": 6,
    "gemma2": 2,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo2": 4,
}


def from_gguf(headers: Sequence[GgufHeader], name: str) -> Model:
    """Bytes by the tensors' own types; caches and experts by the metadata of the first file."""
    metadata = headers[0].metadata
    arch = str(metadata.get("general.architecture", ""))
    stored = [t for header in headers for t in header.tensors]
    drafts = {_layer(t.name) for t in stored if ".nextn." in t.name}
    linear = {_layer(t.name) for t in stored if ".ssm_" in t.name}
    tensors = tuple(_tensor(t, drafts, linear) for t in stored)
    notes: list[str] = []
    shape = _shape(metadata, arch, tensors, (drafts, linear), notes)
    return Model(name, "gguf", _kinds(stored), tensors, shape, tuple(notes))


def _tensor(stored: GgufTensor, drafts: set[int], linear: set[int]) -> Tensor:
    base = stored.name.removesuffix(".weight")
    place = place_of(base, None, drafts, linear)
    matrix = place.role in _MATRIX_ROLES and len(stored.shape) > 1
    return Tensor(base, stored.elements, stored.bytes, place.role, place.part, place.layer, matrix)


def _shape(
    metadata: Mapping[str, Value], arch: str, tensors: Sequence[Tensor],
    layers: tuple[set[int], set[int]], notes: list[str],
) -> Shape:  # fmt: skip
    drafts, linear = layers
    experts = _int(metadata, f"{arch}.expert_count") or 0
    text = [t for t in tensors if t.part == "text"]
    count = max((t.layer for t in text if t.layer is not None), default=-1) + 1
    caches, draft_caches = _caches(metadata, arch, count, linear, len(drafts))
    if caches is None:
        notes.append("the cache per token is not known: the file does not state its heads")
    state = _state_bytes(metadata, arch, len(linear))
    if state is None:
        notes.append("the linear-attention state is not known: the file does not state its sizes")
    return Shape(
        experts=experts,
        experts_per_token=_int(metadata, f"{arch}.expert_used_count") if experts else 0,
        tied=not any(t.role == "lm_head" for t in text),
        caches=caches,
        draft_caches=draft_caches,
        linear_state_bytes=state,
    )


def _caches(
    metadata: Mapping[str, Value], arch: str, count: int, linear: set[int], drafts: int
) -> tuple[tuple[KvCache, ...] | None, tuple[KvCache, ...]]:
    per_layer = [_kv_elements(metadata, arch, layer) for layer in range(count + drafts)]
    window = _int(metadata, f"{arch}.attention.sliding_window")
    groups: dict[tuple[int, int | None], int] = {}
    for layer in range(count):
        elements = per_layer[layer]
        if layer in linear:
            continue
        if elements is None:
            return None, ()
        seen = window if window and _is_windowed(metadata, arch, layer) else None
        groups[elements, seen] = groups.get((elements, seen), 0) + 1
    found = tuple(KvCache(n, elements, seen) for (elements, seen), n in groups.items() if elements)
    last = per_layer[-1] if per_layer else None
    return found, (KvCache(drafts, last),) if drafts and last else ()


def _kv_elements(metadata: Mapping[str, Value], arch: str, layer: int) -> int | None:
    """2 x kv heads x head size, or MLA's latent; heads may be stated layer by layer."""
    if latent := _int(metadata, f"{arch}.attention.kv_lora_rank"):
        return latent + (_int(metadata, f"{arch}.rope.dimension_count") or 0)
    heads = _int(metadata, f"{arch}.attention.head_count", layer)
    kv_heads = _int(metadata, f"{arch}.attention.head_count_kv", layer)
    kv_heads = heads if kv_heads is None else kv_heads
    width = _int(metadata, f"{arch}.embedding_length")
    if kv_heads is None:
        return None
    head = width // heads if width and heads else None
    key = _int(metadata, f"{arch}.attention.key_length") or head
    value = _int(metadata, f"{arch}.attention.value_length") or head
    return None if key is None or value is None else kv_heads * (key + value)


def _is_windowed(metadata: Mapping[str, Value], arch: str, layer: int) -> bool:
    pattern = metadata.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, list) and layer < len(pattern):
        return bool(pattern[layer])
    every = pattern if isinstance(pattern, int) else _EVERY_NTH_IS_FULL.get(arch)
    return (layer + 1) % every != 0 if every else True


def _state_bytes(metadata: Mapping[str, Value], arch: str, layers: int) -> int | None:
    """Inner size x state size x 4 bytes a layer: value heads x value size x key size in fp32."""
    if not layers:
        return 0
    inner = _int(metadata, f"{arch}.ssm.inner_size")
    state = _int(metadata, f"{arch}.ssm.state_size")
    return layers * inner * state * 4 if inner and state else None


def _int(metadata: Mapping[str, Value], key: str, layer: int = 0) -> int | None:
    value = metadata.get(key)
    if isinstance(value, list):
        value = value[layer] if layer < len(value) else None
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if good and isinstance(value, int) else None


def _layer(name: str) -> int:
    words = name.split(".")
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() and len(words[1]) < 6 else -1


def _kinds(stored: Sequence[GgufTensor]) -> str:
    sizes: dict[str, int] = {}
    for tensor in stored:
        sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.bytes
    whole = sum(sizes.values()) or 1
    most = sorted(sizes, key=lambda k: -sizes[k])
    return " + ".join(k for k in most if sizes[k] >= 0.01 * whole) or "unknown"
