"""The status of an index, read record by record: a damaged record does not hide the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.errors import Corrupt
from holdfast.index import Gap, Index, StoredCheckpoint, records
from holdfast.sinks.index.sink import epoch_of
from holdfast.status import format
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import Reader, Row, end_of

_Found = TypeVar("_Found")


class OpenedIndex(msgspec.Struct, frozen=True):
    """An index, with direct access to its records."""

    index: Index
    store: Reader

    @property
    def address(self) -> str:
        """Without secrets."""
        return self.index.address

    @property
    def has_config_hash(self) -> bool:
        """True also for a hash record that is damaged."""
        return self.store.get("meta", records.HASH_KEY) is not None


class SourceStatus(msgspec.Struct, frozen=True):
    """One source's checkpoint, or why it cannot be read."""

    name: str
    stored: StoredCheckpoint | None
    problem: str = ""

    @property
    def lineage_and_epoch(self) -> tuple[int, int]:
        """The lineage and epoch that a Spark pipeline encodes in the sequence. Requires a readable checkpoint."""
        assert self.stored is not None
        return epoch_of(self.stored.checkpoint.sequence)

    def as_json(self) -> dict[str, Any]:
        stored = self.stored
        if stored is None:
            return {"source": self.name, "state": "damaged", "reason": self.problem}
        lineage, epoch = self.lineage_and_epoch
        return {
            "source": self.name,
            "state": "ok",
            "reason": None,
            "sequence": stored.checkpoint.sequence,
            "epoch": epoch,
            "lineage": lineage,
            "position": position_json(stored.checkpoint.source_position),
            "written_ms": stored.written_ms,
        }


class IndexStatus(msgspec.Struct, frozen=True):
    """Everything that an index stores besides results. Two statuses are equal if nothing changed in between."""

    address: str
    config_hash: int | None
    sources: list[SourceStatus]
    gap_count: int
    gaps: list[Gap]
    """The readable ones, oldest first."""
    problems: list[str]
    """Damaged records other than checkpoints, a sentence each."""

    @property
    def is_damaged(self) -> bool:
        return bool(self.problems) or any(source.problem for source in self.sources)

    def as_json(self, now_ms: int) -> dict[str, Any]:
        return {
            "address": self.address,
            "now_ms": now_ms,
            "config_hash": None if self.config_hash is None else f"{self.config_hash:016x}",
            "sources": [source.as_json() for source in self.sources],
            "gap_count": self.gap_count,
            "gaps": [
                {
                    "source": gap.source_id,
                    "from": position_json(gap.from_position),
                    "to": position_json(gap.to_position),
                    "when_ms": gap.when_ms,
                    "why": gap.why,
                }
                for gap in self.gaps
            ],
            "problems": self.problems,
        }


@contextlib.contextmanager
def opened_index(url: str, *, read_only: bool) -> Iterator[OpenedIndex]:
    """Open the index for a block. With `read_only`, a process that has it open to write is not disturbed."""
    store = open_kv(url, records.SCHEMA, "read" if read_only else "exclusive")
    with Index(store) as index:
        yield OpenedIndex(index, store)


def observe_index(seen: OpenedIndex) -> IndexStatus:
    """Read every record. A damaged one is reported in its place; an index that cannot be read at all is an error."""
    sources = [_source(seen, key, value) for key, value in _scan(seen, records.CHECKPOINTS)]
    gaps = [_gap(seen, key, value) for key, value in _scan(seen, records.GAPS)]
    config_hash, problem = _decoded(seen, lambda _: seen.index.checkpoints.read_config_hash())
    return IndexStatus(
        seen.address,
        config_hash,
        sorted(sources, key=lambda source: format.natural(source.name)),
        len(gaps),
        [gap for gap, _ in gaps if gap is not None],
        [found for found in (problem, *(problem for _, problem in gaps)) if found],
    )


def _scan(seen: OpenedIndex, prefix: bytes) -> Iterator[Row]:
    return seen.store.scan("meta", prefix, end_of(prefix))


def _source(seen: OpenedIndex, key: bytes, value: bytes) -> SourceStatus:
    found, problem = _decoded(seen, lambda address: records.decode_checkpoint(key, value, address))
    if found is None:
        return SourceStatus(key.removeprefix(records.CHECKPOINTS).decode(errors="backslashreplace"), None, problem)
    return SourceStatus(*found)


def _gap(seen: OpenedIndex, key: bytes, value: bytes) -> tuple[Gap | None, str]:
    return _decoded(seen, lambda address: records.decode_gap(key, value, address))


def _decoded(seen: OpenedIndex, decode: Callable[[str], _Found]) -> tuple[_Found | None, str]:
    """The decoded record and "", or None and the reason why it cannot be read."""
    try:
        return decode(seen.address), ""
    except Corrupt as error:
        return None, error.message.removeprefix(f"{seen.address}: ")


# A source's position: up to 64 KiB of bytes in the source's own format


def position_text(position: bytes) -> str | None:
    """The position as text; None if it is binary: not UTF-8, or with a NUL character, or mostly unprintable.

    UTF-8 alone is not enough: binary numbers are often valid UTF-8 by accident.
    """
    try:
        text = position.decode()
    except UnicodeDecodeError:
        return None
    seen = sum(character.isprintable() or character in "\t\r\n" for character in text)
    return None if "\0" in text or seen * 2 < len(text) else text


def position_offsets(text: str) -> dict[str, str] | None:
    """Spark's offsets by partition: `{"orders": {"0": 17}}` becomes `orders-0`. None if the text is no JSON object."""
    try:
        value = msgspec.json.decode(text)
        if not isinstance(value, dict) or not value:
            return None
        return dict(sorted(_flattened(value), key=lambda item: format.natural(item[0])))
    except (msgspec.DecodeError, RecursionError):  # not JSON, or nested without end
        return None


def position_json(position: bytes | None) -> dict[str, Any] | None:
    """The whole position: `text` or `hex` is exact, `offsets` is for convenience."""
    if position is None:
        return None
    text = position_text(position)
    return {
        "size_bytes": len(position),
        "text": text,
        "hex": position.hex() if text is None else None,
        "offsets": None if text is None else position_offsets(text),
    }


def _flattened(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        # A number below a name is a Kafka partition below its topic, by convention written orders-0.
        separator = "" if not prefix else "-" if key.isdecimal() else "."
        name = f"{prefix}{separator}{key}"
        if isinstance(inner, dict) and inner:
            yield from _flattened(inner, name)
        else:
            yield name, inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()
