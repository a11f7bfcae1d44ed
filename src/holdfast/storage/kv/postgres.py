"""A store in a PostgreSQL database, in tables that all stores of its kind share.

A transaction begins by replacing the store's token, on the condition that it is still ours. That locks the store's row
until the end: a process that opens the store meanwhile waits, and so does one that comes back to settle a commit whose
reply was lost, until the server itself has settled it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus

from holdfast.base import forks
from holdfast.base.postgres import is_lost, message_of, trouble_of
from holdfast.base.steps import step
from holdfast.errors import Conflict, HoldfastError
from holdfast.storage.kv import postgres_tables
from holdfast.storage.kv.postgres_reader import MAX_TABLE_NAME, PostgresReads, cut_off
from holdfast.storage.kv.postgres_server import PostgresAddress, connect, explained, parse, translated
from holdfast.storage.kv.postgres_tables import END_TRANSACTION, NOTICE, ByteaArray, PostgresTables
from holdfast.storage.kv.sql import check_statement, ended_transaction
from holdfast.storage.kv.store import Mode, Schema, WriteBatch, Writers
from holdfast.storage.kv.token import KEPT, TokenCheck, check_token, new_token, not_applied, refusal, unknown
from holdfast.storage.kv.transaction import SPILL_BYTES, BufferedTransaction, PendingWrites, Turn

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

SETTLE_SECONDS = 30.0
_PAUSE = 0.05

log = logging.getLogger("holdfast.sources")


class PostgresStore:
    """One store under one name; opening it fences the process that had it open before, after its transaction under way.

    A transaction of more than a few megabytes goes to the server while it is written, so that it may be larger than
    memory. Reads and scans use connections of their own and see what is committed; a scan is of one moment.

    Durable when `commit` returns, whatever the server's `synchronous_commit` is. If the reply to COMMIT is lost,
    `commit` connects again, trying for `settle_seconds`, and finds out what became of it.
    """

    is_persistent = True
    writers: Writers = "fencing"
    max_transaction = None
    max_table_name = MAX_TABLE_NAME

    def __init__(
        self, url: str, schema: Schema, mode: Mode = "exclusive", *, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self.at = parse(url, schema.kind)
        self.address = self.at.shown
        self.kind = schema.kind
        self.turn = Turn()
        tables = PostgresTables(schema)
        self._reads = PostgresReads(self.at, tables)
        self.get = self._reads.get
        self.get_many = self._reads.get_many
        self.scan = self._reads.scan
        self.query = self._reads.query
        self.tables = self._reads.tables
        self.check_open = self._reads.check_open
        self._is_closed = False
        self.durability = ""
        """What the server keeps of what it acknowledges: a sentence about it, without the full stop."""
        with translated(f"opening the {self.kind}", self.at):
            self.writer = _Writer(self.at, tables, settle_seconds)
        self._reads.store_id = self.writer.store_id
        self.table_prefix = self._reads.table_prefix
        forks.opened(self)
        try:
            self._look_at_durability()
        except BaseException:
            self.close()
            raise

    def begin(self) -> PostgresTransaction:
        self.check_open()
        return PostgresTransaction(self)

    def close(self) -> None:
        if self._is_closed:
            return
        forks.closed(self)
        self._is_closed = True
        self.writer.drop()  # the server rolls back
        self._reads.close()

    def forget_in_child(self) -> None:
        self.writer.cut_off()
        self._reads.forget_in_child()  # before it is closed below, whichever of us is told first
        self.close()

    def apply(self, batch: WriteBatch) -> None:
        with translated("writing", self.at):
            self.writer.write(batch)
        with translated("committing", self.at):
            self.writer.commit()

    def _look_at_durability(self) -> None:
        row = self._reads.fetched("SELECT current_setting('fsync'), current_setting('full_page_writes')", [])[0]
        if row == ("on", "on"):
            self.durability = "each commit waits for the server's disk; a standby that takes over may lack the newest"
        else:
            self.durability = "the server does not sync (fsync or full_page_writes is off): a power loss may ruin it"
            log.warning("%s: %s.", self.address, self.durability)


class PostgresTransaction(BufferedTransaction):
    """Begins at the server with its first writes: BEGIN, the token and the writes are one round trip."""

    _store: PostgresStore

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._has_sent = False

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Within a savepoint: a statement that fails leaves the transaction as it was, as SQLite does."""
        store = self._store
        check_statement(sql, store.address)
        self._take_turn()
        if not self._has_sent:
            self._send()
        try:
            return store.writer.run(sql, parameters)
        except psycopg.Error as error:
            if trouble_of(error) in ("unavailable", "damaged"):  # not the handler's fault
                raise explained(error, "writing", store.at) from None
            raise

    def _add(self, batch: WriteBatch) -> None:
        self._pending.add(batch)
        if self._pending.size > SPILL_BYTES:
            self._send()

    def _apply(self) -> None:
        store = self._store
        if self._pending:
            self._send()
        if not self._has_sent:
            return
        if not store.writer.is_open:
            raise ended_transaction("a statement has ended it", store.address)
        with translated("committing", store.at):
            store.writer.commit()

    def _send(self) -> None:
        if self._has_sent and not self._store.writer.is_open:
            raise ended_transaction("a statement has ended it", self._store.address)
        pending, self._pending = self._pending, PendingWrites()
        self._has_sent = True
        with translated("writing", self._store.at):
            self._store.writer.write(pending.batch)

    def _undo(self) -> None:
        super()._undo()
        if self._has_sent:
            self._store.writer.rollback()


class _Writer:
    """Takes the store over when it is made, and from then on writes, until another process takes it over."""

    def __init__(self, address: PostgresAddress, tables: PostgresTables, settle_seconds: float) -> None:
        self._address = address
        self._tables = tables
        self._settle_seconds = settle_seconds
        self._connection: Connection | None = None
        self._after = b""
        """The token of the transaction that is open, or was open last."""
        self._doubted: bytes | None = None
        """The token of a COMMIT that was interrupted, as by ^C, before its reply was read."""
        self._transaction_id: tuple[Any, ...] = ()
        """Its process at the server, and its number there."""
        try:
            self.store_id, self._token = self._take()
        except BaseException:
            self.drop()
            raise

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, and sound."""
        return self._connection is not None and self._connection.info.transaction_status == TransactionStatus.INTRANS

    def write(self, batch: WriteBatch) -> None:
        """Send changes to the transaction, which begins with them if none is open."""
        if not self.is_open:
            self._begin_with(batch)
            return
        assert self._connection is not None
        with step("postgres.write"), self._connection.pipeline():
            self._change(self._connection, batch)

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
            if not is_lost(error):
                raise
            self._settle({self._token: False, self._after: True}, message_of(error))
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

    def run(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        """One statement of the user's, in the open transaction."""
        assert self._connection is not None
        with self._connection.transaction():
            with self._connection.pipeline():  # where one statement is one message: "…; COMMIT" is refused
                found = self._connection.execute(sql.encode(), parameters or None)
            return found.fetchall() if found.description else []

    def cut_off(self) -> None:
        if self._connection is not None:
            cut_off(self._connection)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address)
            self._connection.execute(NOTICE)
        return self._connection

    def _take(self) -> tuple[int, bytes]:
        connection = self._connected()
        self._tables.make(connection)
        token = new_token()
        try:
            with step("postgres.open"), self._transaction(connection):
                given = {"name": self._address.name, "token": token, "kept": KEPT}
                found = connection.execute(self._tables.open.encode(), given).fetchone()
                assert found is not None
                self._tables.check_layout(found[1], self._address.shown)
        except LockNotAvailable:
            raise self._busy() from None
        return found[0], token

    def _begin_with(self, batch: WriteBatch) -> None:
        """Begin, take the row and send changes, in one round trip; for nothing if the row turns out not to be ours.

        Once more on a new connection if the old one is broken.
        """
        for is_last in (False, True):
            self._after = new_token()
            try:
                connection = self._connected()
                with step("postgres.write"), connection.pipeline():
                    connection.execute("BEGIN")
                    prelude = connection.execute(postgres_tables.PRELUDE)
                    taken = connection.execute(self._tables.take, [self._after, self.store_id, self._token])
                    self._change(connection, batch)
                self._transaction_id = (prelude.fetchone() or ())[-2:]
            except LockNotAvailable:
                self.drop()
                self._check_ours()
                raise self._busy() from None
            except psycopg.Error as error:
                self.drop()
                if is_last or not is_lost(error):
                    raise
                continue
            if taken.rowcount == 1:
                self._doubted = None
                return
            self.rollback()
            self._check_ours()
        raise self._busy()

    def _change(self, connection: Connection, batch: WriteBatch) -> None:
        for space, changes in batch.items():
            statements = self._tables.spaces[space]
            gone = [key for key, value in changes.items() if value is None]
            puts = {key: value for key, value in changes.items() if value is not None}
            if gone:
                connection.execute(statements.delete, [self.store_id, ByteaArray(gone)])
            if puts:
                arguments = [self.store_id, ByteaArray(puts), ByteaArray(puts.values())]
                connection.execute(statements.put, arguments)

    def _check_ours(self) -> None:
        """Refuse if the store is not ours any more; take note if a commit that was interrupted is in force."""
        ours = {self._token: False} | ({} if self._doubted is None else {self._doubted: True})
        check, found = self._look(self._connected(), self._tables.look, ours)
        if check.owner != "ours":
            raise refusal(check, self._address.kind, self._address.shown)
        self._token = found

    def _look(self, connection: Connection, query: str, ours: dict[bytes, bool]) -> tuple[TokenCheck, bytes]:
        row = connection.execute(query, [self.store_id]).fetchone()
        found, earlier = (None, []) if row is None else row
        return check_token(found, earlier, ours), found or b""

    def _settle(self, ours: dict[bytes, bool], why: str) -> None:
        """Find out what became of a commit whose reply was lost. Returns if it is in force."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            try:
                check = self._settle_once(ours)
                break
            except psycopg.Error as error:
                self.drop()
                if time.monotonic() > deadline:
                    raise unknown(self._address.kind, self._address.shown, message_of(error)) from None
                time.sleep(_PAUSE)
        if check.owner == "set-back":
            raise unknown(
                self._address.kind,
                self._address.shown,
                f"the {self._address.kind} was restored from a backup, or opened often.",
            )
        if check.owner == "gone" or (check.owner == "fenced" and not check.applied):
            raise refusal(check, self._address.kind, self._address.shown)
        if not check.applied:
            raise not_applied(self._address.kind, self._address.shown, why)

    def _settle_once(self, ours: dict[bytes, bool]) -> TokenCheck:
        """What the token says once the lost transaction has ended, one way or the other."""
        connection = self._connected()
        # Else it would hold its lock until the server notices that the client is gone.
        connection.execute(END_TRANSACTION, self._transaction_id)
        fresh = new_token()
        with step("postgres.settle"), self._transaction(connection):
            check, _ = self._look(connection, self._tables.locked, ours)
            if check.owner == "ours":
                ours[fresh] = bool(check.applied)  # this COMMIT's reply may be lost as well
                connection.execute(self._tables.replace, [fresh, self.store_id])
        if check.owner == "ours":
            self._token = fresh
        return check

    @contextlib.contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        with connection.transaction():
            connection.execute(postgres_tables.PRELUDE)
            yield

    def _busy(self) -> HoldfastError:
        return Conflict(
            f"Another process is in the middle of a transaction on the {self._address.kind}.",
            code=f"{self._address.kind}.in-use",
            about=self._address.shown,
            unchanged=f"the {self._address.kind}",
            next_step="wait for it, or end it: SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = "
            f"'{self._tables.registry}'::regclass AND pid <> pg_backend_pid()",
        )
