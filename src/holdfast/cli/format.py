"""Text for a terminal: escaped, measured in cells, cut to the available width. All pure."""

from __future__ import annotations

import unicodedata

_LEAST = 2  # one character and the `…`


def printable(text: str) -> str:
    """The text with every character escaped that a terminal would interpret instead of showing.

    Escapes control characters, line and paragraph separators, and invisible format characters, such as those that
    reverse the reading direction. A backslash is not escaped: the result is for reading, not for parsing.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """The number of terminal cells that a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: int) -> str:
    """The text, escaped and cut to `most` terminal cells; a cut text ends with `…`."""
    shown = printable(text[: most + 1])
    if len(text) <= most and width(shown) <= most:
        return shown
    while width(shown) > max(most, _LEAST) - 1:
        shown = shown[:-1]
    return shown + "…"
