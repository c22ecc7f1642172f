import json

import pytest

from draftmeter.errors import UsageError
from draftmeter.experiment.model import Message
from draftmeter.experiment.prompts import read_prompts
from draftmeter.experiment.scenario import load_scenario


@pytest.fixture
def read(tmp_path):
    def call(name, content):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return read_prompts(path)

    return call


def user(text):
    return [Message(role="user", content=text)]


def test_openai_messages(read):
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert read("a.jsonl", json.dumps({"messages": turns}) + "\n") == [
        [Message(role="system", content="S"), Message(role="user", content="U")]
    ]


def test_an_answer_after_the_last_question_is_to_be_generated(read):
    turns = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    assert read("a.jsonl", json.dumps({"messages": turns})) == [user("U")]


@pytest.mark.parametrize(
    "entry",
    [
        {"prompt": "Q"}, {"text": "Q"}, {"question": "Q"}, {"instruction": "Q"}, {"turns": ["Q", "R"]},
        {"prompt": "Q", "output_tokens": 9}, {"body": {"model": "m", "messages": [{"role": "user", "content": "Q"}]}},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}]},
        "Q",
    ],
)  # fmt: skip
def test_every_known_form_of_one_question(read, entry):
    assert read("a.jsonl", json.dumps(entry)) == [user("Q")]
    assert read("a.json", json.dumps([entry])) == [user("Q")]


def test_sharegpt_keeps_the_turns_before(read):
    talk = [
        {"from": "human", "value": "1"},
        {"from": "gpt", "value": "2"},
        {"from": "human", "value": "3"},
    ]
    (prompt,) = read("a.json", json.dumps([{"id": "x", "conversations": talk}]))
    assert [(m.role, m.content) for m in prompt] == [
        ("user", "1"),
        ("assistant", "2"),
        ("user", "3"),
    ]


def test_a_line_separator_inside_a_string_is_no_line_end(read):
    assert read("a.jsonl", '{"prompt": "a\u2028b\u2029c\u0085d"}\n') == [
        user("a\u2028b\u2029c\u0085d")
    ]


def test_text_one_prompt_a_line(read):
    assert read("a.txt", "\ufeff# mine\n\nこんにちは\r\nwhat now?\n") == [
        user("こんにちは"),
        user("what now?"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", "", "no prompts"),
        ("a.jsonl", "\n\n", "no prompts"),
        ("a.txt", "# only a comment\n", "no prompts"),
        ("a.json", "[]", "no prompts"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n', r"a\.jsonl:2: not a JSON line"),
        ("a.jsonl", '{"prompt": "x"}\n{"answer": "y"}\n', r"a\.jsonl:2: no messages"),
        ("a.jsonl", '{"prompt": "  "}', "empty"),
        ("a.jsonl", '{"messages": [{"role": "wizard", "content": "x"}]}', "unknown role 'wizard'"),
        ("a.jsonl", '{"messages": [{"role": "assistant", "content": "x"}]}', "no user's turn"),
        (
            "a.jsonl",
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "only text",
        ),
        ("a.json", '{"a": 1}', "a list of prompts"),
        ("a.json", "[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(read, name, content, words):
    with pytest.raises(UsageError, match=words):
        read(name, content)


def test_a_bare_file_takes_its_name(tmp_path):
    (tmp_path / "my logs.jsonl").write_text('{"prompt": "x"}')
    scenario = load_scenario("my logs.jsonl", tmp_path)
    assert (scenario.name, scenario.max_tokens, scenario.temperature) == ("my logs", 256, 0.7)
