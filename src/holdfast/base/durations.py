"""Lengths of time as people write them: `30s`, `15min`, `7d`, `5 seconds`, `1 minute 30 seconds`. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day"}
_PIECE = r"[0-9]{1,9}\s*[a-zA-Z]+"
_PIECES = re.compile(rf"\s*{_PIECE}(?:\s+{_PIECE})*\s*", re.ASCII)
_NUMBER_AND_UNIT = re.compile(r"([0-9]+)\s*([a-zA-Z]+)", re.ASCII)
_SHOWN = 40  # characters of a text that is refused


class Duration(msgspec.Struct, frozen=True):
    """A length of time that was read."""

    seconds: float
    words: str
    """With units spelled out, as Spark takes it: `5 seconds`."""


def read_duration(given: Any) -> Duration:
    """Read a whole number with a unit, or several separated by blanks.

    Units are words from microseconds to weeks in any case, or short: s, sec, m, min, h, d. A month is not a length of
    time, and `M` is not taken for a minute. `ValueError`, with words for the person who wrote it, for anything else.
    """
    if not isinstance(given, str) or not _PIECES.fullmatch(given):
        raise ValueError(_refusal(given))
    microseconds = 0
    words = []
    for digits, name in _NUMBER_AND_UNIT.findall(given):
        unit = _SHORT.get(name) or name.lower().removesuffix("s")
        if unit not in _MICROSECONDS:
            raise ValueError(_refusal(given))
        number = int(digits)
        microseconds += number * _MICROSECONDS[unit]
        words.append(f"{number} {unit}{'' if number == 1 else 's'}")
    return Duration(microseconds / 1_000_000, " ".join(words))


def _refusal(given: Any) -> str:
    shown = repr(given)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return f"{shown} is not a length of time, such as '30s', '15min', '12h', '7d' or '5 seconds'"
