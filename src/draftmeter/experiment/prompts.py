"""Prompts from users' own files, in the formats people have lying around.

==============  ==========================================================================
``.jsonl``      one object a line: ``{"messages": [...]}`` (OpenAI), ``{"body": {"messages": ..}}``
                (OpenAI batch), ``{"conversations": [...]}`` (ShareGPT), ``{"turns": [...]}``
                (SPEED-Bench, Spec-Bench: the first turn, since later ones depend on answers),
                or text under ``prompt``, ``text``, ``question``, ``instruction``, ``input``,
                ``content`` (``vllm bench serve`` custom data sets, guidellm)
``.json``       a list of strings, of message lists, or of the objects above (ShareGPT)
``.txt``        one prompt a line; blank lines and lines that begin with ``#`` are skipped
==============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from draftmeter.errors import UsageError
from draftmeter.experiment.model import Message
from draftmeter.experiment.yamlfile import read_text

MAX_BYTES = 256 * 2**20
TEXT_KEYS = ("prompt", "text", "question", "instruction", "input", "content", "query")
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "system": "system",
}  # fmt: skip


class UnusableError(ValueError):
    """An entry that cannot be sent; the reason is the text."""


def read_prompts(path: Path) -> list[list[Message]]:
    """All prompts of a file, as message lists that end with a user's turn.

    Raises:
        UsageError: unreadable, empty, not JSON, or nothing usable; names the line.
    """
    text = read_text(path, MAX_BYTES)
    suffix = path.suffix.lower()
    if suffix == ".txt":
        found = [
            [Message(role="user", content=line.strip())]
            for line in text.split("\n")
            if line.strip() and not line.lstrip().startswith("#")
        ]
    elif suffix == ".json":
        found = list(_json_list(text, path))
    else:
        found = list(_json_lines(text, path))
    if not found:
        raise UsageError(f"{path} has no prompts in it")
    return found


def _json_lines(text: str, path: Path) -> Iterator[list[Message]]:
    # Not splitlines: U+2028 inside a JSON string is no line end (field case 11a).
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not a JSON line: {error}") from None
        yield _checked(entry, f"{path}:{number}")


def _json_list(text: str, path: Path) -> Iterator[list[Message]]:
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    if isinstance(data, dict):
        data = next(
            (v for k in ("prompts", "data", "rows") if isinstance(v := data.get(k), list)), None
        )
    if not isinstance(data, list):
        raise UsageError(f"{path}: a list of prompts is expected")
    for number, entry in enumerate(data, 1):
        yield _checked(entry, f"{path}, entry {number}")


def _checked(entry: Any, where: str) -> list[Message]:
    try:
        return messages_of(entry)
    except UnusableError as error:
        raise UsageError(f"{where}: {error}") from None


def messages_of(entry: Any) -> list[Message]:
    """One entry, of any of the formats, as messages.

    Raises:
        UnusableError: it has no user's turn, or nothing that could be text.
    """
    if isinstance(entry, str):
        return _text(entry)
    if isinstance(entry, list):
        return _conversation(entry)
    if not isinstance(entry, dict):
        raise UnusableError("a prompt is text, a list of messages, or an object with one of them")
    body = entry.get("body")
    return _object(body if isinstance(body, dict) else entry)


def _object(entry: dict[str, Any]) -> list[Message]:
    turns = entry.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return _text(turns[0])
    for key in ("messages", "conversations", "conversation", "turns", *TEXT_KEYS):
        if isinstance(entry.get(key), str):
            return _text(entry[key])
        if isinstance(entry.get(key), list):
            return _conversation(entry[key])
    raise UnusableError(f"no messages, conversations, turns, or any of {', '.join(TEXT_KEYS)}")


def _text(text: str) -> list[Message]:
    if not text.strip():
        raise UnusableError("the prompt is empty")
    return [Message(role="user", content=text)]


def _conversation(turns: list[Any]) -> list[Message]:
    """Messages up to the last user's turn: what an assistant said after it is to be generated."""
    found: list[Message] = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise UnusableError("a message is an object with role and content")
        role = turn.get("role", _SPEAKERS.get(str(turn.get("from", "")).lower()))
        content = _content(turn.get("content", turn.get("value")))
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise UnusableError(f"unknown role {str(turn.get('role', turn.get('from')))[:40]!r}")
        found.append(Message(role=role, content=content))
    while found and found[-1].role not in ("user", "tool"):
        found.pop()
    if not any(m.role == "user" and m.content.strip() for m in found):
        raise UnusableError("no user's turn with text in it")
    return found


def _content(content: Any) -> str:
    if isinstance(content, list):  # parts: the text ones can be sent to a text model
        texts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        if len(texts) != len(content):
            raise UnusableError("only text can be measured, not images or sound")
        return "".join(map(str, texts))
    if content is None:
        return ""
    if not isinstance(content, str):
        raise UnusableError("content is text")
    return content
