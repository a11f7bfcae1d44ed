"""Rebuilds: build a new read model beside the live one, switch in one transaction, remove the old one."""

from __future__ import annotations

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Fenced
from holdfast.projections import cursors, keys, state
from holdfast.projections.state import BuildRef, ProjectionState
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import has_sql, sql_of, table_prefix
from holdfast.projections.worker_lease import WorkerLease
from holdfast.storage.kv.store import Reader, end_of

CHUNK = 10_000
"""Keys removed in one commit: writers need not wait long for a sweep."""


def start(
    store: ProjectionStore, ref: BuildRef, version: int, until: int | None, resume: bool
) -> tuple[BuildRef, ProjectionState]:
    """Resume the rebuild under way if `resume`, else start a new one.

    An older rebuild that is not resumed is abandoned, and its runner is fenced.
    """
    address, now = store.address, store.now_ms()
    key = keys.NEXT_STATES + ref.escaped
    with step("rebuild.start"), state.begin(store.kv) as transaction:
        current = state.read(transaction, ref.key, address)
        begun = state.read(transaction, key, address)
        if resume and begun is not None and (begun.version, begun.until) == (version, until):
            return state.next_build(ref.name, begun.build), begun
        if current is None:  # nothing live yet: readers have the empty build 1 until the switch
            current = ProjectionState(version=None, build=1, position=None, revision=0, updated_ms=now)
        build = current.builds + 1
        current = msgspec.structs.replace(
            current,
            revision=current.revision + 1,
            builds=build,
            garbage=(*current.garbage, begun.build) if begun else current.garbage,
        )
        new = ProjectionState(
            version=version, build=build, position=0, revision=0, updated_ms=now, builds=build, until=until
        )
        transaction.write({"meta": _records({ref.key: current, key: new})})
    return state.next_build(ref.name, build), new


def switch(
    store: ProjectionStore, ref: BuildRef, next_ref: BuildRef, build: int, until: int | None, lease: WorkerLease | None
) -> ProjectionState | None:
    """Make the rebuilt read model the live one, with its cursors; None if the live one has come further meanwhile."""
    address = store.address
    with step("rebuild.switch"), state.begin(store.kv) as transaction:
        current = state.read(transaction, ref.key, address)
        rebuilt = state.read(transaction, next_ref.key, address)
        if rebuilt is None or rebuilt.build != build or current is None:
            raise Fenced(
                f"The rebuild of projection {ref.name[:200]!r} was taken over or finished by another runner.",
                code="projection.rebuild-fenced",
                about=f"projection {ref.name[:200]!r}",
                unchanged="the live read model",
                next_step="leave it to the other one, or rebuild again when it has finished",
            )
        if lease is not None:
            lease.check(transaction)
        if until is None and (current.position or 0) > (rebuilt.position or 0):
            return None
        new = msgspec.structs.replace(
            rebuilt,
            revision=current.revision + 1,
            updated_ms=store.now_ms(),
            builds=current.builds,
            garbage=(*current.garbage, current.build),
            until=None,
        )
        wanted = dict(cursors.read_all(transaction, next_ref, address))
        transaction.write({ref.space: cursors.replaced(transaction, ref, wanted)})
        transaction.write({"meta": {**_records({ref.key: new}), next_ref.key: None}})
    return new


def sweep(kv: Reader, ref: BuildRef) -> None:
    """Remove abandoned builds. If interrupted, the next sweep continues."""
    found = state.read(kv, ref.key, kv.address)
    if found is None or not found.garbage:
        return
    for build in found.garbage:
        for space in ("views", "shadows", "letters"):
            _remove(kv, space, keys.of_build(ref.escaped, build))
        _drop_tables(kv, ref.escaped, build)
    _remove(kv, "shadows", keys.of_build(ref.escaped, found.build))
    with step("rebuild.swept"), state.begin(kv) as transaction:
        now = state.read(transaction, ref.key, kv.address)
        if now is not None:
            left = tuple(build for build in now.garbage if build not in found.garbage)
            new = msgspec.structs.replace(now, garbage=left, revision=now.revision + 1)
            transaction.write({"meta": _records({ref.key: new})})


def _remove(kv: Reader, space: str, prefix: bytes) -> None:
    while rows := list(kv.scan(space, prefix, end_of(prefix), CHUNK)):
        with step("rebuild.sweep"), state.begin(kv) as transaction:
            transaction.write({space: dict.fromkeys((key for key, _ in rows), None)})


def _drop_tables(kv: Reader, name: bytes, build: int) -> None:
    if not has_sql(kv):
        return
    for table in kv.tables(table_prefix(kv, name, build)):
        with step("rebuild.drop"), state.begin(kv) as transaction:
            sql_of(transaction).execute(f'DROP TABLE IF EXISTS "{table}"')


def _records(states: dict[bytes, ProjectionState]) -> dict[bytes, bytes | None]:
    return {key: keys.seal(key, value) for key, value in states.items()}
