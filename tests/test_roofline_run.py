"""The roofline of a run: the article's own figures, attached to measured speeds."""

import msgspec
import pytest

from draftmeter.analysis.cells import summarise
from draftmeter.errors import UsageError
from draftmeter.record.results import Cell, Drafting, Spread
from draftmeter.record.types import TargetInfo, Usage
from draftmeter.report.markdown import to_markdown
from draftmeter.report.terminal import to_text
from draftmeter.roofline.run import (
    explained,
    mean_context,
    step_size,
    with_bandwidth,
    with_step_sizes,
)
from support.records import record, run_of
from support.roofline_models import QWEN_27B, QWEN_35B


@pytest.fixture
def files(tmp_path):
    """The article's two models as bare configurations; NVFP4 and fp8 as their recipes say."""
    dense = {**QWEN_27B, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    moe = {
        **QWEN_35B,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    paths = {}
    for name, config in (("dense", dense), ("moe", moe)):
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_bytes(msgspec.json.encode(config))
    return {name: str(path) for name, path in paths.items()}


def cell(target, tok_s, drafting=None, per_step=1.0):
    return Cell(
        target=target, scenario="code_agent", concurrency=1, context_tokens=None, requests=10,
        speed_requests=10, errors={}, completion_tokens=1, ttft_ms=None, visible_ttft_ms=None,
        decode_tok_s=Spread(median=tok_s, low=None, high=None), decode_tok_s_article=None,
        step_ms=1000 * per_step / tok_s, tokens_per_engine_step=per_step, speedup=None,
        drafting=drafting, step_cost=None, break_even_rate=None, warnings=[],
    )  # fmt: skip


@pytest.fixture
def article(files):
    """The article's code row: MoE 177, dense 70.7, dense + MTP 131.0 tok/s at 3.143 tokens a step."""
    infos = {
        "moe": TargetInfo(engine="vllm", speculative=False),
        "dense": TargetInfo(engine="vllm", speculative=False),
        "dense-mtp": TargetInfo(engine="vllm", speculative=True, method="mtp", draft_tokens=3),
    }
    data = run_of([], infos, reference="dense")
    environment = with_step_sizes(
        with_bandwidth(data.environment, None, 1792.0, local=False),
        [(name, files["moe" if name == "moe" else "dense"], "fp8") for name in infos],
        data,
    )
    drafting = Drafting(
        witness="counters", drafts=1304, drafted=3912, accepted=2795, rate=0.7145, rate_low=None,
        rate_high=None, tokens_per_step=3.143, position_acceptance=None, drafted_share=None,
        witnesses_agree=None,
    )  # fmt: skip
    results = summarise(data)
    cells = [cell("moe", 177.0), cell("dense", 70.7), cell("dense-mtp", 131.0, drafting, 3.143)]
    return explained(msgspec.structs.replace(results, cells=cells), environment)


def test_the_articles_ceilings_corrected(article):
    rows = {r.target: r for r in article.roofline}
    # theory 1.6: 16.25 GB of weights + 0.30 GB of state, 108 tok/s on 1792 GB/s, 66 % reached
    assert rows["dense"].weight_bytes == pytest.approx(16.25e9, rel=0.005)
    assert rows["dense"].state_bytes == pytest.approx(0.302e9, rel=0.005)
    assert rows["dense"].ceiling_tok_s == pytest.approx(108.3, rel=0.005)
    assert rows["dense"].utilisation == pytest.approx(70.7 / 108.3, rel=0.005)
    # 3.48 GB + 0.126 GB of state: 497 tok/s, 36 %
    assert rows["moe"].ceiling_tok_s == pytest.approx(497, rel=0.01)
    assert rows["moe"].utilisation == pytest.approx(0.36, abs=0.005)
    # a speculative step moves 27.18 GB, of which 3 draft passes are 3 x (0.849 + 2.543) GB
    assert rows["dense-mtp"].step_bytes == pytest.approx(27.18e9, rel=0.005)
    assert rows["dense-mtp"].draft_bytes == pytest.approx(10.18e9, rel=0.005)
    assert rows["dense-mtp"].utilisation == pytest.approx(27.18 / 1792 / 23.99e-3, rel=0.005)


def test_the_waterfall_nine_to_five_to_two_and_a_half(article):
    (fall,) = article.waterfall
    assert (fall.large, fall.small) == ("dense", "moe")
    assert fall.parameters_ratio == pytest.approx(25.625 / 2.946, rel=0.005)
    assert fall.bytes_ratio == pytest.approx(4.6, rel=0.01)
    assert fall.speed_ratio == pytest.approx(177 / 70.7)
    # theory 3.4: o = 3.29 ms, W = 1.524 TB/s
    assert fall.overhead_ms == pytest.approx(3.29, abs=0.05)
    assert fall.effective_gb_s == pytest.approx(1524, rel=0.01)


def test_it_is_printed(article):
    text = to_text(article)
    assert "1,792 GB/s" in text
    assert "8.70x fewer parameters" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "| dense-mtp | code\\_agent |" in to_markdown(article).replace(
        "code_agent", "code\\_agent"
    )


def test_ngram_drafts_make_no_draft_pass(files):
    info = TargetInfo(engine="vllm", speculative=True, method="ngram-simple", draft_tokens=3)
    assert step_size(files["dense"], info, 0, "fp8").draft_bytes == 0


def test_context_is_the_prompt_and_half_the_answer():
    requests = [
        record(usage=Usage(prompt_tokens=100, completion_tokens=200)),
        record(usage=Usage(prompt_tokens=300, completion_tokens=200)),
        record(usage=Usage(prompt_tokens=9000, completion_tokens=2), phase="warmup"),
    ]
    assert mean_context(requests, "t") == 300


def test_files_that_are_not_there_are_a_problem_of_the_target_only(tmp_path):
    data = run_of([], {"t": TargetInfo(engine="vllm")}, reference="t")
    environment = with_step_sizes(
        data.environment, [("t", str(tmp_path / "none.gguf"), "bf16")], data
    )
    assert environment.targets["t"].step is None
    assert "none.gguf" in environment.targets["t"].step_problem
    assert explained(summarise(data), environment).roofline == []


def test_a_device_by_its_full_name_only():
    environment = run_of([], {}).environment
    assert with_bandwidth(environment, "NVIDIA H200", None, local=False).bandwidth_gb_s == 4800
    with pytest.raises(UsageError, match="H100"):
        with_bandwidth(environment, "H100", None, local=False)
