"""The check that a store's service enforces conditional writes, made once before the first claim.

Every fence rests on two conditions: create if absent, replace if unchanged. A service that ignores them reports
success, so two drivers would both win. A check that passed is noted as an object beside the lease, where the listing of
the next claim shows it. Its name is a hash of the address and the endpoint, so a store that was copied elsewhere is
checked anew.
"""

from __future__ import annotations

import hashlib
import uuid

import msgspec

from holdfast.errors import Conflict
from holdfast.storage.objects.store import Listing, ObjectStore

PROBE_IS_STALE_AFTER = 3600.0


def check_once(objects: ObjectStore, folder: str, listing: Listing, *, now: float) -> None:
    """Raise `Invalid` if conditional writes are not enforced. No request if a note of an earlier check is in `folder`.

    `listing` is that of `folder`.

    A crash in the middle leaves an object of the check, which the first claim an hour later removes.
    """
    if objects.service is None:
        return
    probes = f"{folder}probe-"
    stale = [info for info in listing if info.key.startswith(probes) and info.modified < now - PROBE_IS_STALE_AFTER]
    objects.delete([info.key for info in stale])
    note = f"{folder}conditional-writes-{hashlib.sha256(objects.service.encode()).hexdigest()[:16]}.json"
    if any(info.key == note for info in listing):
        return
    objects.check_conditions(probes + uuid.uuid4().hex)
    try:
        objects.create(note, [msgspec.json.encode({"service": objects.service, "checked_ms": int(now * 1000)})])
    except Conflict:
        return  # another claim has just found out the same
