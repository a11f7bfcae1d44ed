"""Rebuilds: build a new read model beside the live one, switch in one transaction, remove the old one."""

from __future__ import annotations

import logging

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Fenced, HoldfastError
from holdfast.projections import cursors, keys, state
from holdfast.projections.state import BuildRef, ProjectionState
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import has_sql, sql_of, table_prefix
from holdfast.projections.worker_lease import WorkerLease
from holdfast.storage.kv.store import Reader, end_of

log = logging.getLogger("holdfast.projections")

CHUNK = 10_000
"""Keys removed in one commit; small, so that a sweep does not block writers for long."""


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
        if current is None:  # nothing live yet: readers see the empty build 1 until the switch
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
    """Make the rebuilt read model live, with its cursors; None if the live one is ahead of it by now."""
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


def sweep(kv: Reader, ref: BuildRef, commits: int | None = None) -> None:
    """Remove abandoned builds, their keys in at most `commits` commits. If interrupted, the next sweep continues.

    A build's tables and views go with it. If the database refuses to drop one, because a view of another owner is built
    on it, it stays, and a warning names it.
    """
    found = state.read(kv, ref.key, kv.address)
    if found is None or not found.garbage:
        return
    left = commits
    for build in found.garbage:
        for space in ("views", "shadows", "letters"):
            left = _remove(kv, space, keys.of_build(ref.escaped, build), left)
            if left == 0:
                return
        _drop_tables(kv, ref.escaped, build)
    if _remove(kv, "shadows", keys.of_build(ref.escaped, found.build), left) == 0:
        return
    with step("rebuild.swept"), state.begin(kv) as transaction:
        now = state.read(transaction, ref.key, kv.address)
        if now is not None:
            rest = tuple(build for build in now.garbage if build not in found.garbage)
            new = msgspec.structs.replace(now, garbage=rest, revision=now.revision + 1)
            transaction.write({"meta": _records({ref.key: new})})


def _remove(kv: Reader, space: str, prefix: bytes, commits: int | None) -> int | None:
    """Remove these keys. Returns how many commits are left; 0 means that some keys may be left, too."""
    while commits != 0 and (rows := list(kv.scan(space, prefix, end_of(prefix), CHUNK))):
        with step("rebuild.sweep"), state.begin(kv) as transaction:
            transaction.write({space: dict.fromkeys((key for key, _ in rows), None)})
        commits = None if commits is None else commits - 1
    return commits


def _drop_tables(kv: Reader, name: bytes, build: int) -> None:
    if not has_sql(kv):
        return
    prefix = table_prefix(kv, name, build)
    left = [*kv.views(prefix), *(("TABLE", table) for table in kv.tables(prefix))]
    while left:
        refused = {(kind, table): why for kind, table in left if (why := _drop(kv, kind, table)) is not None}
        if len(refused) == len(left):
            for (kind, table), why in refused.items():
                log.warning('%s: the %s "%s" of an old read model stays: %s', kv.address, kind.lower(), table, why)
            return
        left = list(refused)  # again, now that views that depended on them are gone


def _drop(kv: Reader, kind: str, table: str) -> Exception | None:
    """Drop a table or a view. Returns the database's error if it refuses, as PostgreSQL does if others depend on it."""
    with step("rebuild.drop"), state.begin(kv) as transaction:
        try:
            sql_of(transaction).execute(f'DROP {kind} IF EXISTS "{table}"')
        except HoldfastError:
            raise
        except Exception as error:
            return error
    return None


def _records(states: dict[bytes, ProjectionState]) -> dict[bytes, bytes | None]:
    return {key: keys.seal(key, value) for key, value in states.items()}
