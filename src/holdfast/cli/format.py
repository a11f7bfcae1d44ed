"""Text fit for a terminal: escaped, measured in cells, cut to the room there is. All pure."""

from __future__ import annotations

import unicodedata

_LEAST = 2  # a character and the mark that says there is more


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would act on instead of showing.

    Control characters, line and paragraph separators, and the invisible format characters among which are
    those that reverse the direction of reading. A backslash stays as it is: this is for eyes, not for parsing.
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """How many terminal cells a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: int) -> str:
    """The text, escaped and cut to this many terminal cells; `…` at its end says that there is more."""
    shown = printable(text[: most + 1])
    if len(text) <= most and width(shown) <= most:
        return shown
    while width(shown) > max(most, _LEAST) - 1:
        shown = shown[:-1]
    return shown + "…"
