"""Spark's offset log and commit log, read as text. Pure. An unknown log version is refused, never guessed.

offsets/N   v1: a JSON line of metadata, then one offset line per source, by position ("-": none yet)
            v2: the same, each offset line `name:offset`
commits/N   v1: a JSON line with the next watermark; v2 and v3 have more in it
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.base.codec import converted
from holdfast.errors import Corrupt, Invalid

OFFSET_VERSIONS = {"v1": 1, "v2": 2}
COMMIT_VERSIONS = {"v1": 1, "v2": 2, "v3": 3}
NO_OFFSET = "-"


class PlannedBatch(msgspec.Struct, frozen=True):
    """One file of the offset log: the offsets that Spark has planned for a batch."""

    version: int
    watermark_ms: int
    timestamp_ms: int
    settings: dict[str, str]
    """The settings that Spark pinned for the life of the query; those of the session do not count."""
    ends: tuple[str | None, ...]
    """The end offset of each source, in the order of the query; None before a source's first batch."""


class CommittedBatch(msgspec.Struct, frozen=True):
    """One file of the commit log."""

    version: int
    next_watermark_ms: int
    state_ids: dict[str, tuple[tuple[str, ...], ...]] = {}
    """With state format 2, by operator and then by partition: the ids of the attempts whose state counts."""


def parse_offsets(text: str, about: str) -> PlannedBatch:
    """Read one file of the offset log. `Corrupt` if it is torn, `Invalid` if a newer Spark wrote it."""
    version, lines = _versioned(text, OFFSET_VERSIONS, about)
    head = _object(lines[0] if lines else "", about)
    offsets = lines[1:]
    if version == 2:
        offsets = [line.partition(":")[2] for line in offsets]
    if not offsets or not all(offsets):
        raise _torn(about, "it names no offsets")
    for line in offsets:
        if _is_cut_off(line):
            raise _torn(about, f"{line!r:.60} is cut off")
    return PlannedBatch(
        version,
        _whole_number(head, "batchWatermarkMs", about),
        _whole_number(head, "batchTimestampMs", about),
        _settings(head, about),
        tuple(None if line == NO_OFFSET else line for line in offsets),
    )


def parse_commit(text: str, about: str) -> CommittedBatch:
    """Read one file of the commit log. `Corrupt` if it is torn, `Invalid` if a newer Spark wrote it."""
    version, lines = _versioned(text, COMMIT_VERSIONS, about)
    head = _object(lines[0] if lines else "", about)
    return CommittedBatch(version, _whole_number(head, "nextBatchWatermarkMs", about), _state_ids(head, about))


def parse_query_id(text: str, about: str) -> str:
    """The query id in Spark's `metadata` file."""
    found = _object(text.strip(), about).get("id")
    if not isinstance(found, str) or not found:
        raise _torn(about, "it names no query")
    return found


def _is_cut_off(offset: str) -> bool:
    """Whether a JSON offset is cut off: its brackets do not match. The offset of a source need not be JSON."""
    if offset[0] not in "{[" or _decoded(offset) is not None:
        return False
    return any(offset.count(opening) != offset.count(closing) for opening, closing in ("{}", "[]"))


def _decoded(offset: str) -> Any:
    try:
        return msgspec.json.decode(offset)
    except (msgspec.DecodeError, RecursionError):
        return None


def _versioned(text: str, known: dict[str, int], about: str) -> tuple[int, list[str]]:
    first, *lines = text.split("\n")
    if first not in known:
        if len(first) > 1 and first[0] == "v" and first[1:].isdigit():
            raise Invalid(
                f"{about} has log format {first}, and only {', '.join(known)} are known here.",
                code="workdir.log-format",
                about=about,
                unchanged="the workdir and the store",
                next_step="use a release of Holdfast that knows this release of Spark",
            )
        raise _torn(about, "it does not begin with a version")
    return known[first], [line for line in lines if line]


def _object(line: str, about: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _torn(about, str(error)) from None


def _settings(head: dict[str, Any], about: str) -> dict[str, str]:
    settings = head.get("conf") or {}
    if not isinstance(settings, dict):
        raise _torn(about, f"conf is {type(settings).__name__}")
    return {key: str(value) for key, value in settings.items()}


def _state_ids(head: dict[str, Any], about: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    try:
        found = head.get("stateUniqueIds") or {}
        return converted(found, dict[str, tuple[tuple[str, ...], ...]])
    except msgspec.ValidationError as error:
        raise _torn(about, f"stateUniqueIds: {error}") from None


def _whole_number(head: dict[str, Any], key: str, about: str) -> int:
    value = head.get(key, 0)
    if type(value) is not int:
        raise _torn(about, f"{key} is {value!r}")
    return value


def _torn(about: str, why: str) -> Corrupt:
    return Corrupt(f"{about} is not a log file that Spark could go on from: {why}.", code="workdir.log", about=about)
