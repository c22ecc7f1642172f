"""The experiment file: what it means, and what is said when it is wrong."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftmeter.errors import UsageError
from draftmeter.experiment.load import experiment_of, from_resolved, load_experiment, resolved
from draftmeter.experiment.model import (
    Experiment,
    Message,
    Requests,
    Scenario,
    Target,
    Timeouts,
)
from draftmeter.experiment.yamlfile import read_yaml

# The documentation's example, letter for letter.
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

SMALL = "targets: {a: {url: http://h:1}}\nscenarios: [en_chat]\n"

EVERYTHING = """\
name: everything
reference: b
targets:
  a:
    url: https://h.example/v1
    model: m
    engine: vllm
    metrics_url: http://h.example:9090/metrics
    api_key_env: MY_KEY
    headers: {X-Team: blue, Authorization: $MY_TOKEN}
    extra_body: {top_p: 1e-3, seed: 7, chat_template_kwargs: {enable_thinking: false}}
  b:
    launch: |
      vllm serve m
      --port {port}
    env: {CUDA_VISIBLE_DEVICES: 0, HF_TOKEN: "${HF_TOKEN}", TOKENIZERS_PARALLELISM: "false"}
    start_timeout: 10m
scenarios: [en_chat]
requests: {count: 30, budget: 1h}
concurrency: 1
policy: {en_chat: {max_errors: 1%, min_tok_s: 20, min_speedup: {by: 1.5}}}
aa: true
together: true
rounds: 3
warmup: 0
cache: keep
seed: 17
timeouts: {connect: 5, first_token: 2m, stall: 500ms, total: 0.5h}
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="e.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def complaint(path):
    with pytest.raises(UsageError) as caught:
        load_experiment(path)
    return str(caught.value).replace(str(path), "e.yaml")


def test_the_documented_example(write):
    write('{"prompt": "My order 17 never came."}\n', "my_support_logs.jsonl")
    found = load_experiment(write(EXAMPLE))
    assert found.name == "moe-to-dense"
    assert found.reference == "dense"
    assert found.targets == {
        "moe": Target(name="moe", url="http://gpu1:8000", model="agents-a1"),
        "dense": Target(
            name="dense", launch="vllm serve thinkingcap --port {port} --kv-cache-dtype fp8"
        ),
        "dense-mtp": Target(
            name="dense-mtp",
            launch="vllm serve thinkingcap --port {port} --kv-cache-dtype fp8 --speculative-config "
            """'{"method":"qwen3_5_mtp","num_speculative_tokens":3}'""",
        ),
    }
    assert [(s.name, s.max_tokens) for s in found.scenarios] == [
        ("ja_chat", 512),
        ("code_agent", 2048),
        ("my_support_logs", 256),
    ]
    assert found.scenarios[2].prompts == [[Message(role="user", content="My order 17 never came.")]]
    assert found.scenarios[2].temperature == 0.7
    assert found.requests == Requests(count=None, pilot=10, precision=0.03, budget_s=300.0)
    assert found.concurrency == [1]
    assert found.policy == {
        "ja_chat": {"max_slowdown": {"than": "moe", "by": 0.55}, "ttft_ms_p95": 150},
        "code_agent": {"min_speedup": {"over": "dense", "by": 1.5}},
    }


def test_block_style_says_the_same(write):
    write('{"prompt": "x"}\n', "my_support_logs.jsonl")
    bare = "{launch: vllm serve thinkingcap --port {port} --kv-cache-dtype fp8}"
    block = EXAMPLE.replace(bare, "\n    " + bare[1:-1])
    assert block.count("\n") == EXAMPLE.count("\n") + 1
    assert load_experiment(write(block)) == load_experiment(write(EXAMPLE))


def test_every_key(write):
    found = load_experiment(write(EVERYTHING))
    assert found.targets["a"] == Target(
        name="a",
        url="https://h.example/v1",
        model="m",
        engine="vllm",
        metrics_url="http://h.example:9090/metrics",
        api_key_env="MY_KEY",
        headers={"X-Team": "blue", "Authorization": "$MY_TOKEN"},
        extra_body={"top_p": 0.001, "seed": 7, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert found.targets["b"] == Target(
        name="b",
        launch="vllm serve m\n--port {port}\n",
        env={
            "CUDA_VISIBLE_DEVICES": "0",
            "HF_TOKEN": "${HF_TOKEN}",
            "TOKENIZERS_PARALLELISM": "false",
        },
        start_timeout_s=600.0,
    )
    assert found.requests == Requests(count=30, budget_s=3600.0)
    assert found.timeouts == Timeouts(connect_s=5, first_token_s=120, stall_s=0.5, total_s=1800)
    assert (found.aa, found.together, found.rounds, found.warmup) == (True, True, 3, 0)
    assert (found.cache, found.seed, found.reference, found.concurrency) == ("keep", 17, "b", [1])
    # A rule that names no target is about the reference.
    assert found.policy == {
        "en_chat": {"max_errors": 0.01, "min_tok_s": 20, "min_speedup": {"over": "b", "by": 1.5}}
    }


def test_defaults(write):
    found = load_experiment(write(SMALL, "nightly.yaml"))
    assert (found.name, found.reference, found.seed, found.policy) == ("nightly", "a", 0, {})
    assert found == Experiment(
        name="nightly",
        reference="a",
        targets={"a": Target(name="a", url="http://h:1")},
        scenarios=found.scenarios,
    )
    # Of several, the first is the reference.
    two = "targets: {b: {url: http://h:1}, a: {url: http://h:2}}\nscenarios: [en_chat]\n"
    assert load_experiment(write(two)).reference == "b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets:\n  dense:\n    lunch: vllm serve m --port {port}\nscenarios: [en_chat]\n",
         "e.yaml:3: unknown key 'lunch' in targets.dense; did you mean 'launch'?"),
        (SMALL + "polcy: {}\n", "e.yaml:3: unknown key 'polcy'; did you mean 'policy'?"),
        (SMALL + "requests: {cuont: 3}\n",
         "e.yaml:3: unknown key 'cuont' in requests; did you mean 'count'?"),
        (SMALL + "timeouts:\n  zzzz: 3\n",
         "e.yaml:4: unknown key 'zzzz' in timeouts; known: connect, first_token, stall, total"),
        ("scenarios: [en_chat]\n",
         "e.yaml:1: targets: at least one is needed, e.g. {mine: {url: http://...}}"),
        ("targets: {a: {}}\nscenarios: [en_chat]\n",
         "e.yaml:1: target 'a' needs either url (a running server) or launch (a command)"),
        ("targets:\n  a: {url: 'http://h:1', launch: 'x {port}'}\nscenarios: [en_chat]\n",
         ("e.yaml:2: target 'a' has both url and launch: url is a server that runs already, "
         "launch starts one on a port of its own; keep one of them")),
        ("targets:\n  a:\n    launch: vllm serve m --port 8000\nscenarios: [en_chat]\n",
         "e.yaml:3: launch must contain {port}, e.g. --port {port}: the server is given a free port"),
        ("targets: {a b: {url: http://h:1}}\nscenarios: [en_chat]\n",
         "e.yaml:1: target name 'a b': use letters, digits, '.', '_' and '-'"),
        ("targets: {a: {url: gpu1:8000}}\nscenarios: [en_chat]\n",
         "e.yaml:1: 'gpu1:8000' is not an address like http://localhost:8000"),
        ("targets: {a: {url: 'http://[::1'}}\nscenarios: [en_chat]\n",
         "e.yaml:1: 'http://[::1' is not an address like http://localhost:8000"),
        ("targets: {a: {url: 'http://h:99999'}}\nscenarios: [en_chat]\n",
         "e.yaml:1: 'http://h:99999' is not an address like http://localhost:8000"),
        (SMALL + "reference: b\n", "e.yaml:3: reference 'b' is no target; known: a"),
        ("targets: {dense: {url: http://h:1}}\nscenarios: [en_chat]\nreference: dnese\n",
         "e.yaml:3: reference 'dnese' is no target; did you mean 'dense'?"),
        ("targets: {a: {url: http://h:1}}\nscenarios: []\n",
         "e.yaml:2: scenarios: a list of built-in names or files of prompts"),
        ("targets: {a: {url: http://h:1}}\nscenarios:\n  - en_chat\n  - en_chat\n",
         "e.yaml:4: scenario 'en_chat' is there twice"),
        (SMALL + "concurrency: [0]\n",
         "e.yaml:3: concurrency: a whole number of at least 1 is expected, not 0"),
        (SMALL + "rounds: two\n",
         "e.yaml:3: rounds: a whole number of at least 1 is expected, not 'two'"),
        (SMALL + "rounds: true\n",
         "e.yaml:3: rounds: a whole number of at least 1 is expected, not True"),
        (SMALL + "aa: yes\n", "e.yaml:3: aa: true or false is expected, not 'yes'"),
        (SMALL + "cache: clear\n", "e.yaml:3: cache: one of bust, keep is expected, not 'clear'"),
        (SMALL + "requests:\n  budget: soon\n",
         "e.yaml:4: budget: a time like 90s or 5m is expected, not 'soon'"),
        (SMALL + "requests: {budget: 1:30}\n",
         "e.yaml:3: budget: a time like 90s or 5m is expected, not '1:30'"),
        (SMALL + "requests: {precision: 3}\n",
         "e.yaml:3: precision: a share like 3% or 0.03 is expected, not 3"),
        (SMALL + "requests: {count: 3, pilot: 10}\n",
         "e.yaml:3: requests: either count, or pilot and precision"),
        (SMALL + "requests: 30\n", "e.yaml:3: requests: a mapping is expected, not 30"),
        (SMALL + "policy: {ja_chat: {ttft_ms_p95: 9}}\n",
         "e.yaml:3: unknown key 'ja_chat' in policy; did you mean 'en_chat'?"),
        (SMALL + "policy:\n  en_chat:\n    min_speed: 9\n",
         "e.yaml:5: unknown key 'min_speed' in policy.en_chat; did you mean 'min_speedup'?"),
        (SMALL + "policy:\n  en_chat:\n    min_speedup: {over: b, by: 2}\n",
         "e.yaml:5: 'b' is no target of this file; known: a"),
        (SMALL + "policy:\n  en_chat:\n    min_speedup: {than: a, by: 2}\n",
         "e.yaml:5: unknown key 'than' in policy.en_chat.min_speedup; known: over, by"),
        (SMALL + "policy:\n  en_chat:\n    max_slowdown: {than: a, by: 1.2}\n",
         "e.yaml:5: max_slowdown: by is missing or out of range, e.g. {than: a, by: 0.25}"),
        (SMALL + "policy:\n  en_chat:\n    min_speedup: 1.5\n",
         "e.yaml:5: min_speedup: a mapping is expected, e.g. {over: a, by: 1.5}"),
        (SMALL + "policy:\n  en_chat:\n    ttft_ms_p95: fast\n",
         "e.yaml:5: ttft_ms_p95: a number is expected, e.g. 150"),
        (SMALL + "name: 1.10\n", "e.yaml:3: name: text is expected; put 1.1 in quotes"),
        (SMALL + "seed: 1\nseed: 2\n", "e.yaml:4: 'seed' stands here twice"),
        ("targets:\n  a: {url: 'http://h:1', extra_body: {max_tokens: 9}}\nscenarios: [en_chat]\n",
         "e.yaml:2: max_tokens in extra_body is set by the measurement; use max_tokens"),
        ("- a\n- b\n", "e.yaml:1: an experiment is a mapping with targets and scenarios"),
        ("", "e.yaml: an experiment is a mapping with targets and scenarios"),
    ],
)  # fmt: skip
def test_what_is_said_of_wrong_values(write, text, message):
    assert complaint(write(text)) == message


def test_all_errors_at_once_but_no_more_than_five_lines(write):
    text = (
        "nmae: x\n"
        "targets:\n"
        "  a: {urll: http://h:1}\n"
        "  b: {url: ftp://h}\n"
        "scenarios: [en_chatt]\n"
        "rounds: 0\n"
    )
    found = complaint(write(text)).split("\n")
    assert found[:3] == [
        "e.yaml:1: unknown key 'nmae'; did you mean 'name'?",
        "e.yaml:3: unknown key 'urll' in targets.a; did you mean 'url'?",
        "e.yaml:4: 'ftp://h' is not an address like http://localhost:8000",
    ]
    assert found[3].startswith("e.yaml:5: unknown scenario 'en_chatt'; did you mean 'en_chat'?")
    assert found[4] == "e.yaml:6: rounds: a whole number of at least 1 is expected, not 0"
    assert len(found) == 5
    found = complaint(write(text + "warmup: -1\nseed: x\n")).split("\n")
    assert len(found) == 5
    assert found[4] == "e.yaml: and 3 more errors"


CANARY = "s3cret-canary"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (f"url: http://me:{CANARY}@h:1", "url holds a credential; use api_key_env, or headers with $NAME"),
        (f"url: ftp://{CANARY}@h:1", "url holds a credential; use api_key_env, or headers with $NAME"),
        (f"url: me:{CANARY}@h:1", "url holds a credential; use api_key_env, or headers with $NAME"),
        (f"url: http://h:1/?api_key={CANARY}",
         "url holds a credential; use api_key_env, or headers with $NAME"),
        (f"url: http://h:1\n    headers: {{Authorization: Bearer {CANARY}}}",
         ("Authorization: a secret does not belong in a file; "
         "write $NAME, the name of an environment variable that holds it")),
        (f"url: http://h:1\n    headers: {{x-api-key: [{CANARY}]}}",
         ("x-api-key: a secret does not belong in a file; "
         "write $NAME, the name of an environment variable that holds it")),
        (f"launch: x {{port}}\n    env: {{HF_TOKEN: {CANARY}}}",
         ("HF_TOKEN: a secret does not belong in a file; "
         "write $NAME, the name of an environment variable that holds it")),
        (f"url: http://h:1\n    api_key_env: {CANARY}",
         "api_key_env: the name of an environment variable is expected, like MY_API_KEY"),
        (f"launch: A=1 HF_TOKEN={CANARY} vllm serve --port {{port}}",
         "HF_TOKEN in launch is recorded; write env: {HF_TOKEN: $NAME}"),
        (f"launch: vllm serve --port {{port}} --api-key={CANARY}",
         ("--api-key in launch is recorded and in the process list; leave it out, "
         "or give the server its key through env: {NAME: $NAME}")),
    ],
)  # fmt: skip
def test_secrets_are_refused_and_not_repeated(write, target, message):
    text = f"targets:\n  a:\n    {target}\nscenarios: [en_chat]\n"
    found = complaint(write(text))
    assert found.endswith(f": {message}")
    assert CANARY not in found


def test_what_only_sounds_like_a_secret(write):
    launch = "vllm serve m --port {port} --tokenizer t --max-num-batched-tokens 8192"
    text = f"targets:\n  a:\n    launch: {launch}\n    env: {{TOKENIZERS_PARALLELISM: 'true', MAX_TOKENS: 5}}\nscenarios: [en_chat]\n"
    found = load_experiment(write(text)).targets["a"]
    assert found.launch == launch
    assert found.env == {"TOKENIZERS_PARALLELISM": "true", "MAX_TOKENS": "5"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"name: caf\xe9\n", "e.yaml:1: not UTF-8; save the file as UTF-8"),
        ("a: &x [1]\nb: *x\n", "e.yaml:2: aliases (*name) are not read; write it out"),
        ("a: !!python/object/apply:os.system [id]\n",
         "e.yaml:1: tags (tag:yaml.org,2002:python/object/apply:os) are not read; quotes make a value text"),
        ("a: !x 1\n", "e.yaml:1: tags (!x) are not read; quotes make a value text"),
        ("a: 1\n---\nb: 2\n", "e.yaml:2: a second document (---) begins here; one file, one document"),
        ("? [a, b]\n: 1\n", "e.yaml:1: a key must be a plain word"),
        ("a:\n b: " + "[" * 60 + "]" * 60, "e.yaml:2: nested too deeply"),
        ("a: 1\nb: \x01\n", "e.yaml:2: not valid YAML: a control character"),
    ],
)  # fmt: skip
def test_what_is_said_of_files_that_are_no_plain_yaml(write, text, message):
    assert complaint(write(text)) == message


def test_broken_yaml_names_its_line(write):
    assert complaint(write("name: x\ntargets: [unclosed\n")).startswith(
        "e.yaml:3: not valid YAML: "
    )
    assert complaint(write(SMALL + "name: 'x\n")).startswith("e.yaml:")


def test_hostile_sizes(write, monkeypatch):
    # Ten levels of ten aliases would be ten thousand million values.
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 11)
    )
    assert "aliases" in complaint(write(bomb))
    assert complaint(write("[" * 300_000)).startswith("e.yaml:1: ")
    monkeypatch.setattr("draftmeter.experiment.yamlfile.MAX_VALUES", 10)
    assert complaint(write("[1,2,3,4,5,6,7,8,9,10]")) == "e.yaml:1: more than 10 values"
    path = write("")
    with path.open("r+b") as file:
        file.truncate(64 * 2**20 + 1)
    assert complaint(path) == "e.yaml is larger than 64 MiB"


def test_scalars_are_those_of_yaml_1_2(write):
    # YAML 1.1 would read no as False, 1:30 as 90, 010 as 8 and 1e-3 as text.
    text = "[no, on, 1:30, 010, 0o7, 1_000, 1e-3, -1.5, .5, 7, '7', true, null, ~, 2026-01-01, =]"
    assert read_yaml(write(text))[0] == [
        "no", "on", "1:30", "010", "0o7", "1_000", 0.001, -1.5, 0.5, 7, "7", True, None, None,
        "2026-01-01", "=",
    ]  # fmt: skip


def test_an_unquoted_launch_keeps_what_follows_it(write):
    text = (
        "targets:\n"
        "  a: {launch: x --port {port} --dir a\\nb, model: m,  env: {A: b}}\n"
        "  b: {launch: 'y {port}'}\n"
        "  c: {model: m, launch: serve --port {port} --x '{\"k\": 1}', env: {A: b}}\n"
        "scenarios: [en_chat]\n"
        "rounds: 0\n"
    )
    # The lines stay where they were.
    assert complaint(write(text)).startswith("e.yaml:6: rounds")
    found = load_experiment(write(text.replace("rounds: 0", "rounds: 1"))).targets
    assert found["a"] == Target(
        name="a", launch="x --port {port} --dir a\\nb", model="m", env={"A": "b"}
    )
    assert found["b"].launch == "y {port}"
    assert found["c"].launch == "serve --port {port} --x '{\"k\": 1}'"
    assert (found["c"].model, found["c"].env) == ("m", {"A": "b"})


def test_a_mistyped_launch_without_quotes(write):
    text = EXAMPLE.replace("{launch: >-", "{lunch: >-")
    write('{"prompt": "x"}\n', "my_support_logs.jsonl")
    assert complaint(write(text)) == (
        "e.yaml:6: unknown key 'lunch' in targets.dense-mtp; did you mean 'launch'?"
    )


def test_from_a_command_line(tmp_path):
    data = {"name": "m", "targets": {"server": {"url": "http://h:1"}}, "scenarios": ["en_chat"]}
    found = experiment_of(data, tmp_path, max_tokens=64)
    assert [s.max_tokens for s in found.scenarios] == [64]
    assert found.reference == "server"
    with pytest.raises(UsageError, match=r"^unknown scenario 'ja_caht'; did you mean 'ja_chat'\?"):
        experiment_of({**data, "scenarios": ["ja_caht"]}, tmp_path)
    with pytest.raises(UsageError, match=r"^--max-tokens must be at least 1, not 0$"):
        experiment_of(data, tmp_path, max_tokens=0)


def test_resolved_comes_back_and_holds_no_secret(write, monkeypatch):
    monkeypatch.setenv("MY_KEY", CANARY)
    monkeypatch.setenv("MY_TOKEN", CANARY)
    found = load_experiment(write(EVERYTHING))
    written = msgspec.yaml.encode(resolved(found))
    assert CANARY.encode() not in written
    assert b"$MY_TOKEN" in written
    assert from_resolved(msgspec.yaml.decode(written)) == found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
messages = st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=texts)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts
bodies = st.dictionaries(texts, scalars | st.lists(scalars, max_size=3), max_size=3)
scenarios = st.builds(
    Scenario,
    name=texts,
    prompts=st.lists(st.lists(messages, min_size=1, max_size=3), min_size=1, max_size=3),
    max_tokens=st.integers(1, 10**6),
    temperature=st.none() | st.floats(0, 5),
    language=st.none() | texts,
    thinking=st.none() | st.booleans(),
    extra_body=bodies,
)
targets = st.builds(
    Target, name=texts, url=st.none() | texts, launch=st.none() | texts, extra_body=bodies
)
experiments = st.builds(
    Experiment,
    name=texts,
    reference=texts,
    targets=st.dictionaries(texts, targets, max_size=2),
    scenarios=st.lists(scenarios, max_size=2),
    requests=st.builds(Requests, precision=st.floats(0.001, 0.5), count=st.none() | st.just(3)),
)


@settings(max_examples=60, deadline=None)
@given(experiments)
def test_any_experiment_survives_the_run_folder(experiment):
    # Through the very encoding of the folder's experiment.yaml; prompts come back verbatim.
    data = msgspec.yaml.decode(msgspec.yaml.encode(resolved(experiment)))
    assert from_resolved(data) == experiment


def test_a_damaged_run_folder_is_said():
    with pytest.raises(UsageError, match=r"experiment\.yaml of the run is damaged: .*scenarios"):
        from_resolved({"name": "x", "reference": "a", "targets": {}, "scenarios": 5})
