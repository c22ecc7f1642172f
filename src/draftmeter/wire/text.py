"""Servers' words, made safe for a terminal and short enough for one line."""

from __future__ import annotations


def printable(text: str, limit: int = 300) -> str:
    r"""One line of at most ``limit`` characters without anything a terminal would obey.

    White space, line ends included, becomes single spaces; control and invisible characters are
    written out (``\x1b``).
    """
    words = " ".join(text[: 4 * limit].split())
    line = words if words.isprintable() else "".join(map(_visible, words))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
