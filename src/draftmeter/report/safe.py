"""Untrusted text (names, server messages, model output) made safe to show."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"

# Other, control | format (bidi, zero width) | surrogate | private | unassigned; line, paragraph.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MARKDOWN = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_[]|~#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    | {"@": "@<!-- -->"}  # no mention of a person who happens to have a server's name
)  # fmt: skip


def printable(text: str, limit: int = 200) -> str:
    r"""``text`` on one line with nothing in it that a terminal would act on (field case 34).

    Control characters, escape sequences, bidi and zero-width characters are shown as what they
    are (``\x1b``, ``\u202e``); at most ``limit`` characters come back, the last one an ellipsis
    where something was cut.
    """
    shown: list[str] = []
    length = 0
    for char in text[: limit + 1]:
        piece = _visible(char)
        shown.append(piece)
        length += len(piece)
    if length <= limit:
        return "".join(shown)
    return "".join(shown)[: max(0, limit - 1)] + ELLIPSIS


def markdown(text: str, limit: int = 1000) -> str:
    """``printable`` text that stays text in a GitHub table: no markup, links, cells or mentions."""
    return printable(text, limit).translate(_MARKDOWN)


def spreadsheet(text: str, limit: int = 1000) -> str:
    """``printable`` text that a spreadsheet does not take for a formula."""
    safe = printable(text, limit)
    return f"'{safe}" if safe[:1] in ("=", "+", "-", "@") else safe


def shorten(text: str, width: int) -> str:
    """``text`` cut in its middle to ``width`` terminal columns; wide characters count two.

    Names of targets differ at their ends more often than in their middle.
    """
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    head = set_cell_size(text, (width - 1) // 2).rstrip(" ")
    room = width - 1 - cell_len(head)
    tail = ""
    for char in reversed(text):
        if cell_len(char + tail) > room:
            break
        tail = char + tail
    return head + ELLIPSIS + tail


def _visible(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
