"""Cuts a text that is shown to people."""

from __future__ import annotations


def shortened(text: str, most: int) -> str:
    """The text, cut to this many characters; `…` at its end says that there is more."""
    return text if len(text) <= most else text[: most - 1] + "…"
