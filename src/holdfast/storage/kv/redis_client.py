"""The server behind an index: a connection that is made again when it breaks, and what its errors mean."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from holdfast.base import forks
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.storage.kv.redis_connection import Broken, Command, Line, text_of
from holdfast.storage.kv.redis_durability import SYNC_TIMEOUT_MS, Keeping, find_out, not_kept
from holdfast.storage.kv.redis_layout import Layout
from holdfast.storage.kv.redis_server import RedisAddress
from holdfast.storage.kv.token import NOTHING_APPLIED, unknown

log = logging.getLogger("holdfast.sources")


class Server:
    """One server, for one index: one connection, for one thread at a time, within `translated`."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address.shown
        self.layout = Layout(address)
        self.keeping: Keeping | None = None
        self._at = address
        self._line: Line | None = None
        self._verified: Line | None = None
        self._closed = False
        self._lock = threading.RLock()
        forks.opened(self)

    def line(self) -> Line:
        """The connection, made if there is none."""
        if self._closed:
            raise forks.closed_or_forked(self.address)
        if self._line is None:
            self._line = Line(self._at)
        return self._line

    def verified_line(self) -> Line:
        """A connection to a server that keeps what it acknowledges: one that was started anew may have changed."""
        line = self.line()
        if line is not self._verified:
            found = find_out(line, self._at.durability)
            if not found.kept and self._at.durability != "none":
                raise not_kept(found.words, self.address)
            if not found.kept and self.keeping != found:
                log.warning("%s: the server may lose commits that it has acknowledged: %s.", self.address, found.words)
            self._verified, self.keeping = line, found
        return line

    def drop_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def close(self) -> None:
        forks.closed(self)
        with self._lock:
            self._closed = True
            self.drop_line()

    def forget_in_child(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent's may hold it, and will never let go of it here
        self.close()  # of our copy of the socket: redis-py takes care that the server hears nothing

    def ask(self, *commands: Command) -> list[Any]:
        """Replies to commands that read; sent once more if the connection is broken."""
        with self.translated("reading"):
            try:
                return checked(self.line().ask(*commands))
            except Broken:
                self.drop_line()
            return checked(self.line().ask(*commands))

    def sync(self) -> list[Command]:
        """What is sent after EXEC, so that the reply comes when it is on disk."""
        is_asked = self.keeping is not None and self.keeping.kept and self.keeping.has_waitaof
        return [["WAITAOF", 1, 0, SYNC_TIMEOUT_MS]] if is_asked else []

    def check_synced(self, replies: list[Any]) -> None:
        """Of what `sync` sent."""
        for reply in replies:
            if isinstance(reply, redis.ResponseError) or not reply[0]:
                why = text_of(reply) if isinstance(reply, redis.ResponseError) else "its disk is too slow."
                raise unknown(self.address, f"it is in force, but the server does not say that it is on disk: {why}")

    @contextlib.contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise our own errors instead of redis-py's, for what has applied nothing.

        Whatever else ends it early, as ^C does, ends the connection: it may be within a transaction, or have replies
        under way that the next command would take for its own.
        """
        with self._lock:
            try:
                yield
            except HoldfastError:
                raise
            except BaseException as error:
                self.drop_line()
                if isinstance(error, Broken | redis.RedisError):
                    raise self._explained(error, doing) from None
                raise

    def _explained(self, error: Broken | redis.RedisError, doing: str) -> HoldfastError:
        text = text_of(error)
        if isinstance(error, AuthenticationError | NoPermissionError) or "NOAUTH" in text:
            return Invalid(
                f"The server denies {doing}: {text}",
                code="index.denied",
                about=self.address,
                unchanged=NOTHING_APPLIED,
                next_step=f"check user and password, and that the user may read and write {self.layout.pattern}",
            )
        if "WRONGTYPE" in text:
            return self.layout.wrong_type(self.address)
        return Unavailable(
            f"The server failed while {doing}: {text}",
            code="index.unavailable",
            about=self.address,
            unchanged=NOTHING_APPLIED,
            next_step="check that the server runs, has memory left and takes writes; then try again",
        )


def checked(replies: list[Any]) -> list[Any]:
    """The replies, if none of them is an error."""
    for reply in replies:
        if isinstance(reply, redis.ResponseError):
            raise reply
    return replies
