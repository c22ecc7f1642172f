"""Prompts from users' own files, in the formats people have lying around.

==============  ==========================================================================
``.jsonl``      one object a line: ``{"messages": [...]}`` (OpenAI), ``{"body": {"messages": ..}}``
                (OpenAI batch), ``{"conversations": [...]}`` (ShareGPT), ``{"turns": [...]}``
                (SPEED-Bench, Spec-Bench: the first turn, since later ones depend on answers),
                or text under one of ``TEXT_KEYS`` (``{"prompt": ...}`` is what
                ``vllm bench serve --dataset-name custom`` reads, the others are guidellm's),
                with ``system_prompt`` or ``system`` as the system message
``.json``       a list of strings, of message lists, or of the objects above (ShareGPT)
``.txt``        one prompt a line; blank lines and lines that begin with ``#`` are skipped
==============  ==========================================================================

A conversation is kept up to its last user's turn: what was answered there is what will be
generated. It ends before its first tool call, which cannot be sent without the tools.
Entries in which nothing is left are skipped; entries that are not understood are errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftmeter.errors import UsageError
from draftmeter.experiment.model import Message
from draftmeter.experiment.yamlfile import read_text

MAX_BYTES = 256 * 2**20
# guidellm's names for a text column, in its order, and one of our own at the end.
TEXT_KEYS = (
    "prompt", "instruction", "question", "input", "context", "content", "turn", "text", "query",
)  # fmt: skip
MESSAGE_KEYS = ("messages", "chat_messages", "conversations", "conversation", "turns")
SYSTEM_KEYS = ("system_prompt", "system")
_ROLES = ("system", "developer", "user", "assistant")
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "system": "system",
}  # fmt: skip


class UnusableError(ValueError):
    """An entry that is not understood; the reason is the text."""


class NothingToAskError(UnusableError):
    """An entry in which no user says anything."""


def read_prompts(path: Path) -> list[list[Message]]:
    """All prompts of a file, as message lists that end with a user's turn.

    Raises:
        UsageError: unreadable, empty, not JSON, or nothing usable; names the line.
    """
    text = read_text(path, MAX_BYTES)
    if not text.strip():
        raise UsageError(f"{path} is empty; put one prompt in each line")
    suffix = path.suffix.lower()
    if suffix == ".txt":
        entries: Iterator[tuple[str, Any]] = _text_lines(text, path)
    elif suffix == ".json":
        entries = _json_list(text, path)
    else:
        entries = _json_lines(text, path)
    found: list[list[Message]] = []
    skipped = ""
    for where, entry in entries:
        try:
            found.append(messages_of(entry))
        except NothingToAskError as error:
            skipped = skipped or f"; {where}: {error}"
        except UnusableError as error:
            raise UsageError(f"{where}: {error}") from None
    if not found:
        raise UsageError(f"{path} has no prompts in it{skipped}")
    return found


def _text_lines(text: str, path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{path}:{number}", line.strip()


def _json_lines(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    # Not splitlines: U+2028 inside a JSON string is no line end (field case 11a).
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", _json(line, path, number)


def _json_list(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    data = _json(text, path, 1)
    if isinstance(data, dict):
        data = next(
            (v for k in ("prompts", "data", "rows") if isinstance(v := data.get(k), list)), None
        )
    if not isinstance(data, list):
        raise UsageError(
            f"{path}: a list of prompts is expected (one object a line: name it .jsonl)"
        )
    for number, entry in enumerate(data, 1):
        yield f"{path}: entry {number}", entry


def _json(text: str, path: Path, first_line: int) -> Any:
    # The standard library's reader knows lines; msgspec's only counts bytes.
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        message = f"not valid JSON: {error.msg} (column {error.colno})"
        if error.msg == "Extra data" and path.suffix.lower() == ".json":
            message += "; a file with one object a line is named .jsonl"
        raise UsageError(f"{path}:{line}: {message}") from None
    except (RecursionError, ValueError):
        message = "not valid JSON: nested too deeply, or a number too long"
        raise UsageError(f"{path}:{first_line}: {message}") from None


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
    if "role" in entry or "from" in entry:
        raise UnusableError(
            'a message stands alone; write {"messages": [...]} around a conversation'
        )
    turns = entry.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return _with_system(entry, _text(turns[0]))
    for key in (*MESSAGE_KEYS, *TEXT_KEYS):
        if isinstance(entry.get(key), str):
            return _with_system(entry, _text(entry[key]))
        if isinstance(entry.get(key), list):
            return _with_system(entry, _conversation(entry[key]))
    known = ", ".join(("messages", "conversations", "turns", *TEXT_KEYS))
    raise UnusableError(f"no prompt in it; expected one of {known}")


def _with_system(entry: dict[str, Any], messages: list[Message]) -> list[Message]:
    for key in SYSTEM_KEYS:
        words = entry.get(key)
        if isinstance(words, str) and words.strip() and messages[0].role != "system":
            return [Message(role="system", content=_sendable(words)), *messages]
    return messages


def _text(text: str) -> list[Message]:
    if not text.strip():
        raise NothingToAskError("the prompt is empty")
    return [Message(role="user", content=_sendable(text))]


def _conversation(turns: list[Any]) -> list[Message]:
    """Messages up to the last user's turn, and before the first tool call."""
    found: list[Message] = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise UnusableError("a message is an object with role and content")
        speaker = turn.get("role", turn.get("from"))
        if speaker in ("tool", "function") or turn.get("tool_calls") or turn.get("function_call"):
            break
        role: Any = speaker if speaker in _ROLES else _SPEAKERS.get(str(speaker).lower())
        if role is None:
            raise UnusableError(f"unknown role {str(speaker)[:40]!r}; known: {', '.join(_ROLES)}")
        content = _content(turn.get("content", turn.get("value")))
        found.append(Message(role=role, content=_sendable(content)))
    while found and found[-1].role != "user":
        found.pop()
    if not found or not found[-1].content.strip():
        raise NothingToAskError("no user's turn with text in it")
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
        raise UnusableError("content must be text")
    return content


def _sendable(text: str) -> str:
    """The text, unless half a surrogate pair in it keeps it from being UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnusableError(f"character {error.start} is half a surrogate pair (\\ud800)") from None
    return text
