"""Which worker runs a projection: a lease that expires when its holder dies.

A lease only saves other workers useless attempts. Exactly-once does not depend on leases or clocks: each commit checks
the projection's state.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Fenced
from holdfast.projections import keys, state
from holdfast.projections.state import BuildRef, Reading
from holdfast.storage.kv.store import Reader, Transaction


class WorkerLeaseRecord(msgspec.Struct, frozen=True):
    """The lease of one projection, as stored."""

    token: int
    """Rises each time the lease is taken."""
    holder: str
    until_ms: int


class WorkerLease:
    """A lease that this process has taken. Every commit under it checks that it is still held, and renews it if due."""

    def __init__(
        self, kv: Reader, ref: BuildRef, lease: WorkerLeaseRecord, seconds: float, now_ms: Callable[[], int]
    ) -> None:
        self._kv = kv
        self._now_ms = now_ms
        self._ref = ref
        self._key = keys.LEASES + ref.escaped
        self._seconds = seconds
        self._lease = lease

    @property
    def token(self) -> int:
        return self._lease.token

    @property
    def is_due(self) -> bool:
        """Whether less than half of its time is left, so that it should be renewed."""
        return self._lease.until_ms - self._now_ms() < self._seconds * 500

    def check(self, transaction: Transaction) -> None:
        """`Fenced` if another holder has taken it. Renews it with the transaction's commit if that is due."""
        _check(transaction, self._ref, self._lease, self._kv.address)
        if self.is_due:
            until = self._now_ms() + int(self._seconds * 1000)
            # Safe if the commit fails: the stored lease then expires earlier, and every commit checks its token.
            self._lease = msgspec.structs.replace(self._lease, until_ms=until)
            transaction.write({"meta": {self._key: keys.seal(self._key, self._lease)}})

    def renew(self) -> None:
        """Renew it if that is due, in a commit of its own. `Fenced` if another holder has taken it."""
        if self.is_due:
            with step("lease.renew"), state.begin(self._kv) as transaction:
                self.check(transaction)

    def release(self) -> None:
        """Release the lease. No error if another holder has taken it."""
        with step("lease.release"), state.begin(self._kv) as transaction:
            value = transaction.get("meta", self._key)
            if value is not None and decode(self._key, value, self._kv.address).token == self.token:
                over = msgspec.structs.replace(self._lease, until_ms=0)
                transaction.write({"meta": {self._key: keys.seal(self._key, over)}})


def acquire(kv: Reader, name: str, holder: str, seconds: float, now_ms: Callable[[], int]) -> WorkerLease | None:
    """Take a projection's lease if it is free, has expired, or is this holder's; None if another holder has it."""
    ref = state.live_build(name)
    key = keys.LEASES + ref.escaped
    if _is_taken(kv.get("meta", key), key, holder, kv.address, now_ms()):
        return None  # without a transaction, which would wait for other writers
    with step("lease.take"), state.begin(kv) as transaction:
        value = transaction.get("meta", key)
        if _is_taken(value, key, holder, kv.address, now_ms()):
            return None
        token = 1 if value is None else decode(key, value, kv.address).token + 1
        lease = WorkerLeaseRecord(token, holder, now_ms() + int(seconds * 1000))
        transaction.write({"meta": {key: keys.seal(key, lease)}})
    return WorkerLease(kv, ref, lease, seconds, now_ms)


def _is_taken(value: bytes | None, key: bytes, holder: str, address: str, now_ms: int) -> bool:
    if value is None:
        return False
    found = decode(key, value, address)
    return found.holder != holder and found.until_ms > now_ms


def _check(reading: Reading, ref: BuildRef, lease: WorkerLeaseRecord, address: str) -> None:
    """`Fenced` if another holder has taken the lease."""
    key = keys.LEASES + ref.escaped
    value = reading.get("meta", key)
    found = None if value is None else decode(key, value, address)
    if found is None or found.token != lease.token:
        raise Fenced(
            f"Projection {ref.name[:200]!r} was taken over by {found.holder if found else 'another worker'}.",
            code="projection.fenced",
            about=f"projection {ref.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="stop here, or wait until the lease is free",
        )


def decode(key: bytes, value: bytes, address: str) -> WorkerLeaseRecord:
    name = key[2:].decode(errors="backslashreplace")
    return keys.unseal(key, value, WorkerLeaseRecord, f"the lease of projection {name[:200]!r}", address)
