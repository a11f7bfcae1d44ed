"""Who works on a projection: a lease that runs out by itself when its holder is gone.

Leases decide who works, so that others need not try. That nothing is applied twice does not depend on them, nor on
clocks: each commit checks where the projection stands.
"""

from __future__ import annotations

import msgspec

from holdfast.base.steps import step
from holdfast.projections import keys, records, state
from holdfast.projections.backend import Transaction
from holdfast.projections.state import Lease, Track
from holdfast.projections.store import ProjectionStore


class Hold:
    """A lease that this process has taken. Every commit under it checks that it still has it, and prolongs it."""

    def __init__(self, store: ProjectionStore, track: Track, lease: Lease, seconds: float) -> None:
        self._store = store
        self._track = track
        self._key = keys.LEASES + track.escaped
        self._seconds = seconds
        self._lease = lease

    @property
    def token(self) -> int:
        return self._lease.token

    @property
    def is_due(self) -> bool:
        """Whether half of it is over, so that it should be prolonged."""
        return self._lease.until_ms - self._store.now_ms() < self._seconds * 500

    def check(self, transaction: Transaction) -> None:
        """`Fenced` if somebody else has taken it; prolongs it with the transaction's commit if that is due."""
        state.check_lease(transaction, self._track, self._lease, self._store.address)
        if self.is_due:
            until = self._store.now_ms() + int(self._seconds * 1000)
            # Also right if the commit fails: what is stored then runs out earlier, and its token is checked.
            self._lease = msgspec.structs.replace(self._lease, until_ms=until)
            transaction.write([("meta", self._key, records.seal(self._key, self._lease))])

    def renew(self) -> None:
        """Prolong it if that is due, with nothing else. `Fenced` if somebody else has taken it."""
        if self.is_due:
            with step("lease.renew"), self._store.backend.begin() as transaction:
                self.check(transaction)

    def release(self) -> None:
        """Let others have it at once. Fine if somebody has it already."""
        with step("lease.release"), self._store.backend.begin() as transaction:
            value = transaction.read("meta", [self._key])[0]
            if value is not None and _decoded(self._store, self._key, value).token == self.token:
                over = msgspec.structs.replace(self._lease, until_ms=0)
                transaction.write([("meta", self._key, records.seal(self._key, over))])


def take(store: ProjectionStore, name: str, holder: str, seconds: float) -> Hold | None:
    """Take a projection's lease if it is free, has run out, or is this holder's; None if somebody else has it."""
    track = state.live(name)
    key = keys.LEASES + track.escaped
    if _is_taken(store, store.backend.read("meta", [key])[0], key, holder):
        return None  # seen without waiting for anybody's transaction
    with step("lease.take"), store.backend.begin() as transaction:
        value = transaction.read("meta", [key])[0]
        if _is_taken(store, value, key, holder):
            return None
        token = 1 if value is None else _decoded(store, key, value).token + 1
        lease = Lease(token, holder, store.now_ms() + int(seconds * 1000))
        transaction.write([("meta", key, records.seal(key, lease))])
    return Hold(store, track, lease, seconds)


def _is_taken(store: ProjectionStore, value: bytes | None, key: bytes, holder: str) -> bool:
    if value is None:
        return False
    found = _decoded(store, key, value)
    return found.holder != holder and found.until_ms > store.now_ms()


def _decoded(store: ProjectionStore, key: bytes, value: bytes) -> Lease:
    return state.decode_lease(key, value, store.address)
