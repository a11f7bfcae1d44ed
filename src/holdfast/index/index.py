"""An index: results, the checkpoints of the sources they came from, and sessions that commit both in one step."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from types import NoneType, TracebackType

from holdfast.base.arguments import MAX_KEY_BYTES, check_key, check_number, check_prefix, check_value, refused
from holdfast.errors import Corrupt, Invalid
from holdfast.index import configuration, records, session
from holdfast.index.configuration import OnChange, Start, decide_start
from holdfast.index.records import Gap
from holdfast.index.session import SMALL, SessionManager
from holdfast.index.source_checkpoints import SourceCheckpoints
from holdfast.storage.kv import errors
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import KeyValueStore, Reader, end_of


def open_index(
    url: str | os.PathLike[str], *, read_only: bool = False, clock: Callable[[], float] = time.time
) -> Index:
    """Open the index at an address; create it if there is none.

    `sqlite:///path` and `rocksdb:///path` are on the local disk, at a relative path; an absolute one has four slashes:
    `sqlite:////path`. A plain path is that of a SQLite file. `redis://` (Redis, Valkey, Garnet) and `postgresql://`
    on a server; `s3://bucket/path`, `gs://` and `az://` are SlateDB on object storage, with settings from the
    environment, and `file:///path` is SlateDB on local files, for development: it does not sync. `memory://` is new
    each time and gone when closed; so is `memory://name`, which cannot be opened twice at a time.
    An index is never shared by two writing processes: if another process has it open, opening it either fails with
    `Conflict` or takes it over, and the other's next commit is `Fenced`. With `read_only` no writer is fenced or
    delayed, nothing can be written, and `NotFound` is raised if there is no index. `clock` returns the time of day, for
    tests.
    """
    return Index(open_kv(url, records.SCHEMA, "read" if read_only else "exclusive"), clock=clock)


class Index:
    """One index in one store, opened by `holdfast.open_index`.

        with open_index("sqlite:///data/orders.db") as index:
            with index.session():
                index.results.put(b"order-17", b"...")
                index.checkpoints.stage_checkpoint("orders", 42, position)

    Guarantees: the writes of a session are stored as a whole or not at all, however the process ends; on a persistent
    store they are durable when the session's commit returns. Reads see committed data only.
    Opening finishes an interrupted reset before anything can be read.
    """

    checkpoints: SourceCheckpoints
    results: ResultIndex

    def __init__(self, store: Reader, *, clock: Callable[[], float] = time.time) -> None:
        """`store` is open for writing, or a `Reader`: then nothing can be written to the index."""
        is_writable = isinstance(store, KeyValueStore)
        self._store = store if is_writable else configuration.ResetGuard(store)
        self._sessions = SessionManager(self._store)
        self.max_session = store.max_transaction if isinstance(store, KeyValueStore) else None
        """The largest size of a session, as `transaction_size` counts it; None: it may be larger than memory."""
        self._is_closed = False
        self.checkpoints = SourceCheckpoints(self._store, self._sessions, clock)
        self.results = ResultIndex(self._store, self._sessions)
        try:
            self._check_format(makes_it=is_writable)
            if is_writable:
                configuration.finish_reset(store, self._sessions)
            else:
                configuration.refuse_unfinished(store)
        except BaseException:
            store.close()
            raise

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ", session open" if self.has_session else ""
        return f"Index({self.address!r}{state})"

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        return self._store.address

    @property
    def has_session(self) -> bool:
        """Whether a session is open, this thread's or another's."""
        return self._sessions.is_open

    def begin(self) -> None:
        """Begin a session, or one more level of the session that this thread has open.

        `Invalid` if another thread has a session open.
        """
        self._sessions.begin()

    def commit(self) -> None:
        """Leave one level; the outermost commit makes everything visible and durable in one step.

        `Invalid` without a session. If it raises, nothing was applied and no session is open: do the change again.
        After `OutcomeUnknown`, first read back whether it was applied.
        """
        self._sessions.commit()

    def rollback(self) -> None:
        """Undo the whole session, at any depth. Does nothing without a session."""
        self._sessions.rollback()

    def session(self) -> contextlib.AbstractContextManager[Index]:
        """Begin; commit at the end of the block, roll everything back if it raises."""
        return self._sessions.session(self)

    def configure(self, config_hash: int, on_change: OnChange = "fail") -> Start:
        """Declare at start the configuration of the results. Returns whether sources resume or start over.

        If the results were made with another configuration, or with an unknown one: `fail` raises and changes nothing,
        `reset` empties the index, `accept` keeps everything and stores the new hash. A stored hash that cannot be read
        is `Corrupt`, and nothing is emptied. Not inside a session.
        """
        self._check_no_session("configure")
        start = decide_start(
            stored=self.checkpoints.read_config_hash(),
            wanted=config_hash,
            has_anything=configuration.has_anything(self._store),
            policy=on_change,
            is_persistent=self.checkpoints.is_persistent,
        )
        if start.action == "refuse":
            raise configuration.refuse_change(start, self.address)
        if start.action == "reset":
            self.reset(config_hash)
        elif start.writes_hash:
            self.checkpoints.write_config_hash(config_hash)
        return start

    def reset(self, config_hash: int | None = None) -> None:
        """Empty the index: results, checkpoints and gaps. Sets `config_hash` if given, else keeps the stored hash.

        A process that dies in the middle leaves a marker, and the next opening finishes the reset. If this fails in the
        middle, nothing can be read or written until the index is opened again. Not inside a session.
        """
        self._sessions.check_usable()
        self._check_no_session("reset")
        if config_hash is not None:
            check_number("config_hash", config_hash)
        else:
            with contextlib.suppress(Corrupt):  # a reset is the way to repair a damaged hash
                config_hash = self.checkpoints.read_config_hash()
        configuration.reset_index(self._store, self._sessions, config_hash)

    def gaps(self) -> list[Gap]:
        """All gaps recorded since the index was empty, oldest first."""
        return self.checkpoints.gaps()

    def close(self) -> None:
        """Roll back an open session and close the store. Fine to call twice."""
        self._sessions.close()
        self._store.close()
        self._is_closed = True

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_no_session(self, what: str) -> None:
        if self._sessions.is_open:
            raise Invalid(
                f"{self.address}: {what} cannot be part of a session, and one is open.",
                code="session.open",
                about=self.address,
                unchanged="the index and the session",
                next_step="commit or roll back first",
            )

    def _check_format(self, *, makes_it: bool) -> None:
        value = self._store.get("meta", records.FORMAT_KEY)
        if value is None:
            has_records = any(next(self._store.scan(space, b"", None, 1), None) for space in records.SCHEMA.names)
            # A second look: another process may have made the index since the first.
            value = self._store.get("meta", records.FORMAT_KEY) if has_records else None
            if has_records and value is None:
                raise Corrupt(
                    f"{self.address}: the record of its format is missing, but there are other records.",
                    code="index.record",
                    about=self.address,
                    unchanged="the index",
                    next_step="restore the index from a copy, or start with a new one at another address",
                )
        if value is None:
            if not makes_it:
                raise errors.not_there("index", self.address)
            self._sessions.commit_alone("index.create", "meta", [(records.FORMAT_KEY, records.encode_format())])
            return
        found = records.decode_format(value, self.address)
        if found > records.FORMAT:
            raise errors.newer(
                "index", self.address, f"it has format {found}, this release reads up to {records.FORMAT}"
            )


class ResultIndex:
    """An ordered map of bytes. Writes are part of the session; reads return committed values, also inside a session."""

    def __init__(self, store: Reader, sessions: SessionManager) -> None:
        self._store = store
        self._sessions = sessions

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the session's commit. A key has 1 to 2,048 bytes, a value up to 64 MiB."""
        # Fast path for nearly every call: no further call, and no byte count, since small values are bounded by number.
        sessions = self._sessions
        if (
            sessions.owner == get_ident()
            and key.__class__ is bytes is value.__class__
            and key
            and len(key) <= MAX_KEY_BYTES
            and len(value) <= SMALL
        ):
            sessions.held_results[key] = value
            if len(sessions.held_results) >= sessions.held_limit:
                sessions.spill()
            return
        self._sessions.add("results", check_key(key), check_value(value))

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Like `put` for each key and its value, and `delete` for each key whose value is None, but faster."""
        if len(keys) != len(values):
            raise refused("values", f"there are {len(values)} for {len(keys)} keys")
        for start in range(0, len(keys), session.HELD_CHANGES):
            end = start + session.HELD_CHANGES
            self._put_some(keys[start:end], values[start:end])

    def _put_some(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        sessions = self._sessions
        if sessions.owner == get_ident() and _are_small(keys, values):
            sessions.held_results.update(zip(keys, values, strict=True))
            if len(sessions.held_results) >= session.HELD_CHANGES:
                sessions.spill()
            return
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key with the session's commit. Fine if it is not there."""
        self._sessions.add("results", check_key(key), None)

    def get(self, key: bytes) -> bytes | None:
        """The committed value; None if there is none."""
        key = check_key(key)
        self._sessions.check_usable()
        return self._store.get("results", key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Committed keys that begin with these bytes, in order, with their values. Only a few are in memory at a time.

        Commits made during the scan may or may not show.
        """
        prefix = check_prefix(prefix)
        self._sessions.check_usable()
        return self._store.scan("results", prefix, end_of(prefix))

    def stage_columns(self, columns: str) -> None:
        """Set the columns of the results, a schema in Spark's JSON, with the session's commit."""
        self._sessions.add("meta", records.COLUMNS_KEY, records.encode_columns(columns))

    def read_columns(self) -> str | None:
        """The committed columns; None for results that are not rows, or were committed by an earlier release."""
        self._sessions.check_usable()
        value = self._store.get("meta", records.COLUMNS_KEY)
        return None if value is None else records.decode_columns(value, self._store.address)


def _are_small(keys: Sequence[bytes], values: Sequence[bytes | None]) -> bool:
    """Whether all are bytes within the limits of `ResultIndex.put`'s fast path; each value may be None instead."""
    if {*map(type, keys)} != {bytes} or not {*map(type, values)} <= {bytes, NoneType}:
        return False
    lengths = [*map(len, keys)]
    if min(lengths) < 1 or max(lengths) > MAX_KEY_BYTES:
        return False
    return max(map(len, filter(None, values)), default=0) <= SMALL
