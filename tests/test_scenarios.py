import json
import re
from pathlib import Path

import pytest

from draftmeter.errors import UsageError
from draftmeter.experiment.demo import demo_scenarios
from draftmeter.experiment.scenario import builtin_names, load_scenario

CAPS = {
    "ja_chat": 512, "code_agent": 2048, "en_chat": 512, "zh_chat": 512, "ja_translate": 512,
    "ja_template": 512, "json_extract": 512, "code_edit": 1024, "rag_answer": 512,
}  # fmt: skip
KANA = re.compile(r"[\u3040-\u30ff]")
HAN = re.compile(r"[\u4e00-\u9fff]")


def test_the_built_in_names():
    assert set(builtin_names()) == set(CAPS)


@pytest.mark.parametrize("name", CAPS)
def test_a_built_in_scenario_has_distinct_natural_prompts(name):
    scenario = load_scenario(name, Path())
    assert scenario.max_tokens == CAPS[name]
    assert len(scenario.prompts) >= 16
    firsts = [next(m.content for m in p if m.role == "user") for p in scenario.prompts]
    assert len({f[:20] for f in firsts}) == len(firsts), "two prompts begin alike"
    assert all(p[-1].role == "user" for p in scenario.prompts)
    turns = [sum(m.role == "user" for m in p) for p in scenario.prompts]
    wanted = 4 if name.endswith("_chat") or name == "code_agent" else 2
    assert sum(n > 1 for n in turns) >= wanted, "several are conversations"


def test_languages():
    for prompt in load_scenario("ja_chat", Path()).prompts:
        assert all(KANA.search(m.content) for m in prompt)
    for prompt in load_scenario("zh_chat", Path()).prompts:
        assert all(HAN.search(m.content) and not KANA.search(m.content) for m in prompt)


def test_demo_scenarios_are_for_a_small_model():
    chat, edit = demo_scenarios()
    assert (chat.name, edit.name) == ("en_chat", "text_edit")
    assert all(sum(len(m.content) for m in p) < 600 for p in chat.prompts + edit.prompts)


def test_listing_and_showing(cli):
    listed = cli("scenarios", check=0).stdout
    assert all(name in listed for name in CAPS)
    assert all(len(line) <= 80 for line in listed.splitlines())
    rows = json.loads(cli("scenarios", "--json", check=0).stdout)
    assert {r["name"]: r["max_tokens"] for r in rows} == CAPS
    assert "prompts:" in cli("scenarios", "show", "ja_chat", check=0).stdout
    shown = json.loads(cli("scenarios", "show", "ja_chat", "--json", check=0).stdout)
    assert shown["max_tokens"] == 512
    assert "'ja_chat'" in cli("scenarios", "show", "ja_chatt", check=2).stderr


def test_errors_in_a_scenario_file_name_the_line(tmp_path):
    def load(text):
        (tmp_path / "s.yaml").write_text(text)
        return load_scenario("s.yaml", tmp_path)

    assert load("prompts: [hello]").max_tokens == 256
    for text, words in [
        ("prompt: [x]", "list of prompts"),
        (
            "prompts: [x]\nmax_token: 5",
            r"s\.yaml:2: unknown key 'max_token'; did you mean 'max_tokens'",
        ),
        ("prompts: [x]\nmax_tokens: many", r"s\.yaml:2: max_tokens"),
        ("prompts:\n  - fine\n  - {messages: []}", r"s\.yaml:3: no user's turn"),
    ]:
        with pytest.raises(UsageError, match=words):
            load(text)
