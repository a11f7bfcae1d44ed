"""An index: results, the checkpoints of the sources they came from, and sessions that commit both in one step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from threading import get_ident
from types import TracebackType

from holdfast.base.arguments import MAX_KEY_BYTES, check_key, check_number, check_prefix, check_value
from holdfast.errors import Corrupt, Invalid
from holdfast.index import configuration, records, session
from holdfast.index.configuration import OnChange, Start, decide_start
from holdfast.index.records import Gap
from holdfast.index.session import SMALL, SessionManager
from holdfast.index.source_checkpoints import SourceCheckpoints
from holdfast.storage.kv import errors
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.store import KeyValueStore, Reader, end_of


def open_index(url: str, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> Index:
    """Open the index at an address; it is made if it is not there.

    `sqlite:///path` and `rocksdb:///path` are on this machine; `redis://` (Redis, Valkey, Garnet) and `postgresql://`
    on a server; `s3://bucket/path`, `gs://` and `az://` are SlateDB on object storage, with settings from the
    environment, and `file:///path` is SlateDB on local files, for development: it does not sync. `memory://` is new
    each time and gone at the end, `memory://name` as well, and cannot be opened twice.
    An index that another process has open is refused with `Conflict`, or taken over so that the other's next commit is
    `Fenced`, never shared. With `read_only` no writer is fenced or delayed, nothing can be written, and an index
    that is not there is `NotFound`. `clock` gives the time of day, for tests.
    """
    return Index(open_kv(url, records.SCHEMA, "read" if read_only else "exclusive"), clock=clock)


class Index:
    """One index in one store; `holdfast.open_index` makes it from an address.

        with open_index("sqlite:///data/orders.db") as index:
            with index.session():
                index.results.put(b"order-17", b"...")
                index.checkpoints.stage_checkpoint("orders", 42, position)

    Guarantees: what a session wrote is there as a whole or not at all, whatever ends the process; on a persistent
    store it is durable when the session's commit returns. Reads see what is committed and nothing else.
    Opening finishes a reset that was cut short, before anything can be read.
    """

    checkpoints: SourceCheckpoints
    results: ResultIndex

    def __init__(self, store: Reader, *, clock: Callable[[], float] = time.time) -> None:
        """A store that is open for writing, or a `Reader`: then nothing can be written to the index."""
        is_writable = isinstance(store, KeyValueStore)
        self._store = store if is_writable else configuration.ResetGuard(store)
        self._sessions = SessionManager(self._store)
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

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        return self._store.address

    @property
    def has_session(self) -> bool:
        """Whether a session is open, this thread's or another's."""
        return self._sessions.is_open

    def begin(self) -> None:
        """Begin a session, or go one deeper into this thread's. Other threads' are refused."""
        self._sessions.begin()

    def commit(self) -> None:
        """End what the last `begin` began; the outermost makes everything visible and durable in one step.

        `Invalid` without a session. If it raises, nothing was applied and no session is open: do the change again.
        Only after `OutcomeUnknown` read back first.
        """
        self._sessions.commit()

    def rollback(self) -> None:
        """Undo the whole session, at any depth. Does nothing without a session."""
        self._sessions.rollback()

    def session(self) -> contextlib.AbstractContextManager[Index]:
        """Begin; commit at the end of the block, roll everything back if it raises."""
        return self._sessions.session(self)

    def configure(self, config_hash: int, on_change: OnChange = "fail") -> Start:
        """Say at start which configuration the results are for, and learn how to begin.

        If it is another one than the results were made with, or that is not known: `fail` refuses and changes nothing,
        `reset` empties the index, `accept` keeps everything and notes the new hash. A hash that cannot be read is
        `Corrupt`, and nothing is emptied. Not inside a session.
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
        """Empty the index: results, checkpoints and gaps. Then it has this configuration hash, or the one it had.

        A process that dies in the middle leaves a marker, and the next opening finishes the work. After a failure here,
        too, nothing can be read or written until the index is opened again. Not inside a session.
        """
        self._sessions.check_usable()
        self._check_no_session("reset")
        if config_hash is not None:
            check_number("config_hash", config_hash)
        else:
            with contextlib.suppress(Corrupt):  # emptying is the way out of that
                config_hash = self.checkpoints.read_config_hash()
        configuration.reset_index(self._store, self._sessions, config_hash)

    def gaps(self) -> list[Gap]:
        """Everything that was passed over since the index was empty, oldest first."""
        return self.checkpoints.gaps()

    def close(self) -> None:
        """Roll back an open session and close the store. Fine to call twice."""
        self._sessions.close()
        self._store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_no_session(self, what: str) -> None:
        if self._sessions.is_open:
            raise Invalid(
                f"{self.address}: {what} is not part of a session, and one is open.",
                code="session.open",
                about=self.address,
                unchanged="the index and the session",
                next_step="commit or roll back first",
            )

    def _check_format(self, *, makes_it: bool) -> None:
        value = self._store.get("meta", records.FORMAT_KEY)
        if value is None:
            if any(next(self._store.scan(space, b"", None, 1), None) for space in records.SCHEMA.names):
                raise Corrupt(
                    f"{self.address}: the record of its format is missing, and there are others.",
                    code="index.record",
                    about=self.address,
                    unchanged="the index",
                    next_step="restore the index from a copy, or begin with a new one at another place",
                )
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
    """An ordered map of bytes. Writes belong to the session; reads return what is committed, also inside one."""

    def __init__(self, store: Reader, sessions: SessionManager) -> None:
        self._store = store
        self._sessions = sessions

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the session's commit. A key has 1 to 2,048 bytes, a value up to 64 MiB."""
        # Nearly every call ends here: one function deep, and no sums, since small values are bounded by their number.
        if type(key) is bytes is type(value) and 0 < len(key) <= MAX_KEY_BYTES and len(value) <= SMALL:
            sessions = self._sessions
            if sessions.owner == get_ident():
                held = sessions.held_results
                held[key] = value
                if len(held) >= session.HELD_CHANGES:
                    sessions.spill()
                return
        self._sessions.add("results", check_key(key), check_value(value))

    def delete(self, key: bytes) -> None:
        """Remove a key with the session's commit. Fine if it is not there."""
        self._sessions.add("results", check_key(key), None)

    def get(self, key: bytes) -> bytes | None:
        """The committed value; None if there is none."""
        key = check_key(key)
        self._sessions.check_usable()
        return self._store.get("results", key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Committed keys that begin with these bytes, in order, with their values. Never more than a few in memory.

        Commits made meanwhile may or may not show.
        """
        prefix = check_prefix(prefix)
        self._sessions.check_usable()
        return self._store.scan("results", prefix, end_of(prefix))
