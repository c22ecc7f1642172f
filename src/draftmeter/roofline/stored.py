"""Stored tensors to logical ones: packed weights unpacked, scales put with their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftmeter.roofline.model import Tensor
from draftmeter.roofline.roles import Place, place_of
from draftmeter.roofline.safetensors import Stored

# Endings of tensors that hold no weights of their own: they cost bytes, not parameters.
_AUXILIARY = (
    ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale",
    ".input_scale", ".input_global_scale", ".weight_zero_point", ".weight_shape",
    ".weight_g_idx", ".g_idx", ".qzeros", ".scales", ".weight.absmax", ".weight.quant_map",
    ".weight.nested_absmax", ".weight.nested_quant_map", ".SCB", ".weight_format", "_scales",
    ".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".activation_scale", ".scale_inv",
    ".inv_freq", "_scale_inv", "_weight_scale", "_weight_scale_2", "_input_scale",
)  # fmt: skip
_WEIGHT = (".weight", ".qweight", ".weight_packed", "_blocks", "_packed")
_MATRIX_ROLES = {"attention", "linear_attention", "mlp", "experts", "shared_expert"}
_KINDS = {
    "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F8_E4M3FNUZ": "fp8", "F8_E5M2FNUZ": "fp8", "F16": "fp16",
    "BF16": "bf16", "F32": "fp32", "I8": "int8", "F4": "4-bit",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The logical tensors; experts per layer as seen; what the matrices are stored in."""

    tensors: tuple[Tensor, ...]
    experts: int
    kinds: str
    notes: tuple[str, ...]


def unpack(
    stored: Sequence[Stored], layers: int | None, quantization: Mapping[str, Any]
) -> Unpacked:
    """Logical tensors of a checkpoint: parameters before packing, bytes as stored."""
    templates = [template(t.name) for t in stored]
    names = set(templates)
    inputs = {
        name.removesuffix(".g_idx"): t.elements
        for name, t in zip(templates, stored, strict=True)
        if name.endswith(".g_idx")
    }
    bits = _stated_bits(quantization)
    known: dict[tuple[str, str], _Folded] = {}
    for name, tensor in zip(templates, stored, strict=True):
        key = name, tensor.dtype
        folded = known.get(key)
        if folded is None:
            folded = known[key] = _first(tensor, name, weights_per_element(
                tensor, name, names, inputs, bits), layers)  # fmt: skip
        folded.elements += tensor.elements
        folded.bytes += tensor.bytes
        folded.count += 1
    parts = list(known.values())
    return Unpacked(
        tuple(_logical(p) for p in parts), _experts(parts), _words(parts), _notes(parts)
    )


def _first(tensor: Stored, name: str, weights: tuple[float, str], layers: int | None) -> _Folded:
    base = _base(name)
    matrix = len(tensor.shape) > 1 and weights[0] > 0
    return _Folded(base, *weights, place_of(base, layers), tensor.shape, matrix)


@dataclass(slots=True)
class _Folded:
    """Stored tensors of one name and dtype: one tensor, or that of every expert of a layer."""

    base: str
    each: float
    kind: str
    place: Place
    shape: tuple[int, ...]
    matrix: bool
    elements: int = 0
    bytes: int = 0
    count: int = 0


def template(name: str) -> str:
    """The name with an expert's number replaced by a star: experts differ in nothing else."""
    at = name.find(".experts.")
    if at < 0:
        return name
    end = name.find(".", at + 9)
    return f"{name[: at + 9]}*{name[end:]}" if name[at + 9 : end].isdecimal() else name


def _logical(part: _Folded) -> Tensor:
    place = part.place
    matrix = part.matrix and place.role in _MATRIX_ROLES
    parameters = round(part.elements * part.each)
    return Tensor(part.base, parameters, part.bytes, place.role, place.part, place.layer, matrix)


def _notes(parts: Sequence[_Folded]) -> tuple[str, ...]:
    plain = sum(p.count for p in parts if p.kind == "U8")
    if not plain:
        return ()
    return (f"{plain} U8 tensors without scales beside them: counted as one weight per byte",)


def weights_per_element(
    tensor: Stored, name: str, names: set[str], inputs: Mapping[str, int], bits: int
) -> tuple[float, str]:
    """Weights in one stored element, and the kind in words; 0 for scales and indices.

    ``name`` and ``names`` are templates: its own, and those of all tensors.
    U8 with scales beside it: two 4-bit weights (NVFP4, MXFP4, bitsandbytes). I32: 32 / bits
    (GPTQ, AWQ, compressed-tensors); GPTQ's g_idx, one entry per input, says how many bits.
    """
    dtype = tensor.dtype
    if name.endswith(_AUXILIARY) or ".quant_state." in name:
        return 0, ""
    packed = name.endswith((".qweight", "_packed", "_blocks"))
    if dtype == "I32" and packed:
        length = inputs.get(name.removesuffix(".qweight"))
        each = length / tensor.shape[0] if length and tensor.shape[0] else 32 / bits
        return each, f"{32 / each:g}-bit"
    if dtype == "U8" and (packed or _has_scales(name, names)):
        return 2, "4-bit"
    if dtype in {"I32", "I64", "U32", "U64", "BOOL"}:
        return 0, ""
    return 1, _KINDS.get(dtype, dtype)


def _has_scales(name: str, names: set[str]) -> bool:
    return any(f"{name}{end}" in names for end in ("_scale", ".absmax", "_scale_2", "_scales"))


def _base(name: str) -> str:
    for ending in (*_AUXILIARY, *_WEIGHT):
        if name.endswith(ending):
            return name[: -len(ending)]
    cut = name.find(".weight.quant_state.")
    return name[:cut] if cut > 0 else name


def _experts(parts: Sequence[_Folded]) -> int:
    """Experts of a layer: tensors folded into one, or the first dimension of a fused tensor."""
    found = [
        p.count if ".experts.*." in p.base else p.shape[0]
        for p in parts
        if p.place.role == "experts" and p.matrix
    ]
    return max(found, default=0)


def _stated_bits(quantization: Mapping[str, Any]) -> int:
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    inner = weights.get("num_bits") if isinstance(weights, dict) else None
    for value in (quantization.get("bits"), inner):
        if isinstance(value, int) and not isinstance(value, bool) and value in {2, 3, 4, 8}:
            return value
    return 4


def _words(parts: Sequence[_Folded]) -> str:
    sizes: dict[str, int] = {}
    for part in parts:
        if part.each > 0 and part.place.part == "text":
            sizes[part.kind] = sizes.get(part.kind, 0) + part.bytes
    whole = sum(sizes.values()) or 1
    most = sorted(sizes, key=lambda k: -sizes[k])
    return " + ".join(k for k in most if sizes[k] >= 0.01 * whole) or "unknown"
