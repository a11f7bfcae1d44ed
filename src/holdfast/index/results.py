"""What a query has computed, by key, in the same session as the checkpoints of the sources it came from."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident

from holdfast.index import session as sessions
from holdfast.index.arguments import MAX_KEY_BYTES, check_key, check_prefix, check_value
from holdfast.index.session import SMALL, SessionManager
from holdfast.storage.kv.store import Reader, end_of


class ResultIndex:
    """An ordered map of bytes. Writes belong to the session; reads return what is committed, also inside one."""

    def __init__(self, store: Reader, session: SessionManager) -> None:
        self._store = store
        self._sessions = session

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the session's commit. A key has 1 to 2,048 bytes, a value up to 64 MiB."""
        # Nearly every call ends here: one function deep, and no sums, since small values are bounded by their number.
        if type(key) is bytes is type(value) and 0 < len(key) <= MAX_KEY_BYTES and len(value) <= SMALL:
            session = self._sessions
            if session.owner == get_ident():
                held = session.held_results
                held[key] = value
                if len(held) >= sessions.HELD_CHANGES:
                    session.spill()
                return
        self._sessions.add("results", check_key(key), check_value(value))

    def delete(self, key: bytes) -> None:
        """Remove a key with the session's commit. Fine if it is not there."""
        self._sessions.add("results", check_key(key), None)

    def get(self, key: bytes) -> bytes | None:
        """The committed value; None if there is none."""
        key = check_key(key)
        self._sessions.check_usable()
        return self._store.get("results", key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Committed keys that begin with these bytes, in order, with their values. Never more than a few in memory.

        Commits made meanwhile may or may not show.
        """
        prefix = check_prefix(prefix)
        self._sessions.check_usable()
        return self._store.scan("results", prefix, end_of(prefix))
