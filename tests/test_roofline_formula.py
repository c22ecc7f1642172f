"""Models by formula against published totals, and the article's arithmetic corrected."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmeter.errors import UsageError
from draftmeter.roofline.config import parse_config
from draftmeter.roofline.formula import from_config
from draftmeter.roofline.layout import layout
from draftmeter.roofline.read import (
    draft_bytes_per_pass,
    expert_union,
    head_bytes,
    read_of,
    weight_bytes,
)
from draftmeter.roofline.step import (
    affine_fit,
    byte_ratio,
    ceiling_tok_s,
    kv_bytes,
    kv_bytes_per_token,
    step_bytes,
    utilisation,
    waterfall,
)
from support.roofline_models import CONFIGS, QWEN_27B

# model: parameters, read per token (billions); bytes read per token in GB as bf16, fp8, nvfp4,
# mxfp4, q4_k_m; lm_head GB as bf16 and Q6_K. The totals close against published sizes: 27.781 B x
# 2 = 55.56 GB is the checkpoint's total_size; Llama 8.030 and 70.554, gpt-oss 116.83 (README
# 117B / 5.1B), DeepSeek 671.03 + 11.61 (README_WEIGHTS 671B / 11.5B), Mixtral 46.70.
TABLE = {
    "Qwen3.6-27B": (27.781, 25.625, 51.25, 26.90, 16.25, 15.48, 15.49, 2.54, 1.04),
    "Qwen3.6-35B-A3B": (35.952, 2.946, 5.89, 3.48, 2.42, 2.34, 1.87, 1.017, 0.417),
    "Llama-3.1-8B": (8.030, 7.505, 15.01, 8.03, 4.98, 4.76, 4.62, 1.051, 0.431),
    "Llama-3.1-70B": (70.554, 69.503, 139.01, 70.56, 40.61, 38.47, 41.88, 2.10, 0.862),
    "Qwen3-30B-A3B": (30.532, 3.042, 6.08, 3.37, 2.18, 2.09, 1.89, 0.622, 0.255),
    "DeepSeek-V3": (682.636, 36.626, 73.25, 37.66, 22.09, 20.98, 22.02, 1.853, 0.760),
    "gpt-oss-120b": (116.829, 5.133, 10.27, 5.73, 3.74, 3.60, 3.22, 1.158, 0.475),
    "Gemma-3-27B": (27.009, 27.009, 54.02, 28.42, 17.22, 16.42, 16.54, 2.819, 1.156),
}
WEIGHTS = ("bf16", "fp8", "nvfp4", "mxfp4", "q4_k_m")
CLOSE = 0.005


def model(name, weights="bf16"):
    return from_config(CONFIGS[name], name, weights)


@pytest.mark.parametrize("name", TABLE)
def test_parameters_and_bytes_of_known_models(name):
    total, read, *rows = TABLE[name]
    found = model(name)
    assert sum(t.parameters for t in found.tensors) / 1e9 == pytest.approx(total, abs=5.1e-4)
    assert sum(c.read_parameters for c in read_of(found)) / 1e9 == pytest.approx(read, abs=5.1e-4)
    for weights, expected in zip(WEIGHTS, rows, strict=False):
        got = weight_bytes(model(name, weights)) / 1e9
        assert got == pytest.approx(expected, rel=CLOSE), weights
    assert head_bytes(found) / 1e9 == pytest.approx(rows[5], rel=CLOSE)
    assert head_bytes(model(name, "q4_k_m")) / 1e9 == pytest.approx(rows[6], rel=CLOSE)


@pytest.mark.parametrize(
    ("name", "total", "read"),
    [
        ("Mixtral-8x7B", 46.703, 12.88 - 0.131),  # 12.88 B "active" counts the embedding
        ("gpt-oss-20b", 20.915, 3.61 - 0.0),  # README: 21B / 3.6B
        ("MiMo-7B", 7.833, 7.001),  # 7.83 B with its draft layer
        ("DeepSeek-V2-Lite", 15.706, 2.45),  # card: 16B / 2.4B
        ("Phi-3-mini", 3.821, 3.821 - 0.0985),  # card: 3.8B; 32064 x 3072 embedding unread
        ("Gemma-2-9B", 9.242, 9.242),  # card: 9.24B, tied
        ("Qwen2-7B", 7.616, 7.616 - 0.545),  # card: 7.62B
        ("Mistral-7B", 7.242, 7.242 - 0.131),  # card: 7.24B
        # Hub: 110.47 B, with copies of embedding and head (1.24 B) in the draft layer;
        # "A12B" counts neither embedding nor head
        ("GLM-4.5-Air", 110.468 - 2 * 0.6208, 12.18 + 0.62),
    ],
)
def test_other_families_close_against_their_cards(name, total, read):
    found = model(name)
    assert sum(t.parameters for t in found.tensors) / 1e9 == pytest.approx(total, rel=CLOSE)
    got = sum(c.read_parameters for c in read_of(found)) / 1e9
    assert got == pytest.approx(read, rel=0.01)


def test_components_of_the_dense_hybrid():
    # Worked by hand: GDN layer 115,834,880 x 48; attention layer 104,857,600 x 16; MLP
    # 267,386,880 x 64; embedding = lm_head = 248,320 x 5,120; MTP 52,428,800 + one layer + norms.
    parts = {c.name: c for c in read_of(model("Qwen3.6-27B"))}
    assert parts["linear_attention"].parameters == 115_834_880 * 48
    assert parts["attention"].parameters == 104_857_600 * 16
    assert parts["mlp"].parameters == 267_386_880 * 64
    assert parts["lm_head"].parameters == 248_320 * 5_120
    assert parts["mtp"].parameters == 424_699_392
    assert [n for n, c in parts.items() if not c.read] == ["embedding", "mtp", "vision"]
    assert all(c.why for c in parts.values())


def test_vision_towers_by_formula():
    # 27 blocks + embeddings + merger: 0.461 B with a 5120-wide merger, 0.447 B with 2048.
    sizes = {
        name: sum(t.parameters for t in layout(parse_config(CONFIGS[name])) if t.part == "vision")
        for name in ("Qwen3.6-27B", "Qwen3.6-35B-A3B")
    }
    assert sizes["Qwen3.6-27B"] / 1e9 == pytest.approx(0.461, abs=5e-4)
    assert sizes["Qwen3.6-35B-A3B"] / 1e9 == pytest.approx(0.447, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "elements", "fp8_gb"),
    [
        ("Qwen3.6-27B", 32_768, (0.268, 1.074, 4.295)),
        ("Qwen3.6-35B-A3B", 10_240, (0.084, 0.336, 1.342)),
        ("Llama-3.1-8B", 65_536, (0.537, 2.147, 8.590)),
        ("DeepSeek-V3", 35_136, (0.288, 1.151, 4.605)),
        ("gpt-oss-120b", 18_432, (0.153, 0.606, 2.418)),
        ("Gemma-3-27B", 40_960, (0.554, 1.560, 5.587)),
    ],
)
def test_caches_grow_with_context_and_stop_at_windows(name, elements, fp8_gb):
    found = model(name)
    assert kv_bytes_per_token(found, 1) == elements
    assert kv_bytes_per_token(found, 2) == 2 * elements
    for context, expected in zip((8192, 32_768, 131_072), fp8_gb, strict=True):
        assert kv_bytes(found.shape.caches, context, 1) / 1e9 == pytest.approx(expected, abs=6e-4)


def test_the_article_corrected():
    # 16.25 GB of weights and twice 151 MB of state: 108 tok/s on 1792 GB/s; 72.0 is 66 %.
    dense = model("Qwen3.6-27B", "nvfp4")
    plain = step_bytes(dense)
    assert plain.weights / 1e9 == pytest.approx(16.25, abs=0.005)
    assert plain.state == 2 * 48 * 48 * 128 * 128 * 4
    ceiling = ceiling_tok_s(plain.total, 1792)
    assert ceiling == pytest.approx(108.3, abs=0.05)
    assert utilisation(72.0, ceiling) == pytest.approx(0.665, abs=0.001)
    assert ceiling_tok_s(plain.total, 1792, 2) == pytest.approx(2 * ceiling)
    # its file: 19.71 GB without the draft head of 0.849 GB
    file = sum(t.bytes for t in dense.tensors)
    head = sum(t.bytes for t in dense.tensors if t.part == "mtp")
    assert (file - head) / 1e9 == pytest.approx(19.71, abs=0.01)
    assert head / 1e9 == pytest.approx(0.849, abs=0.001)
    # the K = 3 step: 27.18 GB, of which 3 x (0.849 + 2.543) are draft passes
    spec = step_bytes(dense, draft_tokens=3)
    assert spec.total / 1e9 == pytest.approx(27.18, abs=0.01)
    assert spec.draft / 1e9 == pytest.approx(3 * (0.849 + 2.543), abs=0.01)
    moe = step_bytes(model("Qwen3.6-35B-A3B", "fp8"))
    assert utilisation(177, ceiling_tok_s(moe.total, 1792)) == pytest.approx(0.356, abs=0.001)


@pytest.mark.parametrize(
    ("name", "weights", "b0", "c_draft", "ratios"),
    [
        ("Qwen3.6-27B", "bf16", 51.55, 0.066, (1.07, 1.14, 1.21)),
        ("Qwen3.6-27B", "fp8", 27.20, 0.125, (1.13, 1.26, 1.39)),
        ("Qwen3.6-27B", "nvfp4", 16.55, 0.205, (1.21, 1.43, 1.64)),
        ("Qwen3.6-35B-A3B", "bf16", 6.02, 0.190, (1.52, 2.04, 2.54)),
        ("Qwen3.6-35B-A3B", "fp8", 3.60, 0.318, (1.61, 2.20, 2.79)),
        ("DeepSeek-V3", "fp8", 37.66, 0.067, (1.59, 2.17, 2.73)),
    ],
)
def test_draft_and_step_cost_by_bytes(name, weights, b0, c_draft, ratios):
    found = model(name, weights)
    plain = step_bytes(found)
    assert plain.total / 1e9 == pytest.approx(b0, rel=CLOSE)
    assert draft_bytes_per_pass(found) / plain.total == pytest.approx(c_draft, abs=6e-4)
    for k, ratio in enumerate(ratios, 1):
        assert byte_ratio(step_bytes(found, draft_tokens=k), plain) == pytest.approx(
            ratio, abs=0.006
        )


@pytest.mark.parametrize(("batch", "ratio"), [(1, 1.64), (8, 1.74), (32, 1.95), (128, 2.24)])
def test_state_snapshots_make_large_batches_dearer(batch, ratio):
    found = model("Qwen3.6-27B", "nvfp4")
    plain, spec = (step_bytes(found, 0, batch, k) for k in (0, 3))
    assert byte_ratio(spec, plain) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(("context", "ratio"), [(32_768, 1.62), (131_072, 1.55), (262_144, 1.49)])
def test_long_context_makes_drafts_cheaper(context, ratio):
    found = model("Qwen3.6-27B", "nvfp4")
    plain, spec = (step_bytes(found, context, 1, k, 1) for k in (0, 3))
    assert byte_ratio(spec, plain) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(
    ("tokens", "union"), [(1, 8), (2, 15.75), (4, 30.5), (8, 57.4), (16, 102), (32, 163)]
)
def test_expert_union(tokens, union):
    assert expert_union(256, 8, tokens) == pytest.approx(union, rel=0.01)


def test_one_affine_law_fits_both_models_of_the_article():
    # T = 1000/72.0 and 1000/177 ms at 16.547 and 3.604 GB: 3.36 ms and 1571 GB/s.
    fit = affine_fit([(16.547e9, 1000 / 72.0), (3.604e9, 1000 / 177)])
    assert fit.overhead_ms == pytest.approx(3.36, abs=0.01)
    assert fit.bandwidth_gb_s == pytest.approx(1571, abs=2)
    with pytest.raises(UsageError, match="does not grow"):
        affine_fit([(1e9, 2.0), (1e9, 2.0)])
    with pytest.raises(UsageError, match="two points"):
        affine_fit([(1e9, 2.0)])


def test_waterfall_from_parameters_to_speed():
    # 25.625 / 2.946 = 8.70; 16.55 / 3.60 = 4.597; 177 / 72 = 2.458.
    stages = waterfall((25.625, 2.946), (16.55, 3.60), (72.0, 177.0))
    assert [s.ratio for s in stages] == pytest.approx([8.698, 4.597, 2.458], abs=1e-3)
    assert [s.lost for s in stages] == pytest.approx([0.0, 0.4715, 0.4653], abs=1e-3)


def with_quantization(**stated):
    return {**copy.deepcopy(QWEN_27B), "quantization_config": stated}


def test_ignore_lists_keep_modules_in_bf16():
    # GDN left in bf16: 5.560 B x (2 - 0.5625) more than 16.25 GB.
    nvfp4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 16}}}}  # fmt: skip
    plain = from_config(with_quantization(**nvfp4, ignore=["lm_head"]), "x")
    kept = from_config(with_quantization(**nvfp4, ignore=["lm_head", "re:.*linear_attn.*"]), "x")
    assert weight_bytes(plain) / 1e9 == pytest.approx(16.25, abs=0.005)
    more = weight_bytes(kept) - weight_bytes(plain)
    assert more == pytest.approx(115_834_880 * 48 * (2 - 0.5625), rel=1e-9)
    one = from_config(
        with_quantization(**nvfp4, ignore=["model.language_model.layers.0.linear_attn.in_proj_z"]),
        "x",
    )
    assert weight_bytes(one) - weight_bytes(plain) == 5120 * 6144 * (2 - 0.5625)


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("re:.*mlp\\.(gate|up)_proj$", 2 * 64),
        ("*down_proj*", 64),
        ("model.layers.1.mlp", 3),  # not layer 10
        ("mlp.gate", 0),  # not gate_proj
        ("re:(a+)+$", 0),  # never run as a regular expression
    ],
)
def test_patterns_of_ignore_lists(pattern, kept):
    found = from_config(with_quantization(quant_method="fp8", ignore=[pattern]), "x")
    mlp = [t for t in found.tensors if t.role == "mlp" and t.part == "text"]
    assert sum(t.bytes == 2 * t.parameters for t in mlp) == kept


def test_gpt_oss_as_released():
    # MXFP4 in the experts only: 0.956 x 2 + 1.158 + 3.583 x 0.53125 + 0.03 = 5.00 GB.
    raw = {**CONFIGS["gpt-oss-120b"], "quantization_config": {"quant_method": "mxfp4"}}
    assert weight_bytes(from_config(raw, "x")) / 1e9 == pytest.approx(5.00, rel=CLOSE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "newnet"}, "'newnet' is not known"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": -1}, "'hidden_size' must be an integer"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' must be an integer"),
        ({"vocab_size": True}, "'vocab_size' must be an integer"),
        ({"layer_types": ["full_attention"] * 31 + ["x"]}, "unknown kind 'x'"),
        ({"quantization_config": {"quant_method": "secret"}}, "'secret' is not known"),
    ],
)
def test_wrong_configurations_are_refused_with_the_reason(change, message):
    with pytest.raises(UsageError, match=message):
        from_config({**CONFIGS["Llama-3.1-8B"], **change}, "x")


ODD = [None, 0, -1, 1, 2**31, 2**70, 1.5, "x", [], {}, True, [1], [{}], {"a": 1}]
ODD_RECIPES = [
    {"quant_method": "compressed-tensors", "config_groups": [1]},
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}},
    {"quant_method": "gptq", "bits": 4, "group_size": -1},
    {"quant_method": ["x"]},
    {"quant_method": "modelopt", "quant_algo": None},
    {"quant_method": "fp8", "ignore": ["re:(", "re:)(", "*" * 300, 1, None, ""]},
]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_configurations_end_in_a_model_or_one_error(data):
    raw = copy.deepcopy(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))])
    text = raw.get("text_config", raw)
    more = ["layer_types", "mlp_only_layers", "mamba_ssm_dtype", "quantization_config"]
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*text, *more]))
        odd = ODD + ODD_RECIPES if key == "quantization_config" else ODD
        text[key] = copy.deepcopy(data.draw(st.sampled_from(odd)))
    weights = data.draw(st.sampled_from([None, *WEIGHTS]))
    with suppress(UsageError):  # any other error fails the test
        found = from_config(raw, "x", weights)
        assert step_bytes(found, 10, 3, 2).total > 0
