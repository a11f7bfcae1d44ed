"""A store in a PostgreSQL database, in tables that all stores of its kind share.

A transaction begins by replacing the store's token, on the condition that it is still ours. That locks the store's row
until the transaction ends: a process that opens the store meanwhile waits for it, and so does a process that reconnects
to settle a commit whose reply was lost.
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
from holdfast.base.postgres import IDLE_TIMEOUT, is_lost, message_of, trouble_of
from holdfast.base.steps import step
from holdfast.errors import Conflict, HoldfastError
from holdfast.storage.kv import postgres_tables
from holdfast.storage.kv.postgres_reader import MAX_TABLE_NAME, PostgresReads, cut_off
from holdfast.storage.kv.postgres_server import PostgresAddress, connect, explained, parse, translated
from holdfast.storage.kv.postgres_tables import END_TRANSACTION, ByteaArray, PostgresTables
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
    """One store under one name. Opening it waits for an open transaction and fences the previous process.

    Writes beyond a few megabytes are sent to the server before the commit, so that a transaction may be larger than
    memory. Reads and scans use connections of their own and see committed data; a scan sees one snapshot.

    A process that is frozen in the middle of a transaction loses it after `idle_timeout`, so that the next one gets in.

    Durable when `commit` returns, whatever the server's `synchronous_commit` is. If the reply to COMMIT is lost,
    `commit` reconnects, trying for `settle_seconds`, and finds out whether the transaction was committed.
    """

    is_persistent = True
    writers: Writers = "fencing"
    max_transaction = None
    max_table_name = MAX_TABLE_NAME

    def __init__(
        self,
        url: str,
        schema: Schema,
        mode: Mode = "exclusive",
        *,
        settle_seconds: float = SETTLE_SECONDS,
        idle_timeout: str = IDLE_TIMEOUT,
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
        self.views = self._reads.views
        self.check_open = self._reads.check_open
        self._is_closed = False
        self.durability = ""
        """Whether acknowledged commits survive a crash of the server: a sentence without the full stop."""
        with translated(f"opening the {self.kind}", self.at):
            self.writer = _Writer(self.at, tables, settle_seconds, idle_timeout)
        self._reads.store_id = self.writer.store_id
        self.table_prefix = self._reads.table_prefix
        forks.opened(self)
        try:
            self._check_durability()
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
        # Before `close`, which closes the reads as well: they may not have heard of the fork yet.
        self._reads.forget_in_child()
        self.close()

    def apply(self, batch: WriteBatch) -> None:
        with translated("writing", self.at):
            self.writer.write(batch)
        with translated("committing", self.at):
            self.writer.commit()

    def _check_durability(self) -> None:
        row = self._reads.fetched("SELECT current_setting('fsync'), current_setting('full_page_writes')", [])[0]
        if row == ("on", "on"):
            self.durability = "each commit waits for the server's disk; a standby that takes over may lack the newest"
        else:
            self.durability = "the server does not sync (fsync or full_page_writes is off): a power loss may ruin it"
            log.warning("%s: %s.", self.address, self.durability)


class PostgresTransaction(BufferedTransaction):
    """Begins on the server with the first writes: BEGIN, the token and the writes take one round trip."""

    _store: PostgresStore

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._has_sent = False

    def execute(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Run within a savepoint: a statement that fails leaves the transaction as it was, as on SQLite."""
        store = self._store
        check_statement(sql, store.address)
        self._take_turn()
        if not self._has_sent:
            self._send()
        try:
            return store.writer.run(sql, parameters)
        except psycopg.Error as error:
            if trouble_of(error) in ("unavailable", "damaged", "denied"):  # not the statement's fault
                raise explained(error, "writing", store.at) from None
            raise

    def _add(self, batch: WriteBatch) -> None:
        self._pending.add(batch)
        if self._pending.size > SPILL_BYTES:
            self._send()
            with translated("writing", self._store.at):
                self._store.writer.stay_open()

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
    """Takes the store over in its constructor, and writes until another process takes it over."""

    def __init__(
        self, address: PostgresAddress, tables: PostgresTables, settle_seconds: float, idle_timeout: str
    ) -> None:
        self._address = address
        self._tables = tables
        self._settle_seconds = settle_seconds
        self._idle_timeout = idle_timeout
        self._connection: Connection | None = None
        self._after = b""
        """The token that the open transaction, or the last one, sets."""
        self._in_doubt: dict[bytes, bool] = {}
        """All tokens that the store may have because a COMMIT, or settling it, was interrupted, for example by ^C, each
        with whether that COMMIT has taken effect if it is found. Empty: the store has `_token`, unless it was taken."""
        self._transaction_id: tuple[Any, ...] = ()
        """The transaction's backend process on the server, and its transaction id."""
        try:
            self.store_id, self._token = self._take()
        except BaseException:
            self.drop()
            raise

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open and has not failed."""
        return self._connection is not None and self._connection.info.transaction_status == TransactionStatus.INTRANS

    def write(self, batch: WriteBatch) -> None:
        """Send changes to the open transaction; begin one with them if none is open."""
        if not self.is_open:
            self._begin_with(batch)
            return
        assert self._connection is not None
        with step("postgres.write"), self._connection.pipeline():
            self._change(self._connection, batch)

    def stay_open(self) -> None:
        """Leave the transaction open until more is written: the server ends it if this process freezes meanwhile."""
        assert self._connection is not None
        self._connection.execute(postgres_tables.REARM)

    def commit(self) -> None:
        """Commit the open transaction; there must be one."""
        assert self._connection is not None
        self._in_doubt = {self._token: False, self._after: True}
        try:
            with step("postgres.commit"):
                self._connection.execute("COMMIT")
        except psycopg.Error as error:
            self.drop()
            if not is_lost(error):
                self._in_doubt = {}
                raise
            self._settle(message_of(error))
        else:
            self._token, self._in_doubt = self._after, {}

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
        """Run one SQL statement of the user in the open transaction."""
        assert self._connection is not None
        with self._connection.transaction():
            with self._connection.pipeline():  # a pipeline allows one statement per message: "…; COMMIT" is refused
                found = self._connection.execute(sql.encode(), parameters or None)
            return found.fetchall() if found.description else []

    def cut_off(self) -> None:
        if self._connection is not None:
            cut_off(self._connection)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address)
        return self._connection

    def _take(self) -> tuple[int, bytes]:
        connection = self._connected()
        self._tables.make(connection)
        try:
            return self._open(connection)
        except LockNotAvailable:
            ended = connection.execute(self._tables.end_silent, [self._idle_timeout]).fetchall()
        if ended:
            with contextlib.suppress(LockNotAvailable):
                return self._open(connection)
        raise self._busy()

    def _open(self, connection: Connection) -> tuple[int, bytes]:
        token = new_token()
        with step("postgres.open"), self._transaction(connection):
            given = {"name": self._address.name, "token": token, "kept": KEPT}
            found = connection.execute(self._tables.open.encode(), given).fetchone()
            assert found is not None
            self._tables.check_layout(found[1], self._address.shown)
        return found[0], token

    def _begin_with(self, batch: WriteBatch) -> None:
        """Begin, replace the token and send changes, in one round trip; roll back if the token is not ours.

        Tried once more on a new connection if the old one is broken.
        """
        for is_last in (False, True):
            try:
                if self._in_doubt:
                    self._end_doubt()
                self._after = new_token()
                connection = self._connected()
                with step("postgres.write"), connection.pipeline():
                    connection.execute("BEGIN")
                    prelude = connection.execute(postgres_tables.PRELUDE, [self._idle_timeout])
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
        """Raise if the store is no longer ours."""
        check = self._look(self._connected(), self._tables.look)
        if check.owner != "ours":
            raise refusal(check, self._address.kind, self._address.shown)

    def _look(self, connection: Connection, query: str) -> TokenCheck:
        row = connection.execute(query, [self.store_id]).fetchone()
        found, earlier = (None, []) if row is None else row
        return check_token(found, earlier, self._in_doubt or {self._token: False})

    def _end_doubt(self) -> None:
        """Find out which of our tokens the store has, after an interruption. Raise if it is no longer ours."""
        check = self._settle_once()
        if check.owner != "ours":
            raise refusal(check, self._address.kind, self._address.shown)

    def _settle(self, why: str) -> None:
        """Find out whether a commit whose reply was lost took effect. Returns if it did, raises otherwise."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            try:
                check = self._settle_once()
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

    def _settle_once(self) -> TokenCheck:
        """Check the token after the lost transaction has ended, committed or not. If the store is ours, replace it."""
        connection = self._connected()
        # Otherwise the lost transaction would hold its lock until the server notices that the client is gone.
        connection.execute(END_TRANSACTION, self._transaction_id)
        fresh = new_token()
        with step("postgres.settle"), self._transaction(connection):
            check = self._look(connection, self._tables.locked)
            if check.owner == "ours":
                self._in_doubt[fresh] = bool(check.applied)  # this COMMIT's reply may be lost as well
                connection.execute(self._tables.replace, [fresh, self.store_id])
        if check.owner == "ours":
            self._token, self._in_doubt = fresh, {}
        return check

    @contextlib.contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        with connection.transaction():
            connection.execute(postgres_tables.PRELUDE, [self._idle_timeout])
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
