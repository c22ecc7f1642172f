"""Headers of safetensors and GGUF files: sizes from real layouts, hostile files refused."""

from __future__ import annotations

import http.server
import json
import struct
import threading
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftmeter.errors import DraftmeterError, UsageError
from draftmeter.measure.model import demo_model
from draftmeter.roofline.gguf import parse_gguf, read_gguf
from draftmeter.roofline.hub import read_hub
from draftmeter.roofline.load import load_model
from draftmeter.roofline.read import draft_bytes_per_pass, read_of, weight_bytes
from draftmeter.roofline.safetensors import BITS, parse_header, read_file
from draftmeter.roofline.step import kv_bytes_per_token, state_bytes
from support.roofline_models import CONFIGS

BYTES = {name: bits / 8 for name, bits in BITS.items()}


def header_of(tensors):
    """A safetensors header for {name: (dtype, shape)} and the bytes of data it needs."""
    at, entries = 0, {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=object) * BYTES[dtype]) if shape else int(BYTES[dtype])
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return json.dumps(entries).encode(), at


def write_safetensors(path, tensors):
    """A file of the right size whose data is a hole: nothing of it is ever written or read."""
    header, data = header_of(tensors)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data)
    return data


def folder(tmp_path, tensors, config=None):
    write_safetensors(tmp_path / "model.safetensors", tensors)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    return load_model(str(tmp_path))


def counts(model):
    """Parameters and bytes by component."""
    return {c.name: (c.parameters, c.stored_bytes) for c in read_of(model)}


def small_llama(**more):
    return {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 1000, "tie_word_embeddings": False, **more}  # fmt: skip


def llama_tensors(prefix="model.", dtype="BF16"):
    p = f"{prefix}layers.0."
    return {
        f"{prefix}embed_tokens.weight": ("BF16", (1000, 64)),
        f"{p}self_attn.q_proj.weight": (dtype, (64, 64)),
        f"{p}self_attn.k_proj.weight": (dtype, (32, 64)),
        f"{p}self_attn.v_proj.weight": (dtype, (32, 64)),
        f"{p}self_attn.o_proj.weight": (dtype, (64, 64)),
        f"{p}mlp.gate_proj.weight": (dtype, (128, 64)),
        f"{p}mlp.up_proj.weight": (dtype, (128, 64)),
        f"{p}mlp.down_proj.weight": (dtype, (64, 128)),
        f"{p}input_layernorm.weight": ("BF16", (64,)),
        f"{p}post_attention_layernorm.weight": ("BF16", (64,)),
        f"{prefix}norm.weight": ("BF16", (64,)),
        "lm_head.weight": ("BF16", (1000, 64)),
    }


def test_plain_checkpoint_agrees_with_its_configuration(tmp_path):
    model = folder(tmp_path, llama_tensors(), small_llama())
    assert counts(model) == {
        "embedding": (64_000, 128_000), "attention": (12_288, 24_576), "mlp": (24_576, 49_152),
        "lm_head": (64_000, 128_000), "other": (192, 384),
    }  # fmt: skip
    assert model.notes == ()
    assert model.weights == "bf16"
    assert weight_bytes(model) == 24_576 + 49_152 + 128_000 + 384
    assert kv_bytes_per_token(model, 2) == 2 * 2 * 16 * 2


# one linear of 128 x 64 = 8192 weights in every packing; bytes by hand
PACKINGS = {
    "fp8": ({".weight": ("F8_E4M3", (128, 64)), ".weight_scale_inv": ("F32", (1, 1))}, 8192 + 4),
    "fp8 static": (
        {".weight": ("F8_E4M3", (128, 64)), ".weight_scale": ("F32", ()), ".input_scale": ("F32", ())},
        8192 + 8,
    ),
    "nvfp4 modelopt": (
        {".weight": ("U8", (128, 32)), ".weight_scale": ("F8_E4M3", (128, 4)),
         ".weight_scale_2": ("F32", ()), ".input_scale": ("F32", ())},
        4096 + 512 + 8,
    ),
    "nvfp4 compressed-tensors": (
        {".weight_packed": ("U8", (128, 32)), ".weight_scale": ("F8_E4M3", (128, 4)),
         ".weight_global_scale": ("F32", (1,))},
        4096 + 512 + 4,
    ),
    "int4 compressed-tensors": (
        {".weight_packed": ("I32", (128, 8)), ".weight_scale": ("BF16", (128, 2)),
         ".weight_shape": ("I64", (2,))},
        4096 + 512 + 16,
    ),
    "gptq 4-bit": (
        {".qweight": ("I32", (8, 128)), ".qzeros": ("I32", (1, 16)), ".scales": ("F16", (1, 128)),
         ".g_idx": ("I32", (64,))},
        4096 + 64 + 256 + 256,
    ),
    "gptq 8-bit": ({".qweight": ("I32", (16, 128)), ".g_idx": ("I32", (64,))}, 8192 + 256),
    "awq": (
        {".qweight": ("I32", (64, 16)), ".qzeros": ("I32", (1, 16)), ".scales": ("F16", (1, 128))},
        4096 + 64 + 256,
    ),
    "bitsandbytes 4-bit": (
        {".weight": ("U8", (4096, 1)), ".weight.absmax": ("U8", (128,)),
         ".weight.quant_map": ("F32", (16,)), ".weight.nested_absmax": ("F32", (1,)),
         ".weight.nested_quant_map": ("F32", (256,)),
         ".weight.quant_state.bitsandbytes__nf4": ("U8", (92,))},
        4096 + 128 + 64 + 4 + 1024 + 92,
    ),
    "bitsandbytes 8-bit": ({".weight": ("I8", (128, 64)), ".SCB": ("F32", (128,))}, 8192 + 512),
    "f4": ({".weight": ("F4", (128, 64))}, 4096),
    "fp16": ({".weight": ("F16", (128, 64))}, 16384),
    "fp32": ({".weight": ("F32", (128, 64))}, 32768),
}  # fmt: skip


@pytest.mark.parametrize("packing", PACKINGS)
def test_logical_parameters_of_packed_weights(tmp_path, packing):
    parts, size = PACKINGS[packing]
    name = "model.layers.0.mlp.up_proj"
    model = folder(tmp_path, {name + end: stored for end, stored in parts.items()})
    assert counts(model)["mlp"] == (8192, size)
    assert sum(p for p, _ in counts(model).values()) == 8192


def test_mxfp4_experts_as_gpt_oss_stores_them(tmp_path):
    # 8 experts of 2 x 96 x 64 weights; two weights a byte, a scale per 32
    p = "model.layers.0.mlp."
    config = {"model_type": "gpt_oss_new", "num_experts_per_tok": 2, "num_hidden_layers": 1}
    model = folder(tmp_path, {
        f"{p}experts.gate_up_proj_blocks": ("U8", (8, 192, 2, 16)),
        f"{p}experts.gate_up_proj_scales": ("U8", (8, 192, 2)),
        f"{p}experts.gate_up_proj_bias": ("BF16", (8, 192)),
        f"{p}router.weight": ("BF16", (8, 64)),
        f"{p}router.bias": ("BF16", (8,)),
    }, config)  # fmt: skip
    experts = next(c for c in read_of(model) if c.name == "experts")
    assert experts.parameters == 8 * 192 * 64 + 8 * 192
    assert experts.stored_bytes == 8 * 192 * 34 + 2 * 8 * 192
    assert experts.bytes == experts.stored_bytes / 4
    assert counts(model)["router"] == (520, 1040)
    assert "unknown" not in model.weights
    assert any("'gpt_oss_new' is not known" in note for note in model.notes)
    assert kv_bytes_per_token(model, 2) is None


def test_experts_without_a_configuration_are_unknown_not_guessed(tmp_path):
    model = folder(tmp_path, {
        f"model.layers.0.mlp.experts.{e}.up_proj.weight": ("BF16", (8, 8)) for e in range(4)
    })  # fmt: skip
    assert model.shape.experts == 4
    assert weight_bytes(model) is None
    assert read_of(model)[0].bytes is None


def test_draft_layers_by_name_and_by_number(tmp_path):
    # DeepSeek keeps its draft layer as layer N of N, with its own head; Qwen as mtp.*
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    tensors = {
        **llama_tensors(),
        "model.layers.1.eh_proj.weight": ("BF16", (64, 128)),
        "model.layers.1.mlp.up_proj.weight": ("BF16", (128, 64)),
        "model.layers.1.embed_tokens.weight": ("BF16", (1000, 64)),
        "model.layers.1.shared_head.head.weight": ("BF16", (1000, 64)),
    }
    by_number = folder(tmp_path / "a", tensors, small_llama())
    assert draft_bytes_per_pass(by_number) == 2 * (64 * 128 + 128 * 64 + 64_000)
    assert weight_bytes(by_number) == 24_576 + 49_152 + 128_000 + 384
    tensors = {
        **llama_tensors(),
        "mtp.fc.weight": ("BF16", (64, 128)),
        "mtp.layers.0.mlp.up_proj.weight": ("BF16", (128, 64)),
        "visual.blocks.0.attn.qkv.weight": ("BF16", (96, 32)),
    }
    by_name = folder(tmp_path / "b", tensors, small_llama())
    assert draft_bytes_per_pass(by_name) == 2 * (64 * 128 + 128 * 64 + 64_000)
    assert counts(by_name)["vision"] == (3072, 6144)


def test_tensors_win_over_the_configuration_and_it_says_so(tmp_path):
    config = small_llama(num_nextn_predict_layers=1, intermediate_size=512)
    model = folder(tmp_path, llama_tensors(), config)
    assert counts(model)["mlp"] == (24_576, 49_152)
    assert any("announces 1 draft layer(s) but the files hold none" in n for n in model.notes)
    assert any("the tensors are used" in n for n in model.notes)
    assert draft_bytes_per_pass(model) is None


def test_tied_embedding_is_read_whole(tmp_path):
    tensors = llama_tensors()
    del tensors["lm_head.weight"]
    model = folder(tmp_path, tensors, small_llama(tie_word_embeddings=True))
    embedding = read_of(model)[0]
    assert (embedding.name, embedding.read, embedding.bytes) == ("embedding", True, 128_000)
    assert model.notes == ()


def test_what_if_the_same_tensors_were_quantised(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", llama_tensors())
    (tmp_path / "config.json").write_text(json.dumps(small_llama()))
    model = load_model(str(tmp_path), "nvfp4")
    assert counts(model)["mlp"] == (24_576, 24_576 * 0.5625)
    assert counts(model)["lm_head"] == (64_000, 128_000)


def expert_model(layers, experts):
    """Names and shapes of a DeepSeek-V3 in fp8: some 90,000 tensors at full size."""
    tensors = {"model.embed_tokens.weight": ("BF16", (129280, 7168)),
               "lm_head.weight": ("BF16", (129280, 7168)), "model.norm.weight": ("BF16", (7168,))}  # fmt: skip
    for n in range(layers):
        p = f"model.layers.{n}."
        tensors[p + "self_attn.o_proj.weight"] = ("F8_E4M3", (7168, 16384))
        tensors[p + "self_attn.o_proj.weight_scale_inv"] = ("F32", (56, 128))
        tensors[p + "mlp.gate.weight"] = ("BF16", (256, 7168))
        for e in range(experts):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"{p}mlp.experts.{e}.{part}.weight"
                tensors[name] = ("F8_E4M3", (2048, 7168))
                tensors[name + "_scale_inv"] = ("F32", (16, 56))
    return tensors


def write_shards(path, tensors, shards):
    names = list(tensors)
    where = {}
    for n in range(shards):
        file = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = {k: tensors[k] for k in names[n::shards]}
        write_safetensors(path / file, part)
        where |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (path / "config.json").write_text(json.dumps(CONFIGS["DeepSeek-V3"]))


def test_a_model_of_671_billion_is_read_from_its_headers(tmp_path):
    tensors = expert_model(61, 256)
    write_shards(tmp_path, tensors, 32)
    model = load_model(str(tmp_path))
    found = counts(model)
    assert len(model.tensors) < 1000  # experts are one tensor per layer, not 90,000
    assert found["experts"][0] == 61 * 256 * 3 * 2048 * 7168
    assert found["experts"][1] == 61 * 256 * 3 * (2048 * 7168 + 4 * 16 * 56)
    experts = next(c for c in read_of(model) if c.name == "experts")
    assert experts.bytes == pytest.approx(found["experts"][1] * 8 / 256)


def test_missing_and_escaping_shards(tmp_path):
    write_shards(tmp_path, expert_model(1, 2), 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UsageError, match="1 of 3 files are missing"):
        load_model(str(tmp_path))
    index = tmp_path / "model.safetensors.index.json"
    for name in ("../secret", "/etc/passwd", "a\\b", ".hidden", ""):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(UsageError, match="not a file of this folder"):
            load_model(str(tmp_path))


def raw_file(tmp_path, header, length=None, data=b""):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def one(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": one(offsets=(-8, 0))}, "its offsets are -8 to 0"),
        ({"a": one(offsets=(8, 0))}, "its offsets are 8 to 0"),
        ({"a": one(), "b": one(offsets=(4, 12))}, "overlap at byte 4"),
        ({"a": one(offsets=(64, 72))}, "cut off: its tensors need 72 bytes"),
        ({"a": one(dtype="F9")}, "unknown dtype 'F9'"),
        ({"a": one(shape=(-2, -1))}, "impossible shape"),
        ({"a": one(shape=(2**40, 2**40))}, "needs"),
        ({"a": one(shape=(1,) * 17)}, "impossible shape"),
        ({"a": one(shape=(1,) * 5000)}, "impossible shape"),
        ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "unknown dtype ''"),
        ({"a": 1}, "not valid"),
        ({"a": {"dtype": "F32"}}, "needs 4 bytes but its offsets are 0 to 0"),
        ([1], "not valid"),
    ],
)
def test_hostile_safetensors_headers(tmp_path, header, message):
    path = raw_file(tmp_path, json.dumps(header).encode(), data=b"\0" * 16)
    with pytest.raises(UsageError, match=message) as caught:
        read_file(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\x10\0\0", "too short"),
        (struct.pack("<Q", 2**60) + b"{}", "announces a header of 1152921504606846976"),
        (struct.pack("<Q", 2**64 - 1), "announces"),
        (struct.pack("<Q", 100) + b"{}", "announces"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "not valid"),
        (struct.pack("<Q", 200_000) + b'{"a":' + b"[" * 199_995, "not valid"),
        (struct.pack("<Q", 200_000) + b'{"a":' * 40_000, "not valid"),
        (struct.pack("<Q", 1_100_000) + b":" * 1_100_000, "too many tensors"),
        (struct.pack("<Q", 4_100_000) + b"," * 4_100_000, "too many tensors"),
        (struct.pack("<Q", 50_000) + b'{"a":{"dtype":"F32","data_offsets":[0,' + b"9" * 49_962, "not valid"),
    ],
)  # fmt: skip
def test_hostile_safetensors_files(tmp_path, content, message):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(UsageError, match=message):
        read_file(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6


GOOD_HEADER, GOOD_DATA = header_of(llama_tensors())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_safetensors_headers_end_in_tensors_or_one_error(data):
    header = bytearray(GOOD_HEADER)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(header) - 1))
        header[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with suppress(UsageError):  # any other error fails the test
        assert sum(t.bytes for t in parse_header(bytes(header), GOOD_DATA, "x")) <= GOOD_DATA


# GGUF


def write_gguf(path, arch, metadata, tensors):
    """A file by the gguf package: {name: (rows, columns..., type)}."""
    import gguf

    writer = gguf.GGUFWriter(str(path), arch)
    metadata(writer)
    for name, (shape, kind) in tensors.items():
        quant = getattr(gguf.GGMLQuantizationType, kind)
        block, size = gguf.GGML_QUANT_SIZES[quant]
        stored = (*shape[:-1], shape[-1] // block * size)
        writer.add_tensor(name, np.zeros(stored, np.uint8), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def moe_metadata(writer):
    writer.add_block_count(3)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_expert_count(4)
    writer.add_expert_used_count(1)
    writer.add_uint32("qwen35moe.ssm.inner_size", 512)
    writer.add_uint32("qwen35moe.ssm.state_size", 128)
    writer.add_token_list([f"token{i}" for i in range(5000)])
    writer.add_token_scores([0.5] * 5000)


MOE = {
    "token_embd.weight": ((1024, 256), "Q4_K"),
    "output.weight": ((1024, 256), "Q6_K"),
    "output_norm.weight": ((256,), "F32"),
    "blk.0.attn_qkv.weight": ((512, 256), "Q5_K"),
    "blk.0.ssm_out.weight": ((256, 512), "IQ4_XS"),
    "blk.0.ssm_a": ((4,), "F32"),
    "blk.0.ffn_gate_inp.weight": ((4, 256), "F32"),
    "blk.0.ffn_up_exps.weight": ((4, 128, 256), "IQ2_XXS"),
    "blk.0.ffn_up_shexp.weight": ((128, 256), "MXFP4"),
    "blk.1.attn_q.weight": ((512, 256), "Q8_0"),
    "blk.1.attn_k.weight": ((128, 256), "NVFP4"),
    "blk.1.attn_norm.weight": ((256,), "F32"),
    "blk.1.ffn_up_exps.weight": ((4, 128, 256), "Q3_K"),
    "blk.2.nextn.eh_proj.weight": ((256, 512), "BF16"),
    "blk.2.attn_q.weight": ((512, 256), "Q4_0"),
    "blk.2.ffn_up_exps.weight": ((4, 128, 256), "Q3_K"),
}


def test_gguf_of_a_hybrid_moe_with_a_draft_layer(tmp_path):
    path = tmp_path / "moe.gguf"
    write_gguf(path, "qwen35moe", moe_metadata, MOE)
    header = read_gguf(path)
    # the file is its header, then the tensors, each padded to 32 bytes
    padded = sum(-(-t.bytes // 32) * 32 for t in header.tensors)
    assert header.data_start + padded == path.stat().st_size
    assert "tokenizer.ggml.tokens" not in header.metadata
    model = load_model(str(path))
    found = counts(model)
    assert found["embedding"] == (1024 * 256, 1024 * 144)
    assert found["lm_head"] == (1024 * 256, 1024 * 210)
    assert found["linear_attention"] == (2 * 512 * 256, 512 * 176 + 256 * 2 * 136)
    assert found["attention"] == (512 * 256 + 128 * 256, 512 * 8 * 34 + 128 * 4 * 36)
    assert found["experts"] == (2 * 4 * 128 * 256, 4 * 128 * (66 + 110))
    assert found["shared_expert"] == (128 * 256, 128 * 8 * 17)
    assert found["router"] == (1024, 4096)
    assert found["mtp"][0] == 256 * 512 + 512 * 256 + 4 * 128 * 256
    # a pass: eh_proj and attention whole, one expert of four, the head again
    draft = 256 * 512 * 2 + 512 * 8 * 18 + 128 * 110 + 1024 * 210
    assert draft_bytes_per_pass(model) == draft
    assert kv_bytes_per_token(model, 2) == 2 * 2 * 64 * 2  # one full-attention layer
    assert state_bytes(model) == 2 * 512 * 128 * 4


def test_gguf_split_in_parts(tmp_path):
    names = list(MOE)
    for n, part in enumerate((names[:8], names[8:]), 1):
        path = tmp_path / f"moe-{n:05d}-of-00002.gguf"
        write_gguf(path, "qwen35moe", moe_metadata, {k: MOE[k] for k in part})
    model = load_model(str(tmp_path))
    assert sum(t.parameters for t in model.tensors) == sum(
        int(np.prod(shape)) for shape, _ in MOE.values()
    )
    path.unlink()
    with pytest.raises(UsageError, match=r"moe-00002-of-00002\.gguf is missing"):
        load_model(str(tmp_path))


def test_a_real_gguf_closes_to_the_byte():
    path = demo_model()
    header = read_gguf(path)
    assert header.data_start + sum(t.bytes for t in header.tensors) == path.stat().st_size
    model = load_model(str(path))
    assert model.shape.tied == (not any(t.name == "output.weight" for t in header.tensors))


def gguf_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    write_gguf(
        path, "llama", lambda w: w.add_block_count(1), {"blk.0.attn_q.weight": ((4, 32), "Q8_0")}
    )
    return path.read_bytes()


@pytest.fixture(scope="module")
def good_gguf(tmp_path_factory):
    return gguf_bytes(tmp_path_factory)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_changed_gguf_headers_end_in_a_header_or_one_error(good_gguf, data):
    body = bytearray(good_gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with suppress(UsageError):  # any other error fails the test
        found = parse_gguf(bytes(body), len(body), "x")
        assert sum(t.bytes for t in found.tensors) <= len(body)


START = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"GGML" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "version 50331648 is not known"),
        (START + struct.pack("<QQ", 2**60, 0), "announces 1152921504606846976 tensors"),
        (START + struct.pack("<QQ", 0, 2**60), "announces"),
        (START + struct.pack("<QQ", 1, 0) + bytes(4), "cut off"),
        (START + struct.pack("<QQQ", 0, 1, 2**60), "a name of 1152921504606846976 bytes"),
        (START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**60), "cut off"),
        (START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62), "cut off"),
        (START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQQQ", 9, 8, 2, 2**60, 8), "cut off"),
        (START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "type 9"),
        (START + struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<I", 99), "metadata type 99"),
        (START + struct.pack("<QQQ", 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 32, 99, 0), "unknown type 99"),
        (START + struct.pack("<QQQ", 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 33, 8, 0), "divide into blocks"),
        (START + struct.pack("<QQQ", 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 2**62, 8, 0), "cut off"),
        (START + struct.pack("<QQQ", 1, 0, 1) + b"t" + struct.pack("<I", 2**31), "dimensions"),
    ],
)  # fmt: skip
def test_hostile_gguf_files(tmp_path, content, message):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(UsageError, match=message) as caught:
        read_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(caught.value).splitlines()) == 1
    assert peak < 20e6


# hub and paths


def test_hub_reads_ranges_only(tmp_path):
    write_shards(tmp_path, expert_model(2, 4), 2)
    moved = []

    def fetch(file, first, last):
        path = tmp_path / file
        if not path.is_file():
            return None
        with path.open("rb") as opened:
            opened.seek(first)
            body = opened.read(last + 1 - first)
        moved.append(len(body))
        return body, path.stat().st_size

    stored, config = read_hub(fetch, "org/name")
    assert len(stored) == len(expert_model(2, 4))
    assert config["model_type"] == "deepseek_v3"
    assert sum(moved) < 1_100_000  # of 4 GB


def test_hub_without_weights_or_with_a_header_beyond_the_first_range(tmp_path):
    with pytest.raises(UsageError, match=r"no model\.safetensors there"):
        read_hub(lambda *_: None, "org/name")
    tensors = {f"model.layers.{n}.mlp.up_proj.weight": ("BF16", (8, 8)) for n in range(4000)}
    header, data = header_of(tensors)
    body = struct.pack("<Q", len(header)) + header
    assert len(body) > 256 * 1024
    answers = {"model.safetensors": (body, len(body) + data)}

    def fetch(file, first, last):
        found = answers.get(file)
        return None if found is None else (found[0][first : last + 1], found[1])

    assert len(read_hub(fetch, "org/name")[0]) == 4000


class HubHandler(http.server.BaseHTTPRequestHandler):
    """A hub with one small model: ``/org/name/resolve/main/FILE``; ranges unless switched off."""

    def do_GET(self):
        path = self.server.folder / self.path.rpartition("/")[2]
        if not path.is_file() or "/org/name/resolve/main/" not in self.path:
            self.send_error(404)
            return
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        body, size = path.read_bytes()[first : last + 1], path.stat().st_size
        self.send_response(206 if self.server.ranges else 200)
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("ranges", [True, False])
def test_hub_through_its_own_client(cli, tmp_path, ranges):
    folder = tmp_path / "hub"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", llama_tensors())
    (folder / "config.json").write_text(json.dumps(small_llama()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), HubHandler) as server:
        server.folder, server.ranges = folder, ranges
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        done = cli("roofline", "org/name", "--json", env=env)
        missing = cli("roofline", "org/other", env=env)
        server.shutdown()
    if ranges:
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["weight_bytes"] == 24_576 + 49_152 + 128_000 + 384
        assert missing.returncode == 2
        assert "no model.safetensors there" in missing.stderr
    else:  # a whole file instead of a range is not taken
        assert done.returncode == 3
        assert "not the range that was asked for" in done.stderr


def test_hub_that_cannot_be_reached(cli):
    done = cli("roofline", "org/name", env={"HF_HUB_OFFLINE": "1"}, check=3)
    assert "could not be reached" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "not valid JSON"),
        ("config.json", "[" * 100_000, "not valid JSON"),
        ("config.json", "[1]", "expected a JSON object"),
        ("model.bin", "x", "not a model"),
    ],
)
def test_wrong_paths_and_files(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DraftmeterError, match=message):
        load_model(str(tmp_path / name))


def test_nothing_there(tmp_path):
    with pytest.raises(UsageError, match=r"no \.safetensors, \.gguf or config\.json"):
        load_model(str(tmp_path))
    with pytest.raises(UsageError, match="no such file or folder"):
        load_model("not a model")
