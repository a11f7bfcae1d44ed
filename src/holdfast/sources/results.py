"""What a query has computed, by key, in the same session as the checkpoints of the sources it came from."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.sources.arguments import MAX_KEY_BYTES, MAX_VALUE_BYTES, check_key, check_prefix, check_value
from holdfast.sources.backend import Backend
from holdfast.sources.sessions import Sessions


class ResultIndex:
    """An ordered map of bytes. Writes belong to the session; reads return what is committed, also inside one."""

    def __init__(self, backend: Backend, sessions: Sessions) -> None:
        self._backend = backend
        self._sessions = sessions

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the session's commit. A key has 1 to 2,048 bytes, a value up to 64 MiB."""
        # Most calls, at once; what is not plain bytes of a usual size takes the long way.
        if type(key) is not bytes or type(value) is not bytes or not 0 < len(key) <= MAX_KEY_BYTES:
            key, value = check_key(key), check_value(value)
        elif len(value) > MAX_VALUE_BYTES:
            check_value(value)
        self._sessions.add("results", key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key with the session's commit. Fine if it is not there."""
        self._sessions.add("results", check_key(key), None)

    def get(self, key: bytes) -> bytes | None:
        """The committed value; None if there is none."""
        key = check_key(key)
        self._sessions.check_usable()
        return self._backend.read("results", key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Committed keys that begin with these bytes, in order, with their values. Never more than a few in memory.

        Commits made meanwhile may or may not show.
        """
        prefix = check_prefix(prefix)
        self._sessions.check_usable()
        return self._backend.scan("results", prefix)
