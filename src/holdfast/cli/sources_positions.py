"""A source's position in words: what it says where that can be told, its bytes where not. All pure.

A position is its source's own, up to 64 KiB of anything. Nothing here is exact; the JSON output is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.status import format

_LEAST = 2  # a character and the mark that says there is more


def cut(text: str, most: int) -> str:
    """The text, escaped, in at most so many terminal cells; `…` at its end says that there is more."""
    shown = format.printable(text[: most + 1])
    if len(text) <= most and format.width(shown) <= most:
        return shown
    while format.width(shown) > max(most, _LEAST) - 1:
        shown = shown[:-1]
    return shown + "…"


def words(position: bytes, most: int) -> str:
    """A position as a person wants to see it: offsets, text, or bytes with their number."""
    if not position:
        return "0 bytes"
    text = text_of(position)
    if text is None:
        return cut(f"{format.count(len(position), 'byte')} {position[:most].hex()}", most)
    offsets = offsets_of(text)
    return cut(text if offsets is None else ", ".join(f"{name}: {value}" for name, value in offsets.items()), most)


def text_of(position: bytes) -> str | None:
    """The position as text; None if it is none: not UTF-8, with NUL in it, or hardly a character to be seen.

    Numbers in binary are often valid UTF-8 by accident.
    """
    try:
        text = position.decode()
    except UnicodeDecodeError:
        return None
    seen = sum(character.isprintable() or character in "\t\r\n" for character in text)
    return None if "\0" in text or seen * 2 < len(text) else text


def offsets_of(text: str) -> dict[str, str] | None:
    """Spark's offsets by partition, `{"orders": {"0": 17}}` as `orders-0`; None if the text is no JSON object."""
    try:
        value = msgspec.json.decode(text)
        if not isinstance(value, dict) or not value:
            return None
        return dict(sorted(_flattened(value), key=lambda item: format.natural(item[0])))
    except (msgspec.DecodeError, RecursionError):  # not JSON, or nested without end
        return None


def as_json(position: bytes | None) -> dict[str, Any] | None:
    """The whole position: `text` or `hex` is exact, `offsets` is for convenience."""
    if position is None:
        return None
    text = text_of(position)
    return {
        "size_bytes": len(position),
        "text": text,
        "hex": position.hex() if text is None else None,
        "offsets": None if text is None else offsets_of(text),
    }


def _flattened(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        # Kafka's partitions are numbers below their topic, and written as everywhere: orders-0.
        separator = "" if not prefix else "-" if key.isdecimal() else "."
        name = f"{prefix}{separator}{key}"
        if isinstance(inner, dict) and inner:
            yield from _flattened(inner, name)
        else:
            yield name, inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()
