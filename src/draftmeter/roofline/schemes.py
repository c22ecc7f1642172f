"""Bytes per weight under each quantisation scheme, and which tensors a scheme leaves alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftmeter.errors import UsageError
from draftmeter.roofline.model import Tensor

SCHEMES = ("bf16", "fp8", "nvfp4", "mxfp4", "q4_k_m")

BF16 = 2.0
FP8 = 1 + 4 / 128**2  # an fp32 scale per block of 128 x 128 weights
INT8 = 1.0
NVFP4 = 4 / 8 + 1 / 16  # an fp8 scale per 16 weights: 0.5625
MXFP4 = 4 / 8 + 1 / 32  # an 8-bit exponent per 32 weights: 0.53125
Q4_K = 144 / 256  # llama.cpp's block of 256 weights in 144 bytes
Q6_K = 210 / 256
_PER_WEIGHT = {"bf16": BF16, "fp8": FP8, "int8": INT8, "nvfp4": NVFP4, "mxfp4": MXFP4}
MAX_PATTERNS = 20_000


@dataclass(frozen=True, slots=True)
class Scheme:
    """How matrices are stored: bytes per weight, and the modules left in bf16."""

    name: str
    bytes_per_weight: float
    keep: tuple[str, ...] = ()
    keep_mtp: bool = True


def scheme_named(name: str) -> Scheme:
    """A scheme of ``--weights``.

    lm_head, routers, norms and biases stay bf16, and so does a draft head stored as ``mtp.*``.

    Raises:
        UsageError: No such scheme.
    """
    if name == "q4_k_m":
        return Scheme(name, Q4_K)
    if name not in SCHEMES:
        raise UsageError(f"--weights {name[:40]!r}: use one of {', '.join(SCHEMES)}")
    return Scheme(name, _PER_WEIGHT[name])


def weigh(
    tensors: Iterable[Tensor], scheme: Scheme, layers: int, *, mtp_in_layers: bool = False
) -> list[Tensor]:
    """The tensors with the bytes they have under a scheme."""
    if scheme.name == "q4_k_m":
        found = list(tensors)
        tied = not any(t.role == "lm_head" for t in found)
        return [_sized(t, q4_k_m_bytes_per_weight(t, layers, tied=tied)) for t in found]
    patterns = [_pattern(p) for p in scheme.keep]
    kept_mtp = scheme.keep_mtp and not mtp_in_layers
    return [
        _sized(t, BF16)
        if not t.matrix or (t.part == "mtp" and kept_mtp) or matches(t.name, patterns)
        else _sized(t, scheme.bytes_per_weight)
        for t in tensors
    ]


def q4_k_m_bytes_per_weight(tensor: Tensor, layers: int, *, tied: bool) -> float:
    """llama.cpp's Q4_K_M mix: lm_head Q6_K, ffn_down and attn_v Q6_K in about half the layers.

    Source: ``llama_tensor_get_type`` (use_more_bits: the first and last eighth of the layers and
    every third between). Converters differ for MoE and hybrid models; a file's own types win.
    """
    if tensor.role == "lm_head" or (tied and tensor.role == "embedding"):
        return Q6_K
    if tensor.part == "vision" or not (tensor.matrix or tensor.role == "embedding"):
        return BF16
    better = tensor.name.endswith(("down_proj", "v_proj"))
    layer = tensor.layer or 0
    eighth = layers // 8
    more_bits = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return Q6_K if better and more_bits else Q4_K


def scheme_of_config(quantization: Mapping[str, Any], family: str) -> tuple[Scheme, list[str]]:
    """The scheme a config.json states in ``quantization_config``, and notes; bf16 without one.

    Known: fp8, mxfp4, compressed-tensors, modelopt, gptq, awq, bitsandbytes.

    Raises:
        UsageError: A method whose bytes per weight are not known.
    """
    if not quantization:
        return scheme_named("bf16"), []
    method = str(quantization.get("quant_method", "")).lower()
    name, per_weight = _stated_scheme(method, quantization)
    keep = _stated_keep(quantization)
    if family == "gpt_oss" and method == "mxfp4" and not keep:
        keep = ("self_attn", "router", "embed_tokens", "lm_head")
    understood = tuple(p for p in keep if _pattern(p) is not None)
    notes = []
    if len(understood) < len(keep):
        notes.append(
            f"{len(keep) - len(understood)} patterns of quantization_config's ignore list were not "
            "understood: those modules are counted as quantised"
        )
    keeps_mtp = method in {"compressed-tensors", "modelopt", "fp8", "mxfp4"}
    return Scheme(name, per_weight, understood, keep_mtp=keeps_mtp), notes


def _stated_scheme(method: str, q: Mapping[str, Any]) -> tuple[str, float]:
    algorithm = str(q.get("quant_algo", "")).lower() if method == "modelopt" else method
    simple = {"fp8": ("fp8", FP8), "fbgemm_fp8": ("fp8", FP8), "mxfp4": ("mxfp4", MXFP4),
              "nvfp4": ("nvfp4", NVFP4)}  # fmt: skip
    if algorithm in simple:
        return simple[algorithm]
    if method == "compressed-tensors":
        return _compressed(q)
    if method in {"gptq", "awq"}:
        bits, group = _bits(q.get("bits"), q.get("group_size"))
        return f"{method} {bits}-bit", bits / 8 + (2 + bits / 8) / group
    if method == "bitsandbytes":
        eight = q.get("load_in_8bit") or q.get("_load_in_8bit")
        return ("int8", INT8) if eight else ("bitsandbytes 4-bit", 0.5 + 1 / 64)
    raise UsageError(
        f"config.json: the quantisation method {method[:40]!r} is not known\n"
        "say the scheme with --weights, or give the folder with its .safetensors files"
    )


def _compressed(q: Mapping[str, Any]) -> tuple[str, float]:
    groups = q.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    weights = weights if isinstance(weights, dict) else {}
    kind = f"{q.get('format', '')} {first.get('format', '') if isinstance(first, dict) else ''}"
    if "nvfp4" in kind:
        return "nvfp4", NVFP4
    if "mxfp4" in kind:
        return "mxfp4", MXFP4
    bits, group = _bits(weights.get("num_bits"), weights.get("group_size"))
    if bits == 8:
        return ("fp8", FP8) if weights.get("type") == "float" else ("int8", INT8)
    return f"int{bits}", bits / 8 + 2 / group


def _bits(bits: Any, group: Any) -> tuple[int, float]:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        raise UsageError("config.json: quantization_config does not say how many bits a weight has")
    grouped = isinstance(group, int) and not isinstance(group, bool) and group > 0
    return bits, float(group) if grouped else float("inf")


def _stated_keep(q: Mapping[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers",
                "llm_int8_skip_modules"):  # fmt: skip
        stated = q.get(key)
        if isinstance(stated, list):
            found += [p for p in stated[:MAX_PATTERNS] if isinstance(p, str) and len(p) <= 300]
    return tuple(found)


def matches(name: str, patterns: Sequence[list[str] | None]) -> bool:
    """Whether a module's name is covered by an ignore list.

    A pattern covers a module, what is inside it, and modules of that name anywhere inside others.
    """
    wrapped = f".{_plain(name)}."
    return any(_contains(wrapped, globs) for globs in patterns if globs is not None)


def _contains(wrapped: str, globs: list[str]) -> bool:
    return any(_glob(wrapped, glob) for glob in globs)


def _glob(text: str, pieces: str) -> bool:
    """``*`` matches anything; linear, so that a hostile pattern costs no time."""
    at = 0
    for piece in pieces.split("*"):
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _plain(name: str) -> str:
    return name.replace("language_model.", "")


def _pattern(pattern: str) -> list[str] | None:
    """An ignore entry as globs; None where it is a regular expression beyond ``.*`` and (a|b).

    Regular expressions from files are never run: a hostile one can take for ever.
    """
    if not pattern.startswith("re:"):
        return [f".{_plain(pattern).strip('.')}." if "*" not in pattern else _plain(pattern)]
    body = _plain(pattern[3:].replace("\\.", ".").removeprefix("^"))
    end = "." if body.endswith("$") else ""
    body = body.removesuffix("$")
    if body.count("(") == 1 and body.count(")") == 1 and body.index("(") < body.index(")"):
        before, rest = body.split("(")
        inside, after = rest.split(")")
        heads = [f"{before}{choice}{after}" for choice in inside.removeprefix("?:").split("|")][
            :100
        ]
    else:
        heads = [body]
    globs = [h.replace(".*", "*").replace("[0-9]+", "*").replace("\\d+", "*") for h in heads]
    if any(c in g for g in globs for c in "()[]{}|+?\\^$"):
        return None
    return [("." if not g.startswith("*") else "") + g + end for g in globs]


def _sized(tensor: Tensor, per_weight: float) -> Tensor:
    return replace(tensor, bytes=round(tensor.parameters * per_weight))
