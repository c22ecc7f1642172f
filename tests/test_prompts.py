"""Users' own prompt files: every format people have, and what is said about broken ones."""

import json

import pytest

from draftmeter.errors import UsageError
from draftmeter.experiment.model import Message
from draftmeter.experiment.prompts import read_prompts


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def plain(prompts):
    return [[(m.role, m.content) for m in messages] for messages in prompts]


def jsonl(*entries):
    return "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in entries)


CHAT = [
    {"role": "system", "content": "短く答えて。"},
    {"role": "user", "content": "元気?"},
    {"role": "assistant", "content": "うん。"},
    {"role": "user", "content": "何してた?"},
]
CHAT_READ = [
    ("system", "短く答えて。"),
    ("user", "元気?"),
    ("assistant", "うん。"),
    ("user", "何してた?"),
]


def test_openai_messages(write):
    assert plain(read_prompts(write("p.jsonl", jsonl({"messages": CHAT})))) == [CHAT_READ]


def test_openai_batch(write):
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": CHAT, "max_tokens": 9},
    }
    assert plain(read_prompts(write("p.jsonl", jsonl(line)))) == [CHAT_READ]


@pytest.mark.parametrize(
    "key",
    ["prompt", "instruction", "question", "input", "context", "content", "turn", "text", "query"],
)
def test_text_columns(write, key):
    path = write("p.jsonl", jsonl({"id": 7, key: "Why is the sky blue?"}))
    assert plain(read_prompts(path)) == [[("user", "Why is the sky blue?")]]


def test_the_first_known_column_wins(write):
    # SQuAD's columns; guidellm's order puts the question before its context.
    path = write("p.jsonl", jsonl({"context": "Long.", "question": "Who?", "text": "x"}))
    assert plain(read_prompts(path)) == [[("user", "Who?")]]


def test_a_system_column(write):
    path = write("p.jsonl", jsonl({"system_prompt": "Be brief.", "prompt": "Hi"}))
    assert plain(read_prompts(path)) == [[("system", "Be brief."), ("user", "Hi")]]


def test_turns_give_the_first(write):
    # Spec-Bench and SPEED-Bench: the second turn is about an answer that is not there.
    path = write(
        "p.jsonl",
        jsonl({"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}),
    )
    assert plain(read_prompts(path)) == [[("user", "Write.")]]


def test_sharegpt(write):
    data = [
        {"id": "a", "conversations": [
            {"from": "human", "value": "One"}, {"from": "gpt", "value": "Two"},
            {"from": "human", "value": "Three"}, {"from": "gpt", "value": "Four"},
        ]},
        {"id": "b", "conversations": []},
        {"id": "c", "conversations": [{"from": "gpt", "value": "only an answer"}]},
    ]  # fmt: skip
    # Up to the last human turn; the entries without one, which the real file has, are skipped.
    expected = [[("user", "One"), ("assistant", "Two"), ("user", "Three")]]
    assert plain(read_prompts(write("p.json", json.dumps(data)))) == expected


def test_json_lists(write):
    path = write("p.json", json.dumps(["One", CHAT, {"prompt": "Two"}]))
    assert plain(read_prompts(path)) == [[("user", "One")], CHAT_READ, [("user", "Two")]]


def test_text_file(write):
    path = write("p.txt", "# a comment\n\n  Hello {port} $HOME \n\r\nZweite Zeile\r\n#x\n")
    assert plain(read_prompts(path)) == [
        [("user", "Hello {port} $HOME")],
        [("user", "Zweite Zeile")],
    ]


def test_byte_order_mark(write):
    assert plain(read_prompts(write("p.txt", b"\xef\xbb\xbfHi\n"))) == [[("user", "Hi")]]
    line = b'\xef\xbb\xbf{"prompt": "Hi"}\n'
    assert plain(read_prompts(write("p.jsonl", line))) == [[("user", "Hi")]]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c"])
def test_only_a_line_feed_ends_a_line(write, odd):
    # str.splitlines cuts at each of these (field case 11a).
    path = write("p.jsonl", jsonl({"prompt": f"a{odd}b"}, {"prompt": "c"}))
    assert plain(read_prompts(path)) == [[("user", f"a{odd}b")], [("user", "c")]]
    text = write("p.txt", f"a{odd}b\nc\n")
    assert plain(read_prompts(text)) == [[("user", f"a{odd}b")], [("user", "c")]]


def test_answers_after_the_last_question_are_cut(write):
    messages = [*CHAT, {"role": "assistant", "content": "寝てた。"}]
    assert plain(read_prompts(write("p.jsonl", jsonl({"messages": messages})))) == [CHAT_READ]


def test_a_conversation_ends_before_its_first_tool_call(write):
    messages = [
        {"role": "user", "content": "What is in a.py?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
        {"role": "tool", "tool_call_id": "1", "content": "print(1)"},
        {"role": "user", "content": "And now?"},
    ]
    expected = [[("user", "What is in a.py?")]]
    assert plain(read_prompts(write("p.jsonl", jsonl({"messages": messages})))) == expected


def test_content_parts(write):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    path = write("p.jsonl", jsonl({"messages": [{"role": "user", "content": parts}]}))
    assert read_prompts(path) == [[Message(role="user", content="Hello")]]


OK = '{"prompt": "fine"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", "", "{path} is empty; put one prompt in each line"),
        ("p.txt", "\n# only\n", "{path} has no prompts in it"),
        ("p.jsonl", OK + "\n{oops}\n",
         "{path}:3: not valid JSON: Expecting property name enclosed in double quotes (column 2)"),
        ("p.json", '["a",\n "b",\n]',
         # Python 3.13 says more of a trailing comma than 3.11 does
         "{path}:"),
        ("p.json", OK + OK,
         "{path}:2: not valid JSON: Extra data (column 1); a file with one object a line is named .jsonl"),
        ("p.json", '{"a": 1}', "{path}: a list of prompts is expected (one object a line: name it .jsonl)"),
        ("p.jsonl", OK + '{"foo": "bar"}\n',
         ("{path}:2: no prompt in it; expected one of messages, conversations, turns, prompt, "
         "instruction, question, input, context, content, turn, text, query")),
        ("p.jsonl", OK + '{"prompt": 5}\n', "{path}:2: no prompt in it; "),
        ("p.jsonl", '{"prompt": "  "}\n', "{path} has no prompts in it; {path}:1: the prompt is empty"),
        ("p.jsonl", '{"messages": []}\n',
         "{path} has no prompts in it; {path}:1: no user's turn with text in it"),
        ("p.jsonl", '{"messages": [{"role": "wizard", "content": "x"}]}\n',
         "{path}:1: unknown role 'wizard'; known: system, developer, user, assistant"),
        ("p.jsonl", '{"role": "user", "content": "x"}\n',
         '{path}:1: a message stands alone; write {{"messages": [...]}} around a conversation'),
        ("p.jsonl", '{"messages": ["x"]}\n', "{path}:1: a message is an object with role and content"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": {"a": 1}}]}\n',
         "{path}:1: content must be text"),
        ("p.jsonl", '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}\n',
         "{path}:1: only text can be measured, not images or sound"),
        ("p.jsonl", OK + '{"prompt": "\\ud83d!"}\n',
         "{path}:2: character 0 is half a surrogate pair (\\ud800)"),
        ("p.jsonl", OK + "7\n",
         "{path}:2: a prompt is text, a list of messages, or an object with one of them"),
        ("p.txt", b"ok\nna\xefve\n", "{path}:2: not UTF-8; save the file as UTF-8"),
        ("p.jsonl", "[" * 200_000,
         "{path}:1: not valid JSON: nested too deeply, or a number too long"),
        ("p.jsonl", '{"prompt": "x", "n": ' + "9" * 5000 + "}",
         "{path}:1: not valid JSON: nested too deeply, or a number too long"),
    ],
)  # fmt: skip
def test_what_is_said_of_broken_files(write, name, content, message):
    path = write(name, content)
    with pytest.raises(UsageError) as caught:
        read_prompts(path)
    expected = message.format(path=path)
    assert str(caught.value).startswith(expected)
    if not expected.endswith((":", "; ")):
        assert str(caught.value) == expected


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*no\.jsonl: No such file or directory"):
        read_prompts(tmp_path / "no.jsonl")
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "d.jsonl")
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(tmp_path / "a\0b.txt")


def test_a_file_beyond_the_bound(write):
    path = write("p.txt", "x")
    with path.open("r+b") as file:  # sparse: it takes no room on disk
        file.truncate(256 * 2**20 + 1)
    with pytest.raises(UsageError, match=r"p\.txt is larger than 256 MiB$"):
        read_prompts(path)
