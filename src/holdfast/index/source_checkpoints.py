"""The checkpoints of sources: how far each was read, committed in the same session as the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.base.arguments import check_bytes, check_number, check_text
from holdfast.index import records
from holdfast.index.records import Gap, SourceCheckpoint, StoredCheckpoint
from holdfast.index.session import SessionManager
from holdfast.storage.kv.store import Reader, end_of

MAX_POSITION_BYTES = 65_536
MOST_WHY = 4096


class SourceCheckpoints:
    """A sequence and a position per source, and the hash of the configuration that the results were made with.

    `stage_checkpoint` is part of the session. Everything else is independent of it: reads return committed values, also
    inside a session, and `clear_checkpoints`, `write_config_hash` and `pass_over` make commits of their own, which stay
    even if an open session is rolled back.
    """

    def __init__(self, store: Reader, sessions: SessionManager, clock: Callable[[], float]) -> None:
        self._store = store
        self._sessions = sessions
        self._clock = clock

    @property
    def is_persistent(self) -> bool:
        """Whether checkpoints outlive the process, so that sources can be told where to resume."""
        return self._store.is_persistent

    def stage_checkpoint(self, source_id: str, sequence: int, source_position: bytes | None = None) -> None:
        """Set a source's checkpoint with the session's commit, together with its results.

        Without a position, a stored position is removed. The sequence may be lower than the stored one: the caller
        decides whether to go back. Outside a session: `Invalid` on a persistent index, applied at once on a volatile
        one. A refused position or id leaves the stored checkpoint and the session unchanged.
        """
        key = records.checkpoint_key(check_source_id(source_id))
        sequence, position = check_number("sequence", sequence), check_position(source_position)
        self._sessions.add("meta", key, records.encode_checkpoint(key, sequence, position, self._now()))

    def read_checkpoint(self, source_id: str) -> SourceCheckpoint | None:
        """The committed checkpoint; None if there never was one."""
        key = records.checkpoint_key(check_source_id(source_id))
        self._sessions.check_usable()
        value = self._store.get("meta", key)
        return None if value is None else records.decode_checkpoint(key, value, self._store.address)[1].checkpoint

    def read_all_checkpoints(self) -> dict[str, SourceCheckpoint]:
        """Every committed checkpoint by its source, in one scan."""
        return {source_id: found.checkpoint for source_id, found in self._scan()}

    def read_all_stored(self) -> dict[str, StoredCheckpoint]:
        """Every committed checkpoint with the time it was staged, for status displays."""
        return dict(self._scan())

    def clear_checkpoints(self) -> None:
        """Remove every checkpoint, every recorded gap and the configuration hash, in one atomic step. Results stay."""
        self._sessions.check_usable()
        keys = itertools.chain([records.HASH_KEY], self._keys(records.CHECKPOINTS), self._keys(records.GAPS))
        self._sessions.commit_alone("index.clear", "meta", ((key, None) for key in keys))

    def write_config_hash(self, hash: int) -> None:
        """Store the configuration's hash, durable on return."""
        self._sessions.check_usable()
        value = records.encode_hash(check_number("hash", hash))
        self._sessions.commit_alone("index.configure", "meta", [(records.HASH_KEY, value)])

    def read_config_hash(self) -> int | None:
        """The stored hash; None if there is none."""
        self._sessions.check_usable()
        value = self._store.get("meta", records.HASH_KEY)
        return None if value is None else records.decode_hash(value, self._store.address)

    def pass_over(self, source_id: str, sequence: int | None, to_position: bytes | None, why: str) -> Gap:
        """Record a gap from the source's checkpoint to `to_position`, and move the checkpoint there.

        Without a sequence the checkpoint is removed, and the source starts over with sequences of its own. Gap and
        checkpoint are one commit, so that no change is skipped without a record.
        """
        key = records.checkpoint_key(check_source_id(source_id))
        sequence = None if sequence is None else check_number("sequence", sequence)
        to_position = check_position(to_position)
        before = self.read_checkpoint(source_id)
        # The reason may quote a file name that is not valid Unicode.
        reason = why[:MOST_WHY].encode(errors="backslashreplace").decode()
        gap = Gap(source_id, before.source_position if before else None, to_position, self._now(), reason)
        last = max((records.gap_number(found) for found in self._keys(records.GAPS)), default=0)
        moved = None if sequence is None else records.encode_checkpoint(key, sequence, to_position, gap.when_ms)
        changes = [
            (records.gap_key(last + 1), records.encode_gap(records.gap_key(last + 1), gap)),
            (key, moved),
        ]
        self._sessions.commit_alone("index.gap", "meta", changes)
        return gap

    def gaps(self) -> list[Gap]:
        """All gaps recorded since the index was empty, oldest first."""
        self._sessions.check_usable()
        found = self._store.scan("meta", records.GAPS, end_of(records.GAPS))
        return [records.decode_gap(key, value, self._store.address) for key, value in found]

    def _scan(self) -> Iterator[tuple[str, StoredCheckpoint]]:
        self._sessions.check_usable()
        for key, value in self._store.scan("meta", records.CHECKPOINTS, end_of(records.CHECKPOINTS)):
            yield records.decode_checkpoint(key, value, self._store.address)

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        return (key for key, _ in self._store.scan("meta", prefix, end_of(prefix)))

    def _now(self) -> int:
        return max(0, int(self._clock() * 1000))


def check_source_id(source_id: Any) -> bytes:
    """The id as UTF-8: 1 to 1,024 bytes, any characters except NUL."""
    return check_text("source_id", source_id, nul=False)


def check_position(position: Any) -> bytes | None:
    """An opaque position: None, or up to 65,536 bytes."""
    return None if position is None else check_bytes("source_position", position, 0, MAX_POSITION_BYTES)
