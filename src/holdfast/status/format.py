"""Values as text for people: sizes, times, ages, counts. All pure.

Rounded and shortened for reading; the exact values are in the JSON output. Names are not escaped here: escape them for
a terminal or a web page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from holdfast.checkpoints.manifest import CheckpointManifest, SinkFailed, SinkStatus

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGES = ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"))
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
MOST_DIGITS = 24
"""Numbers in a damaged manifest can have thousands of digits."""


def number(value: int) -> str:
    """A count with thousands separated; one with too many digits is described instead."""
    if abs(value) >= 10**MOST_DIGITS:
        return f"a number of {len(str(abs(value)))} digits" if abs(value) < 10**4000 else "a huge number"
    return f"{value:,}"


def size(count: int) -> str:
    """A number of bytes in the unit that reads best, rounded."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS) - 1)
    tenths = count * 10 // (1 << (10 * power))
    whole = tenths // 10
    if whole >= 10**MOST_DIGITS:
        return number(count) + " bytes"
    return f"{whole:,} {_UNITS[power]}" if whole >= 100 else f"{whole}.{tenths % 10} {_UNITS[power]}"


def moment(milliseconds: int) -> str:
    """A time in UTC, to the second; a number that is no date is shown as milliseconds."""
    exact = _moment(milliseconds)
    return f"{exact:%Y-%m-%dT%H:%M:%SZ}" if exact else f"{number(milliseconds)} ms"


def watermark(milliseconds: int | None, now_ms: int | None = None) -> str:
    """A watermark as a time, with its age if `now_ms` is given; as a number if it is no time."""
    if milliseconds is None:
        return "none"
    exact = _moment(milliseconds)
    if exact is None or abs(milliseconds) < 10**10:  # small numbers are positions, not times since 1970
        return str(milliseconds) if abs(milliseconds) < 10**MOST_DIGITS else number(milliseconds)
    return moment(milliseconds) if now_ms is None else f"{moment(milliseconds)}  ({age(milliseconds, now_ms)})"


def _moment(milliseconds: int) -> datetime | None:
    try:
        # Not fromtimestamp: it rounds, and its range depends on the system.
        exact = _UNIX + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return exact if exact.year >= 1000 else None


def age(milliseconds: int, now_ms: int) -> str:
    """The time since `milliseconds`, in one unit, rounded down."""
    if abs(now_ms - milliseconds) < 1000:
        return "just now"
    return f"{span(now_ms - milliseconds)} ago" if now_ms >= milliseconds else f"in {span(milliseconds - now_ms)}"


def span(milliseconds: int) -> str:
    """A length of time in one unit, rounded down."""
    seconds = abs(milliseconds) // 1000
    if seconds == 0:
        return f"{abs(milliseconds)} ms"
    count, unit = next((seconds // length, unit) for length, unit in _AGES if seconds >= length)
    return f"{number(count)} {unit}{'s' if unit == 'day' and count != 1 else ''}"


def count(how_many: int, noun: str) -> str:
    """`1 checkpoint`, `2 checkpoints`."""
    return f"{number(how_many)} {noun}{'' if how_many == 1 else 's'}"


def count_up_to(how_many: int, counted: int, noun: str) -> str:
    """A count; `more than` if it is above `counted`, where counting stopped."""
    return f"more than {counted:,} {noun}s" if how_many > counted else count(how_many, noun)


def known(value: int | None) -> str:
    """A number; `unknown` for None, never 0."""
    return "unknown" if value is None else number(value)


def sink_status(status: SinkStatus | None) -> str:
    """One sink's status in lower case, with the reason of a failure."""
    if isinstance(status, SinkFailed):
        return f"failed: {status.reason}"
    return status.lower() if status else "unset"


def sinks(manifest: CheckpointManifest) -> str:
    """The number of sinks in each status: failed, pending, committed."""
    found = Counter(_status_word(status) for status in manifest.sink_commit_statuses.values())
    return ", ".join(f"{found[word]} {word}" for word in ("failed", "pending", "committed") if found[word]) or "-"


def _status_word(status: SinkStatus) -> str:
    return "failed" if isinstance(status, SinkFailed) else status.lower()


def kind(manifest: CheckpointManifest) -> str:
    """`full`, or `incremental` with the id of the parent."""
    if not manifest.is_incremental:
        return "full"
    return "incremental" if manifest.parent_id is None else f"incremental of {number(manifest.parent_id)}"


def throughput(rows: int, rows_per_second: float, seconds: float) -> str:
    """How an epoch went, in one line."""
    return f"{count(rows, 'row')}, {rows_per_second:,.1f} rows/s, {seconds:,.2f} s"


def natural(name: str) -> tuple[object, ...]:
    """A sorting key in which partition 10 comes after partition 9."""
    pieces = re.split(r"([0-9]{1,18})", name)
    return tuple((int(piece), "") if n % 2 else (-1, piece) for n, piece in enumerate(pieces))


def listed(names: Iterable[object], most: int = 8) -> str:
    """The first `most` names in one line, and the number of the others."""
    every = [str(name) for name in names]
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {number(rest)} more" if rest > 0 else "") if every else "none"
