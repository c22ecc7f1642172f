"""Scenarios: the built-in workloads, users' own files, and ``draftmeter scenarios``."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftmeter.cli import app
from draftmeter.errors import UsageError
from draftmeter.experiment.demo import demo_scenarios
from draftmeter.experiment.model import Message, Scenario
from draftmeter.experiment.scenario import builtin_names, builtin_text, load_scenario

CAPS = {
    "ja_chat": 512, "code_agent": 2048, "en_chat": 512, "zh_chat": 512, "ja_translate": 512,
    "ja_template": 512, "json_extract": 512, "code_edit": 1024, "rag_answer": 512,
}  # fmt: skip
KANA = re.compile(r"[぀-ヿ]")
HAN = re.compile(r"[一-鿿]")


def users(scenario):
    return [m.content for messages in scenario.prompts for m in messages if m.role == "user"]


def test_the_documented_names_are_there():
    assert builtin_names() == sorted(CAPS)


@pytest.mark.parametrize("name", sorted(CAPS))
def test_a_builtin(name):
    scenario = load_scenario(name, Path("/nowhere"))
    assert scenario.name == name
    assert len(scenario.description) > 20
    assert "\n" not in scenario.description
    assert scenario.max_tokens == CAPS[name]
    assert len(scenario.prompts) >= 16
    assert len({msg[-1].content for msg in scenario.prompts}) == len(scenario.prompts)
    # No two begin alike, or the prefix cache would know the second.
    starts = [messages[0].content[:40] for messages in scenario.prompts]
    assert len(set(starts)) == len(starts)
    for messages in scenario.prompts:
        assert messages[-1].role == "user"
        assert all(m.content.strip() for m in messages)
        turns = [m.role for m in messages if m.role != "system"]
        assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]


@pytest.mark.parametrize("name", sorted(CAPS))
def test_several_are_conversations(name):
    prompts = load_scenario(name, Path()).prompts
    wanted = 4 if name.endswith("_chat") or name == "code_agent" else 2
    assert sum(any(m.role == "assistant" for m in messages) for messages in prompts) >= wanted


def test_demo_scenarios_are_for_a_small_model():
    chat, edit = demo_scenarios()
    assert (chat.name, edit.name) == ("en_chat", "text_edit")
    assert all(sum(len(m.content) for m in p) < 600 for p in chat.prompts + edit.prompts)


def test_languages():
    loaded = {name: load_scenario(name, Path()) for name in builtin_names()}
    languages = {name: scenario.language for name, scenario in loaded.items()}
    assert {n: v for n, v in languages.items() if n[:2] in ("ja", "zh")} == {
        "ja_chat": "ja", "ja_template": "ja", "ja_translate": "ja", "zh_chat": "zh",
    }  # fmt: skip
    for name in ("ja_chat", "ja_template"):
        assert all(KANA.search(text) for text in users(loaded[name]))
    # Translation goes both ways: some asks are English, but each says Japanese or is in it.
    assert all(KANA.search(t) or "Japanese" in t for t in (
        "\n".join(m.content for m in messages) for messages in loaded["ja_translate"].prompts
    ))  # fmt: skip
    for text in users(loaded["zh_chat"]):
        assert HAN.search(text)
        assert not KANA.search(text)
    for text in users(loaded["en_chat"]):
        assert not KANA.search(text)
        assert not HAN.search(text)


def test_thinking_of_a_scenario(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "description: d\nlanguage: no\nmax_tokens: 99\ntemperature: 0\nthinking: false\n"
        "extra_body: {top_k: 5}\nprompts:\n- Hi\n- messages: [{role: user, content: Ho}]\n"
    )
    assert load_scenario("./s.yaml", tmp_path) == Scenario(
        name="s",
        description="d",
        language="no",
        max_tokens=99,
        temperature=0.0,
        thinking=False,
        extra_body={"top_k": 5},
        prompts=[[Message(role="user", content="Hi")], [Message(role="user", content="Ho")]],
    )
    (tmp_path / "t.yml").write_text("temperature: null\nprompts: [Hi]\n")
    found = load_scenario("t.yml", tmp_path)
    assert (found.temperature, found.max_tokens, found.thinking) == (None, 256, None)


def test_a_bare_file_of_prompts(tmp_path):
    (tmp_path / "会話 ログ.txt").write_text("こんにちは\n", encoding="utf-8")
    assert load_scenario("会話 ログ.txt", tmp_path) == Scenario(
        name="会話 ログ",
        prompts=[[Message(role="user", content="こんにちは")]],
        max_tokens=256,
        temperature=0.7,
    )
    assert load_scenario(str(tmp_path / "会話 ログ.txt"), Path("/nowhere")).name == "会話 ログ"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts: [Hi]\nmax_token: 5\n", "{path}:2: unknown key 'max_token'; did you mean 'max_tokens'?"),
        ("max_tokens: 5\n", "{path}:1: a scenario needs prompts, a list of texts"),
        ("prompts: []\n", "{path}:1: prompts: a list of texts, or of {{messages: [...]}}, is expected"),
        ("prompts:\n- Hi\n- 5\n",
         "{path}:3: prompt 2: a prompt is text, a list of messages, or an object with one of them"),
        ("prompts:\n- messages:\n  - {role: boss, content: x}\n",
         "{path}:2: prompt 1: unknown role 'boss'; known: system, developer, user, assistant"),
        ("prompts: [Hi]\nmax_tokens: many\n",
         "{path}:2: max_tokens: a whole number of at least 1 is expected, not 'many'"),
        ("prompts: [Hi]\ntemperature: -1\n",
         "{path}:2: temperature: a number from 0 is expected, not -1"),
        ("prompts: [Hi]\nextra_body: {stream: false}\n",
         "{path}:2: stream in extra_body is set by the measurement"),
        ("[]", "{path}:1: a scenario is a mapping with a list of prompts"),
        ("prompts: [Hi]\nthinking: maybe\nmax_tokens: 0\n",
         ("{path}:2: thinking: true or false is expected, not 'maybe'\n"
         "{path}:3: max_tokens: a whole number of at least 1 is expected, not 0")),
    ],
)  # fmt: skip
def test_what_is_said_of_wrong_scenarios(tmp_path, text, message):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_scenario("s.yaml", tmp_path)
    assert str(caught.value) == message.format(path=path)


def test_unknown_names(tmp_path):
    hint = r"\(or a file: \.yaml, \.jsonl, \.ndjson, \.json, \.txt\)$"
    with pytest.raises(
        UsageError, match=rf"^unknown scenario 'ja_caht'; did you mean 'ja_chat'\? {hint}"
    ):
        load_scenario("ja_caht", tmp_path)
    with pytest.raises(
        UsageError, match=rf"^unknown scenario 'xyzzy'; there are code_agent, .*zh_chat {hint}"
    ):
        load_scenario("xyzzy", tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*no\.txt: No such file or directory"):
        load_scenario("no.txt", tmp_path)
    with pytest.raises(UsageError, match="cannot read"):
        load_scenario("~nobody-of-that-name/no.txt", tmp_path)
    with pytest.raises(UsageError, match="unknown scenario"):
        load_scenario("../scenarios/ja_chat", tmp_path)


@pytest.fixture
def call():
    return lambda *words: CliRunner().invoke(app, ["scenarios", *words])


def test_the_list_fits_eighty_columns(call):
    done = call()
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    count = len(load_scenario("ja_chat", Path()).prompts)
    assert re.search(rf"^ja_chat +ja +{count} +512 ", done.stdout, re.MULTILINE)
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:1].strip()] == [
        "name",
        *builtin_names(),
    ]


def test_the_list_as_json(call):
    rows = json.loads(call("--json").stdout)
    assert [row["name"] for row in rows] == builtin_names()
    row = next(row for row in rows if row["name"] == "code_agent")
    scenario = load_scenario("code_agent", Path())
    assert row == {
        "name": "code_agent",
        "language": "en",
        "prompts": len(scenario.prompts),
        "max_tokens": 2048,
        "temperature": scenario.temperature,
        "description": scenario.description,
    }


def test_show_prints_a_file_that_can_be_used(call, tmp_path):
    done = call("show", "ja_chat")
    assert done.stdout == builtin_text("ja_chat")
    (tmp_path / "mine.yaml").write_text(done.stdout, encoding="utf-8")
    mine = load_scenario("mine.yaml", tmp_path)
    assert mine.prompts == load_scenario("ja_chat", tmp_path).prompts
    shown = json.loads(call("show", "ja_chat", "--json").stdout)
    assert shown["name"] == "ja_chat"
    assert len(shown["prompts"]) == len(mine.prompts)


@pytest.mark.parametrize(
    "words", [("show",), ("show", "ja_caht"), ("hide", "ja_chat"), ("list", "x")]
)
def test_wrong_words(call, words):
    done = call(*words)
    assert isinstance(done.exception, UsageError)
    assert done.stdout == ""


def test_the_verb_as_a_program(cli):
    done = cli("scenarios", "show", "ja_chat", check=0, env={"PYTHONIOENCODING": "ascii"})
    assert "prompts:" in done.stdout
    assert "did you mean 'ja_chat'?" in cli("scenarios", "show", "ja_chatt", check=2).stderr
