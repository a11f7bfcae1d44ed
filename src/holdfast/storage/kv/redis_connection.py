"""One connection to a Redis server, on which it is known what was sent.

redis-py's client and its pipelines connect again by themselves, and may send a transaction twice. Its connections do
not, as long as nothing is sent on one that is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import redis
from redis.exceptions import AskError, AuthenticationError, ClusterDownError

from holdfast.storage.kv.redis_server import RedisAddress

Command = list[Any]
_REDIRECTIONS = 5


class Broken(Exception):
    """There is no connection, or not to a server that serves the index at the moment."""


class Line:
    """A connection. After any `Broken` it is of no more use."""

    def __init__(self, address: RedisAddress) -> None:
        """Connect; in a cluster, to the node that has the index."""
        settings = address.settings
        for _ in range(_REDIRECTIONS):
            self._connection = address.connection(**settings)
            self._unread = 0
            try:
                self._connection.connect()  # type: ignore[no-untyped-call]
                self._send([["TYPE", address.key("token")]])
                self._connection.read_response()
            except AskError as moved:  # MOVED, too: its own error is a kind of this one
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
        raise Broken("The nodes of the cluster refer to each other for this index.")

    def ask(self, *commands: Command) -> list[Any]:
        """The reply to each command, in one round trip; errors of single commands are among the replies."""
        self.send(commands)
        return self.receive()

    def send(self, commands: Iterable[Command]) -> None:
        """Send, a command at a time, and leave the replies for later."""
        try:
            self._send(commands)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self.close()
            raise Broken(text_of(error)) from None

    def receive(self) -> list[Any]:
        """The replies to all that was sent."""
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


def text_of(error: BaseException) -> str:
    """What an error says, in one line that is not too long."""
    line = " ".join(str(error).split()) or type(error).__name__
    line = line if len(line) <= 200 else line[:200] + "…"
    return line if line.endswith(".") else line + "."
