import msgspec
import pytest

from draftmeter.errors import UsageError
from draftmeter.experiment.load import experiment_of, from_resolved, load_experiment, resolved
from draftmeter.experiment.model import Requests

# As people write it, bare braces in braces and all.
EXAMPLE = """\
name: moe-to-dense
reference: dense
targets:
  moe:       {url: http://gpu1:8000, model: agents-a1}
  dense:     {launch: vllm serve thinkingcap --port {port} --kv-cache-dtype fp8}
  dense-mtp: {launch: >-
      vllm serve thinkingcap --port {port} --kv-cache-dtype fp8
      --speculative-config '{"method":"qwen3_5_mtp","num_speculative_tokens":3}'}
scenarios: [ja_chat, code_agent, ./my_support_logs.jsonl]
requests: {pilot: 10, precision: 3%, budget: 5m}   # or {count: 30}
concurrency: [1]
policy:
  ja_chat:    {max_slowdown: {than: moe, by: 0.55}, ttft_ms_p95: 150}
  code_agent: {min_speedup: {over: dense, by: 1.5}}
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "my_support_logs.jsonl").write_text('{"prompt": "Where is my parcel?"}\n')

    def to_file(text):
        path = tmp_path / "e.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def test_the_documented_example(write):
    plan = load_experiment(write(EXAMPLE))
    assert list(plan.targets) == ["moe", "dense", "dense-mtp"]
    assert (
        plan.targets["dense"].launch == "vllm serve thinkingcap --port {port} --kv-cache-dtype fp8"
    )
    assert plan.targets["dense-mtp"].launch == (
        "vllm serve thinkingcap --port {port} --kv-cache-dtype fp8 "
        """--speculative-config '{"method":"qwen3_5_mtp","num_speculative_tokens":3}'"""
    )
    assert plan.targets["moe"].url == "http://gpu1:8000"
    assert plan.requests == Requests(pilot=10, precision=0.03, budget_s=300.0)
    assert [s.name for s in plan.scenarios] == ["ja_chat", "code_agent", "my_support_logs"]
    logs = plan.scenarios[2]
    assert (logs.max_tokens, logs.temperature) == (256, 0.7)
    assert plan.policy["ja_chat"]["ttft_ms_p95"] == 150


def test_block_style_says_the_same(write):
    block = EXAMPLE.replace(
        "{launch: vllm serve thinkingcap --port {port} --kv-cache-dtype fp8}",
        "\n    launch: vllm serve thinkingcap --port {port} --kv-cache-dtype fp8",
    )
    assert load_experiment(write(block)) == load_experiment(write(EXAMPLE))


def test_keys_after_a_bare_command(write):
    plan = load_experiment(
        write(
            "targets:\n  a: {launch: serve --port {port} --x '{\"k\": 1}', model: m}\nscenarios: [en_chat]\n"
        )
    )
    assert plan.targets["a"].launch == "serve --port {port} --x '{\"k\": 1}'"
    assert plan.targets["a"].model == "m"


def test_what_is_resolved_comes_back_the_same(write):
    plan = load_experiment(write(EXAMPLE))
    text = msgspec.yaml.encode(resolved(plan))
    assert from_resolved(msgspec.yaml.decode(text)) == plan


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("  dense:     {launch:", "  dense:     {lunch:", 5, "'launch'"),
        ("reference: dense", "reference: dens", 2, "'dense'"),
        ("http://gpu1:8000", "gpu1:8000", 4, "not an address"),
        ("http://gpu1:8000", "http://me:pw@gpu1", 4, "password"),
        ("--port {port} --kv-cache-dtype fp8}", "--port 8000}", 5, "{port}"),
        ("ja_chat, code_agent", "ja_caht, code_agent", 9, "'ja_chat'"),
        ("precision: 3%", "precision: 300%", 10, "share"),
        ("budget: 5m", "budget: soon", 10, "time like 90s"),
        ("pilot: 10", "pilot: 2", 10, "at least 3"),
        ("requests:", "request:", 10, "'requests'"),
        ("min_speedup", "min_sped_up", 14, "'min_speedup'"),
        ("over: dense", "over: dnse", 14, "no target"),
        ("name: moe-to-dense", "name: x\nname: y", 2, "twice"),
        ("concurrency: [1]", "concurrency: [0]", 11, "at least 1"),
        ("name: moe-to-dense", "name: *alias", 1, "aliases"),
        ("name: moe-to-dense", "name: !!python/object:os.system x", 1, "tags"),
        ("name: moe-to-dense", "name: [x", 2, "not valid YAML"),
    ],
)
def test_errors_name_the_line_and_what_to_write(write, old, new, line, words):
    assert old in EXAMPLE
    with pytest.raises(UsageError) as caught:
        load_experiment(write(EXAMPLE.replace(old, new, 1)))
    assert f"e.yaml:{line}: " in str(caught.value)
    assert words in str(caught.value)


def test_secrets_stay_out_of_files(write):
    text = "targets:\n  a: {url: 'http://x', headers: {Authorization: Bearer abc}}\nscenarios: [en_chat]\n"
    with pytest.raises(UsageError, match=r"e\.yaml:2: .*secret.*\$NAME"):
        load_experiment(write(text))
    plan = load_experiment(write(text.replace("Bearer abc", "$KEY")))
    assert resolved(plan)["targets"]["a"]["headers"] == {"Authorization": "$KEY"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "a mapping"),
        ("targets: {}\nscenarios: [en_chat]", "at least one"),
        ("targets: {a: {url: 'http://x', launch: 'x {port}'}}\nscenarios: [en_chat]", "either url"),
        ("targets: {a: {}}\nscenarios: [en_chat]", "either url"),
        ("targets: {a: {url: 'http://x'}}\nscenarios: []", "a list"),
        ("targets: {a: {url: 'http://x'}}\nscenarios: [en_chat, en_chat]", "twice"),
        ("targets: {'a b': {url: 'http://x'}}\nscenarios: [en_chat]", "target name"),
        ("[" * 3000, "e.yaml"),
    ],
)
def test_more_that_is_wrong(write, data, words):
    with pytest.raises(UsageError, match=words):
        load_experiment(write(data))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        load_experiment(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: x\nreference: caf\xe9\n")
    with pytest.raises(UsageError, match=r"latin\.yaml:2: not UTF-8"):
        load_experiment(tmp_path / "latin.yaml")


def test_from_plain_data_with_a_cap(tmp_path):
    plan = experiment_of(
        {"targets": {"a": {"url": "http://x"}}, "scenarios": ["ja_chat"]}, tmp_path, max_tokens=9
    )
    assert (plan.reference, plan.scenarios[0].max_tokens) == ("a", 9)
