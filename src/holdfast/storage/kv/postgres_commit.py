"""Transactions on PostgreSQL that begin by replacing the index's token, on the condition that it is still ours.

That locks the index's row until the end: whoever opens the index meanwhile waits, and so does whoever comes back to
settle a commit whose reply was lost, until the server itself has settled it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus

from holdfast.base.steps import step
from holdfast.errors import Conflict, HoldfastError
from holdfast.storage.kv import postgres_tables as tables
from holdfast.storage.kv.pending import Pending
from holdfast.storage.kv.postgres_arrays import ByteaArray
from holdfast.storage.kv.postgres_reader import cut_off
from holdfast.storage.kv.postgres_server import Connection, PostgresAddress, connect, lost, said
from holdfast.storage.kv.token import KEPT, Finding, judge, new_token, not_applied, refusal, unknown

_PAUSE = 0.05
_OPEN = """
INSERT INTO holdfast.indexes AS old (name, token) VALUES (%(name)s, %(token)s)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, earlier = (array_prepend(old.token, old.earlier))[:%(kept)s]
RETURNING id, layout"""


class Writer:
    """Takes the index over when it is made, and from then on writes, as long as nobody else takes it."""

    def __init__(self, address: PostgresAddress, settle_seconds: float) -> None:
        self._address = address
        self._settle_seconds = settle_seconds
        self._connection: Connection | None = None
        self._after = b""
        """The token of the transaction that is open, or was open last."""
        self._doubted: bytes | None = None
        """The token of a COMMIT that was interrupted, as by ^C, before its reply was read."""
        self._transaction_id: tuple[Any, ...] = ()
        """Its process at the server, and its number there."""
        try:
            self.index_id, self._token = self._take()
        except BaseException:
            self.drop()
            raise

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, and sound."""
        return self._connection is not None and self._connection.info.transaction_status == TransactionStatus.INTRANS

    def write(self, pending: Pending) -> None:
        """Send changes to the transaction, which begins with them if none is open."""
        if not self.is_open:
            self._begin_with(pending)
            return
        assert self._connection is not None
        with step("postgres.write"), self._connection.pipeline():
            self._change(self._connection, pending)

    def commit(self) -> None:
        """Commit the open transaction; there must be one."""
        assert self._connection is not None
        self._doubted = self._after
        try:
            with step("postgres.commit"):
                self._connection.execute("COMMIT")
        except psycopg.Error as error:
            self.drop()
            self._doubted = None
            if not lost(error):
                raise
            self._settle({self._token: False, self._after: True}, said(error))
        else:
            self._token, self._doubted = self._after, None

    def rollback(self) -> None:
        if self._connection is not None and self._connection.info.transaction_status != TransactionStatus.IDLE:
            try:
                self._connection.execute("ROLLBACK")
            except psycopg.Error:
                self.drop()  # the server rolls back by itself

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def cut_off(self) -> None:
        if self._connection is not None:
            cut_off(self._connection)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address)
            self._connection.execute(tables.NOTICE)
        return self._connection

    def _take(self) -> tuple[int, bytes]:
        connection = self._connected()
        tables.make(connection)
        token = new_token()
        try:
            with step("postgres.open"), self._transaction(connection):
                given = {"name": self._address.index, "token": token, "kept": KEPT}
                found = connection.execute(_OPEN, given).fetchone()
                assert found is not None
                tables.check_layout(found[1], self._address.shown)
        except LockNotAvailable:
            raise self._busy() from None
        return found[0], token

    def _begin_with(self, pending: Pending) -> None:
        """Begin, take the row and send changes, in one round trip; for nothing if the row turns out not to be ours.

        Once more on a new connection if the old one is broken.
        """
        for is_last in (False, True):
            self._after = new_token()
            try:
                connection = self._connected()
                with step("postgres.write"), connection.pipeline():
                    connection.execute("BEGIN")
                    prelude = connection.execute(tables.PRELUDE)
                    taken = connection.execute(tables.TAKE, [self._after, self.index_id, self._token])
                    self._change(connection, pending)
                self._transaction_id = (prelude.fetchone() or ())[-2:]
            except LockNotAvailable:
                self.drop()
                self._check_ours()
                raise self._busy() from None
            except psycopg.Error as error:
                self.drop()
                if is_last or not lost(error):
                    raise
                continue
            if taken.rowcount == 1:
                self._doubted = None
                return
            self.rollback()
            self._check_ours()
        raise self._busy()

    def _change(self, connection: Connection, pending: Pending) -> None:
        for space, changes in pending.changes.items():
            statements = tables.SPACES[space]
            gone = [key for key, value in changes.items() if value is None]
            puts = {key: value for key, value in changes.items() if value is not None}
            if gone:
                connection.execute(statements.delete, [self.index_id, ByteaArray(gone)])
            if puts:
                arguments = [self.index_id, ByteaArray(puts), ByteaArray(puts.values())]
                connection.execute(statements.put, arguments)

    def _check_ours(self) -> None:
        """Refuse if the index is not ours any more; take note if a commit that was interrupted is in force."""
        ours = {self._token: False} | ({} if self._doubted is None else {self._doubted: True})
        finding, found = self._look(self._connected(), tables.LOOK, ours)
        if finding.standing != "ours":
            raise refusal(finding, self._address.shown)
        self._token = found

    def _look(self, connection: Connection, query: str, ours: dict[bytes, bool]) -> tuple[Finding, bytes]:
        row = connection.execute(query, [self.index_id]).fetchone()
        found, earlier = (None, []) if row is None else row
        return judge(found, earlier, ours), found or b""

    def _settle(self, ours: dict[bytes, bool], why: str) -> None:
        """Find out what became of a commit whose reply was lost. Returns if it is in force."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            try:
                finding = self._settle_once(ours)
                break
            except psycopg.Error as error:
                self.drop()
                if time.monotonic() > deadline:
                    raise unknown(self._address.shown, said(error)) from None
                time.sleep(_PAUSE)
        if finding.standing == "set-back":
            raise unknown(self._address.shown, "the index was restored from a backup, or opened often.")
        if finding.standing == "gone" or (finding.standing == "fenced" and not finding.applied):
            raise refusal(finding, self._address.shown)
        if not finding.applied:
            raise not_applied(self._address.shown, why)

    def _settle_once(self, ours: dict[bytes, bool]) -> Finding:
        """What the token says once the lost transaction has ended, one way or the other."""
        connection = self._connected()
        # Else it would hold its lock until the server notices that nobody is there.
        connection.execute(tables.END_TRANSACTION, self._transaction_id)
        fresh = new_token()
        with step("postgres.settle"), self._transaction(connection):
            finding, _ = self._look(connection, tables.LOCKED, ours)
            if finding.standing == "ours":
                ours[fresh] = bool(finding.applied)  # this COMMIT's reply may be lost as well
                connection.execute(tables.REPLACE, [fresh, self.index_id])
        if finding.standing == "ours":
            self._token = fresh
        return finding

    @contextlib.contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        with connection.transaction():
            connection.execute(tables.PRELUDE)
            yield

    def _busy(self) -> HoldfastError:
        return Conflict(
            "Another process is in the middle of a transaction on the index.",
            code="index.in-use",
            about=self._address.shown,
            unchanged="the index",
            next_step="wait for it, or end it: SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = "
            "'holdfast.indexes'::regclass AND pid <> pg_backend_pid()",
        )
