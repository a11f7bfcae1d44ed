"""An index: results, the checkpoints of the sources they came from, and sessions that commit both in one step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType

from holdfast.errors import Corrupt, Invalid
from holdfast.index import records, resetting
from holdfast.index.arguments import check_u64
from holdfast.index.gap import Gap
from holdfast.index.looking import not_there
from holdfast.index.results import ResultIndex
from holdfast.index.session import Sessions
from holdfast.index.source_checkpoints import SourceCheckpoints
from holdfast.index.starting import OnChange, Start, decide_start, refuse
from holdfast.storage.kv.backend import Backend


class Index:
    """One index on one backend; `holdfast.open_index` makes it from an address.

        with open_index("sqlite:///data/orders.db") as index:
            with index.session():
                index.results.put(b"order-17", b"...")
                index.checkpoints.stage_checkpoint("orders", 42, position)

    Guarantees: what a session wrote is there as a whole or not at all, whatever ends the process; on a persistent
    backend it is durable when the session's commit returns. Reads see what is committed and nothing else.
    Opening finishes a reset that was cut short, before anything can be read.
    """

    checkpoints: SourceCheckpoints
    results: ResultIndex

    def __init__(self, backend: Backend, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._backend = backend
        self._sessions = Sessions(backend)
        self.checkpoints = SourceCheckpoints(backend, self._sessions, clock)
        self.results = ResultIndex(backend, self._sessions)
        try:
            self._check_format(makes_it=not read_only)
            if read_only:
                resetting.refuse_unfinished(backend)
            else:
                resetting.finish(backend, self._sessions)
        except BaseException:
            backend.close()
            raise

    @property
    def address(self) -> str:
        """Where it is, without secrets."""
        return self._backend.address

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
        """Undo the whole session, at whatever depth. Nothing happens if there is none."""
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
            has_anything=resetting.has_anything(self._backend),
            policy=on_change,
            is_persistent=self.checkpoints.is_persistent,
        )
        if start.action == "refuse":
            raise refuse(start, self.address)
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
            check_u64("config_hash", config_hash)
        else:
            with contextlib.suppress(Corrupt):  # emptying is the way out of that
                config_hash = self.checkpoints.read_config_hash()
        resetting.reset(self._backend, self._sessions, config_hash)

    def gaps(self) -> list[Gap]:
        """Everything that was passed over since the index was empty, oldest first."""
        return self.checkpoints.gaps()

    def close(self) -> None:
        """Roll back what is open and let go of the backend. Fine to call twice."""
        self._sessions.close()
        self._backend.close()

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
        value = self._backend.read("meta", records.FORMAT_KEY)
        if value is None:
            if next(self._backend.scan("meta", b""), None) or next(self._backend.scan("results", b""), None):
                raise Corrupt(
                    f"{self.address}: the record of its format is missing, and there are others.",
                    code="index.record",
                    about=self.address,
                    unchanged="the index",
                    next_step="restore the index from a copy, or begin with a new one at another place",
                )
            if not makes_it:
                raise not_there(self.address)
            self._sessions.commit_alone("index.create", "meta", [(records.FORMAT_KEY, records.encode_format())])
            return
        found = records.decode_format(value, self.address)
        if found > records.FORMAT:
            raise records.newer(self.address, f"it has format {found}, this release reads up to {records.FORMAT}")
