"""A connection to a Redis server that never resends commands by itself, and the client that reconnects.

redis-py's client and pipelines reconnect by themselves, and may send a transaction twice. Its connections do not, as
long as nothing is sent on a closed one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import redis
from redis.exceptions import AskError, AuthenticationError, ClusterDownError, NoPermissionError

from holdfast.base import forks
from holdfast.errors import HoldfastError, Invalid, Unavailable, one_line
from holdfast.storage.kv import errors
from holdfast.storage.kv.redis_layout import Command, RedisLayout
from holdfast.storage.kv.redis_server import SYNC_TIMEOUT_MS, Keeping, RedisAddress, find_out, not_kept
from holdfast.storage.kv.store import Schema
from holdfast.storage.kv.token import unknown

log = logging.getLogger("holdfast.sources")
_REDIRECTIONS = 5


class Broken(Exception):
    """The connection failed, or its server does not serve the store at the moment."""


class RedisConnection:
    """A connection. After `Broken` it cannot be used any more."""

    def __init__(self, address: RedisAddress) -> None:
        """Connect; in a cluster, to the node that has the store."""
        settings = address.settings
        for _ in range(_REDIRECTIONS):
            self._connection = address.connection(**settings)
            self._unread = 0
            try:
                self._connection.connect()  # type: ignore[no-untyped-call]
                self._send([["TYPE", address.key("token")]])
                self._connection.read_response()
            except AskError as moved:  # also MOVED, whose error is a subclass
                self.close()
                settings = settings | {"host": moved.host or settings.get("host"), "port": moved.port}
            except redis.ConnectionError as error:
                self.close()
                if isinstance(error, AuthenticationError):
                    raise
                raise Broken(text_of(error)) from None
            except (redis.TimeoutError, OSError) as error:
                self.close()
                raise Broken(text_of(error)) from None
            except redis.ResponseError:
                self.close()
                raise
            else:
                self._unread = 0
                return
        raise Broken("The nodes of the cluster keep redirecting to each other for this store.")

    def ask(self, *commands: Command) -> list[Any]:
        """Send commands, and return their replies, in one round trip. Errors of single commands are among them."""
        self.send(commands)
        return self.receive()

    def send(self, commands: Iterable[Command]) -> None:
        """Send commands one at a time, and leave the replies to `receive`."""
        try:
            self._send(commands)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self.close()
            raise Broken(text_of(error)) from None

    def receive(self) -> list[Any]:
        """The replies to all commands sent so far."""
        replies: list[Any] = []
        try:
            while self._unread:
                self._unread -= 1
                try:
                    replies.append(self._connection.read_response())
                except (AskError, ClusterDownError) as error:
                    raise redis.ConnectionError(text_of(error)) from None
                except redis.ResponseError as error:
                    replies.append(error)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self.close()
            raise Broken(text_of(error)) from None
        return replies

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.disconnect()  # type: ignore[no-untyped-call]

    def _send(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if not self._connection.is_connected:
                raise redis.ConnectionError("The connection is closed.")
            packed = self._connection.pack_command(*command)  # type: ignore[no-untyped-call]
            self._connection.send_packed_command(packed, check_health=False)  # type: ignore[no-untyped-call]
            self._unread += 1


class RedisClient:
    """The client of one store: one connection, used by one thread at a time, within `translated`."""

    def __init__(self, address: RedisAddress, schema: Schema) -> None:
        self.address = address.shown
        self.kind = schema.kind
        self.layout = RedisLayout(address, schema)
        self.keeping: Keeping | None = None
        self._at = address
        self._connection: RedisConnection | None = None
        self._verified: RedisConnection | None = None
        self._closed = False
        self._lock = threading.RLock()
        forks.opened(self)

    def connection(self) -> RedisConnection:
        """The connection; connects if there is none."""
        self.check_open()
        if self._connection is None:
            self._connection = RedisConnection(self._at)
        return self._connection

    def verified_connection(self) -> RedisConnection:
        """A connection whose server passed the durability check.

        Checked again after a reconnect, since settings may have changed.
        """
        connection = self.connection()
        if connection is not self._verified:
            found = find_out(connection, self._at.durability)
            if not found.kept and self._at.durability != "none":
                raise not_kept(found.words, self.kind, self.address)
            if not found.kept and self.keeping != found:
                log.warning("%s: the server may lose commits that it has acknowledged: %s.", self.address, found.words)
            self._verified, self.keeping = connection, found
        return connection

    def drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check_open(self) -> None:
        if self._closed:
            raise errors.closed(self.kind, self.address)

    def close(self) -> None:
        forks.closed(self)
        with self._lock:
            self._closed = True
            self.drop_connection()

    def forget_in_child(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent may hold it, and does not exist in this process
        self.close()  # closes only our copy of the socket: redis-py sends nothing to the server

    def ask(self, *commands: Command) -> list[Any]:
        """Replies to read-only commands; sent once more if the connection is broken."""
        with self.translated("reading"):
            try:
                return checked(self.connection().ask(*commands))
            except Broken:
                self.drop_connection()
            return checked(self.connection().ask(*commands))

    def sync(self) -> list[Command]:
        """The commands to send after EXEC, whose reply comes when the commit is on disk."""
        is_asked = self.keeping is not None and self.keeping.kept and self.keeping.has_waitaof
        return [["WAITAOF", 1, 0, SYNC_TIMEOUT_MS]] if is_asked else []

    def check_synced(self, replies: list[Any]) -> None:
        """Check the replies to the commands of `sync`. `OutcomeUnknown` if the commit may not be on disk."""
        for reply in replies:
            if isinstance(reply, redis.ResponseError) or not reply[0]:
                why = text_of(reply) if isinstance(reply, redis.ResponseError) else "its disk is too slow."
                raise unknown(
                    self.kind, self.address, f"it is in force, but the server does not say that it is on disk: {why}"
                )

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise our own errors instead of redis-py's. Only for actions that have applied nothing if they fail.

        Any other exception, such as ^C, also closes the connection: it may be within a transaction, or have unread
        replies that the next command would take for its own.
        """
        with self._lock:
            try:
                yield
            except HoldfastError:
                raise
            except BaseException as error:
                self.drop_connection()
                if isinstance(error, Broken | redis.RedisError):
                    raise self._explained(error, doing) from None
                raise

    def _explained(self, error: Broken | redis.RedisError, doing: str) -> HoldfastError:
        text = text_of(error)
        if isinstance(error, AuthenticationError | NoPermissionError) or "NOAUTH" in text:
            return Invalid(
                f"The server denies {doing}: {text}",
                code=f"{self.kind}.denied",
                about=self.address,
                unchanged=errors.nothing_applied(self.kind),
                next_step=f"check user and password, and that the user may read and write {self.layout.pattern}",
            )
        if "WRONGTYPE" in text:
            return self.layout.wrong_type(self.address)
        return Unavailable(
            f"The server failed while {doing}: {text}",
            code=f"{self.kind}.unavailable",
            about=self.address,
            unchanged=errors.nothing_applied(self.kind),
            next_step="check that the server runs, has memory left and takes writes; then try again",
        )


def checked(replies: list[Any]) -> list[Any]:
    """The replies. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, redis.ResponseError):
            raise reply
    return replies


def text_of(error: BaseException) -> str:
    """The message of an error, as a sentence."""
    line = one_line(error, 200)
    return line if line.endswith(".") else line + "."
