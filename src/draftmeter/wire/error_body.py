"""The words in the body of an HTTP error."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from draftmeter.wire.salvage import loosely

_LIMIT = 65536
_HTML_LIMIT = 8192
_MESSAGE_KEYS = ("message", "detail", "error", "error_message", "msg", "title")


def words_of_body(content_type: str, body: bytes) -> str:
    """The server's message in a JSON, HTML or text body; empty when there is none."""
    body = body[:_LIMIT].strip()
    if body[:1] in (b"{", b"[", b'"'):
        words = _words(loosely(body), depth=4)
        if words:
            return words
    text = body.decode("utf-8", "replace")
    if "html" in content_type.lower() or text[:1] == "<":
        return _words_of_html(text[:_HTML_LIMIT])
    return text


def _words(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "; ".join(filter(None, (_words(one, depth - 1) for one in value[:5])))
    if not isinstance(value, dict) or not depth:
        return ""
    for key in _MESSAGE_KEYS:
        words = _words(value.get(key), depth - 1)
        if words:
            where = value.get("loc")  # pydantic: which field was refused
            if key == "msg" and isinstance(where, list):
                return f"{'.'.join(str(part) for part in where[:8])}: {words}"
            return words
    return ""


def _words_of_html(text: str) -> str:
    title = re.search(r"<title[^<>]*>([^<]*)<", text, re.IGNORECASE)
    if title and title[1].strip():
        return unescape(title[1])
    without_code = re.sub(
        r"<(script|style)\b.*?</\1\s*>", " ", text, flags=re.IGNORECASE | re.DOTALL
    )
    return unescape(re.sub(r"<[^<>]*>", " ", without_code))
