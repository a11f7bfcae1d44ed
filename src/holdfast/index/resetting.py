"""Emptying an index so that a crash half-way does no harm.

A marker with the hash to set at the end is committed first. Then everything goes, some thousand keys per commit. The
last commit sets the hash and removes the marker. Whoever opens an index with a marker finishes this first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.errors import Unavailable
from holdfast.index import records
from holdfast.index.session import SessionManager
from holdfast.storage.kv.store import Reader, Row, end_of

CHUNK = 4096
UNFINISHED = "index.reset-unfinished"
"""The code of the error for an index that is half emptied."""
_EMPTIED: tuple[tuple[str, bytes], ...] = (
    ("meta", records.CHECKPOINTS),
    ("meta", records.GAPS),
    ("results", b""),
)


def has_anything(store: Reader) -> bool:
    """Whether there is something that a reset would remove."""
    return any(next(store.scan(space, prefix, end_of(prefix)), None) for space, prefix in _EMPTIED)


def reset(store: Reader, sessions: SessionManager, config_hash: int | None) -> None:
    """Empty the index and leave this hash, or none. Until it is done, nobody reads or writes anything else."""
    marker = [(records.RESET_KEY, records.encode_marker(config_hash))]
    sessions.refusal = lambda: _unfinished(store.address)
    try:
        sessions.commit_alone("reset.begin", "meta", marker)
    except BaseException:
        if store.get("meta", records.RESET_KEY) is None:  # as it was; if it cannot be told, it stays refused
            sessions.refusal = None
        raise
    finish(store, sessions)
    sessions.refusal = None


def finish(store: Reader, sessions: SessionManager) -> None:
    """Finish a reset that was begun, if there is one."""
    value = store.get("meta", records.RESET_KEY)
    if value is None:
        return
    config_hash = records.decode_marker(value, store.address)
    for space, prefix in _EMPTIED:
        removals = ((key, None) for key, _ in store.scan(space, prefix, end_of(prefix)))
        while chunk := list(islice(removals, CHUNK)):
            sessions.commit_alone("reset.clear", space, chunk)
    new_hash = None if config_hash is None else records.encode_hash(config_hash)
    sessions.commit_alone("reset.finish", "meta", [(records.HASH_KEY, new_hash), (records.RESET_KEY, None)])


def refuse_unfinished(store: Reader) -> None:
    """Whoever only looks cannot finish it, and must not take what is left for the whole."""
    if store.get("meta", records.RESET_KEY) is not None:
        raise _unfinished(store.address)


def _unfinished(address: str) -> Unavailable:
    return Unavailable(
        f"{address} is being emptied, and that is not finished.",
        code=UNFINISHED,
        about=address,
        unchanged="nothing: part of the index is gone, and the rest will go",
        next_step="wait for it; if it failed, open the index again, which finishes it",
    )


class ResetGuard:
    """The reads of an index that is not open for writing.

    A process that writes may begin to empty the index at any time, and fail half-way. So each read looks afterwards
    whether that has begun, a scan at its end, and is `Unavailable` then.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.address = reader.address
        self.is_persistent = reader.is_persistent
        self.close = reader.close

    def get(self, space: str, key: bytes) -> bytes | None:
        found = self._reader.get(space, key)
        refuse_unfinished(self._reader)
        return found

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._reader.get_many(space, keys)
        refuse_unfinished(self._reader)
        return found

    def scan(self, space: str, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Row]:
        yield from self._reader.scan(space, start, end, limit)
        refuse_unfinished(self._reader)
