"""A store on Redis, Valkey or Garnet: a commit is one MULTI/EXEC, refused by WATCH if the store is not ours any more.

Not a script: Garnet runs none unless configured to, and a script that fails half-way leaves its first half in force.
"""

from __future__ import annotations

import time
from typing import Any

import redis

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, HoldfastError
from holdfast.storage.kv import errors
from holdfast.storage.kv.redis_connection import Broken, RedisClient, RedisConnection, checked, text_of
from holdfast.storage.kv.redis_layout import Command, RedisReads
from holdfast.storage.kv.redis_server import parse
from holdfast.storage.kv.store import Mode, Schema, WriteBatch, Writers
from holdfast.storage.kv.token import KEPT, TokenCheck, check_token, new_token, not_applied, refusal, unknown
from holdfast.storage.kv.transaction import MAX_TRANSACTION, BufferedTransaction, Turn

SETTLE_SECONDS = 30.0
_PAUSE = 0.05
_OPENING_TRIES = 100


class RedisReader:
    """Sends only commands that read. The token is left alone, so that no writer is fenced."""

    is_persistent = True

    def __init__(self, url: str, schema: Schema) -> None:
        client = RedisClient(parse(url, schema.kind), schema)
        reads = RedisReads(client)
        self.address = client.address
        self.get = reads.get
        self.get_many = reads.get_many
        self.scan = reads.scan
        self.close = client.close
        try:
            if not client.ask(["EXISTS", client.layout.token])[0]:
                raise errors.not_there(schema.kind, self.address)
        except BaseException:
            self.close()
            raise


class RedisStore:
    """One store under one name; opening it fences the process that had it open before.

    A transaction is kept in memory, up to `limit` bytes, and sent when it is committed: before that the server knows
    nothing of it, and one that is rolled back costs nothing. The server then holds it once more until EXEC. A scan
    reads pages, each as of its own moment.

    Durable when `commit` returns. A server that would lose commits is refused, or, with `durability=none` in the
    address, warned of; `durability` tells. If a reply is lost, `commit` connects again, trying for `settle_seconds`,
    and finds out what became of the commit.
    """

    is_persistent = True
    writers: Writers = "fencing"

    def __init__(
        self,
        url: str,
        schema: Schema,
        mode: Mode = "exclusive",
        *,
        limit: int = MAX_TRANSACTION,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._client = RedisClient(parse(url, schema.kind), schema)
        self.address = self._client.address
        self.kind = schema.kind
        self.max_transaction = limit
        self.turn = Turn()
        reads = RedisReads(self._client)
        self.get = reads.get
        self.get_many = reads.get_many
        self.scan = reads.scan
        self.check_open = self._client.check_open
        self.close = self._client.close
        try:
            with self._client.translated(f"opening the {self.kind}"):
                self._committer = _Committer(self._client, settle_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def durability(self) -> str:
        """What the server keeps of what it acknowledges: a sentence about it, without the full stop."""
        return self._client.keeping.words if self._client.keeping else ""

    def begin(self) -> BufferedTransaction:
        self.check_open()
        return BufferedTransaction(self)

    def apply(self, batch: WriteBatch) -> None:
        with self._client.translated("committing"):
            self._committer.commit(batch)


class _Committer:
    """Takes the store over when it is made, and from then on commits, until another process takes it over."""

    def __init__(self, client: RedisClient, settle_seconds: float) -> None:
        self._client = client
        self._layout = client.layout
        self._settle_seconds = settle_seconds
        self._token = self._take()
        self._doubted: bytes | None = None
        """The token of a commit that was interrupted, as by ^C, before its reply was read."""

    def commit(self, batch: WriteBatch) -> None:
        connection = self._ready()
        before, after = self._token, new_token()
        queued = [["MULTI"], *self._layout.commands(batch), ["SET", self._layout.token, after]]
        with step("redis.queue"):
            connection.send(queued)
        # Until here a broken connection means that nothing was applied: the server forgets what it has queued.
        self._doubted = after
        try:
            with step("redis.commit"):
                replies = connection.ask(["EXEC"], *self._client.sync())
        except Broken as error:
            self._client.drop_connection()
            self._settle({before: False, after: True}, str(error))
            return
        self._doubted = None
        if not self._executed(replies[: len(queued) + 1]):
            raise self._refused(connection)
        self._token = after
        self._client.check_synced(replies[len(queued) + 1 :])

    def _take(self) -> bytes:
        """Put our token in the place of the one that is there, which is kept in a list."""
        connection = self._client.verified_connection()
        for _ in range(_OPENING_TRIES):
            found, *types = self._watch(connection)
            self._layout.check(types, self._client.address)
            token = new_token()
            queued: list[Command] = [["MULTI"], ["SET", self._layout.token, token]]
            if found is not None:
                queued.append(["LPUSH", self._layout.earlier, found])
                queued.append(["LTRIM", self._layout.earlier, 0, KEPT - 1])
            # If this reply is lost, nothing of value is: the next opening replaces the token.
            with step("redis.open"):
                replies = connection.ask(*queued, ["EXEC"], *self._client.sync())
            if self._executed(replies[: len(queued) + 1]):
                self._client.check_synced(replies[len(queued) + 1 :])
                return token
        raise Conflict(
            f"Other processes take the {self._client.kind} over again and again.",
            code=f"{self._client.kind}.in-use",
            about=self._client.address,
            unchanged=f"the {self._client.kind}",
            next_step="stop them, then open it again",
        )

    def _ready(self) -> RedisConnection:
        """A connection on which the store is watched and known to be ours; a new one if the old one is broken."""
        try:
            connection = self._client.verified_connection()
            found, *types = self._watch(connection)
        except Broken:
            self._client.drop_connection()
            connection = self._client.verified_connection()
            found, *types = self._watch(connection)
        if found is not None and found == self._doubted:
            self._token = found
        if found != self._token:
            raise self._refused(connection)
        self._doubted = None
        self._layout.check(types, self._client.address)
        return connection

    def _watch(self, connection: RedisConnection) -> list[Any]:
        """The token and the type of every key; EXEC is refused if any of them changes from here on."""
        watch = ["WATCH", *self._layout.all]
        return checked(connection.ask(watch, ["GET", self._layout.token], *self._layout.types()))[1:]

    def _executed(self, replies: list[Any]) -> bool:
        """Whether EXEC, the last of these replies, took effect; False if what it watched had changed."""
        results = replies[-1]
        if isinstance(results, redis.ResponseError):
            checked(replies)  # raises the first, which is the cause
        if results is None:
            return False
        failed = [str(result) for result in results if isinstance(result, redis.ResponseError)]
        if failed:
            raise Corrupt(
                f"The server applied part of a transaction and refused the rest: {failed[0]}",
                code=f"{self._client.kind}.half-applied",
                about=self._client.address,
                next_step=f"reset the {self._client.kind}: what it holds belongs to no checkpoint",
            )
        return True

    def _refused(self, connection: RedisConnection) -> HoldfastError:
        found, earlier = checked(
            connection.ask(["UNWATCH"], ["GET", self._layout.token], ["LRANGE", self._layout.earlier, 0, -1])
        )[1:]
        check = check_token(found, earlier, {self._token: False})
        if check.owner != "ours":
            return refusal(check, self._client.kind, self._client.address)
        return Conflict(
            f"Something else than Holdfast wrote to the keys of the {self._client.kind} during the commit.",
            code=f"{self._client.kind}.touched",
            about=self._client.address,
            unchanged=errors.nothing_applied(self._client.kind),
            next_step=f"find out what writes to {self._layout.pattern}; then do it again",
        )

    def _settle(self, ours: dict[bytes, bool], why: str) -> None:
        """Find out what became of a commit whose reply was lost. Returns if it is in force, and durable."""
        self._doubted = None
        deadline = time.monotonic() + self._settle_seconds
        while True:
            try:
                check = self._settle_once(ours)
            except Broken as error:
                self._client.drop_connection()
                if time.monotonic() > deadline:
                    raise unknown(self._client.kind, self._client.address, str(error)) from None
                time.sleep(_PAUSE)
            except redis.RedisError as error:
                raise unknown(self._client.kind, self._client.address, text_of(error)) from None
            else:
                if check is not None:
                    break
        if check.owner == "set-back":
            raise unknown(
                self._client.kind,
                self._client.address,
                f"the server's {self._client.kind} is an older one, another one, or was opened often.",
            )
        if check.owner == "gone" or (check.owner == "fenced" and not check.applied):
            raise refusal(check, self._client.kind, self._client.address)
        if not check.applied:
            raise not_applied(self._client.kind, self._client.address, why)

    def _settle_once(self, ours: dict[bytes, bool]) -> TokenCheck | None:
        """What the token says, after it was replaced: an EXEC still on its way is then refused, whenever it arrives.

        None if something changed meanwhile. `ours` gains the new token, whose reply may be lost as well.
        """
        connection = self._client.connection()
        found = self._watch(connection)[0]
        (earlier,) = checked(connection.ask(["LRANGE", self._layout.earlier, 0, -1]))
        check = check_token(found, earlier, ours)
        if check.owner != "ours":
            return check
        fresh = new_token()
        ours[fresh] = bool(check.applied)
        with step("redis.settle"):
            replies = connection.ask(["MULTI"], ["SET", self._layout.token, fresh], ["EXEC"], *self._client.sync())
        if not self._executed(replies[:3]):
            return None
        self._token = fresh
        self._client.check_synced(replies[3:])
        return check
