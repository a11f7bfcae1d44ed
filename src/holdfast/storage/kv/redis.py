"""A store on Redis, Valkey or Garnet: a commit is one MULTI/EXEC, which WATCH refuses if the store is no longer ours.

Not a Lua script: Garnet runs scripts only if configured to, and a script that fails half-way is not rolled back.
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
    """Sends only commands that read. It does not replace the token, so that no writer is fenced."""

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
    """One store under one name. Opening it fences the process that had it open before.

    A transaction is held in memory, up to `limit` bytes, and sent when it is committed, so that a rollback sends
    nothing. The server also holds the whole transaction in memory until EXEC. A scan reads pages, each page as of its
    own moment.

    Durable when `commit` returns. A server that would lose commits is refused; with `durability=none` in the address, a
    warning is logged instead. `durability` describes what the server does. If a reply is lost, `commit` reconnects,
    trying for `settle_seconds`, and finds out whether the commit took effect.
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
        """Whether acknowledged commits survive a crash of the server: a sentence without the full stop."""
        return self._client.keeping.words if self._client.keeping else ""

    def begin(self) -> BufferedTransaction:
        self.check_open()
        return BufferedTransaction(self)

    def apply(self, batch: WriteBatch) -> None:
        with self._client.translated("committing"):
            self._committer.commit(batch)


class _Committer:
    """Takes the store over in its constructor, and commits until another process takes it over."""

    def __init__(self, client: RedisClient, settle_seconds: float) -> None:
        self._client = client
        self._layout = client.layout
        self._settle_seconds = settle_seconds
        self._token = self._take()
        self._in_doubt: dict[bytes, bool] = {}
        """All tokens that the store may have because a commit, or settling it, was interrupted, for example by ^C, each
        with whether that commit has taken effect if it is found. Empty: the store has `_token`, unless it was taken."""

    def commit(self, batch: WriteBatch) -> None:
        connection = self._ready()
        before, after = self._token, new_token()
        queued = [["MULTI"], *self._layout.commands(batch), ["SET", self._layout.token, after]]
        with step("redis.queue"):
            connection.send(queued)
        # Up to here a broken connection means that nothing was applied: the server discards queued commands.
        self._in_doubt = {before: False, after: True}
        try:
            with step("redis.commit"):
                replies = connection.ask(["EXEC"], *self._client.sync())
        except Broken as error:
            self._client.drop_connection()
            self._settle(str(error))
            return
        self._in_doubt = {}
        if not self._executed(replies[: len(queued) + 1]):
            raise self._refused(connection)
        self._token = after
        self._client.check_synced(replies[len(queued) + 1 :])

    def _take(self) -> bytes:
        """Replace the stored token by ours, and keep the old one in the list of earlier tokens."""
        connection = self._client.verified_connection()
        for _ in range(_OPENING_TRIES):
            found, *types = self._watch(connection)
            self._layout.check(types, self._client.address)
            token = new_token()
            queued: list[Command] = [["MULTI"], ["SET", self._layout.token, token]]
            if found is not None:
                queued.append(["LPUSH", self._layout.earlier, found])
                queued.append(["LTRIM", self._layout.earlier, 0, KEPT - 1])
            # A lost reply does no harm here: the next opening replaces the token.
            with step("redis.open"):
                replies = connection.ask(*queued, ["EXEC"], *self._client.sync())
            if self._executed(replies[: len(queued) + 1]):
                self._client.check_synced(replies[len(queued) + 1 :])
                return token
        raise Conflict(
            f"Other processes keep taking the {self._client.kind} over.",
            code=f"{self._client.kind}.in-use",
            about=self._client.address,
            unchanged=f"the {self._client.kind}",
            next_step="stop them, then open it again",
        )

    def _ready(self) -> RedisConnection:
        """A connection that watches the store's keys and has found our token; a new one if the old one is broken."""
        try:
            connection, (found, *types) = self._watched()
        except Broken:
            self._client.drop_connection()
            connection, (found, *types) = self._watched()
        if found != self._token:
            raise self._refused(connection)
        self._layout.check(types, self._client.address)
        return connection

    def _watched(self) -> tuple[RedisConnection, list[Any]]:
        connection = self._client.verified_connection()
        if self._in_doubt:
            check = self._settled()
            if check.owner != "ours":
                raise refusal(check, self._client.kind, self._client.address)
        return connection, self._watch(connection)

    def _watch(self, connection: RedisConnection) -> list[Any]:
        """The token and the type of every key; EXEC is refused if any of them changes from here on."""
        watch = ["WATCH", *self._layout.all]
        return checked(connection.ask(watch, ["GET", self._layout.token], *self._layout.types()))[1:]

    def _executed(self, replies: list[Any]) -> bool:
        """Whether EXEC, the last of these replies, took effect; False if a watched key had changed."""
        results = replies[-1]
        if isinstance(results, redis.ResponseError):
            checked(replies)  # raises the first error, which is the cause
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
        check = check_token(found, earlier, self._in_doubt or {self._token: False})
        if check.owner != "ours":
            return refusal(check, self._client.kind, self._client.address)
        return Conflict(
            f"Another client, not Holdfast, wrote to the keys of the {self._client.kind} during the commit.",
            code=f"{self._client.kind}.touched",
            about=self._client.address,
            unchanged=errors.nothing_applied(self._client.kind),
            next_step=f"find out what writes to {self._layout.pattern}; then do it again",
        )

    def _settle(self, why: str) -> None:
        """Find out whether a commit whose reply was lost took effect. Returns if it did and is durable, else raises."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            try:
                check = self._settled()
                break
            except Broken as error:
                self._client.drop_connection()
                if time.monotonic() > deadline:
                    raise unknown(self._client.kind, self._client.address, str(error)) from None
                time.sleep(_PAUSE)
            except redis.RedisError as error:
                raise unknown(self._client.kind, self._client.address, text_of(error)) from None
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

    def _settled(self) -> TokenCheck:
        while (check := self._settle_once()) is None:
            pass
        return check

    def _settle_once(self) -> TokenCheck | None:
        """Check the token, and replace it if it is ours, so that an EXEC still on its way is refused when it arrives.

        None if a watched key changed meanwhile.
        """
        connection = self._client.connection()
        found = self._watch(connection)[0]
        (earlier,) = checked(connection.ask(["LRANGE", self._layout.earlier, 0, -1]))
        check = check_token(found, earlier, self._in_doubt)
        if check.owner != "ours":
            return check
        fresh = new_token()
        self._in_doubt[fresh] = bool(check.applied)  # the reply to this EXEC may be lost as well
        with step("redis.settle"):
            replies = connection.ask(["MULTI"], ["SET", self._layout.token, fresh], ["EXEC"], *self._client.sync())
        if not self._executed(replies[:3]):
            return None
        self._token, self._in_doubt = fresh, {}
        self._client.check_synced(replies[3:])
        return check
