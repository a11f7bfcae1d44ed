"""Administration of a projection: reset it, rewind it, retry its dead letters."""

from __future__ import annotations

import itertools

import msgspec

from holdfast.base.steps import step
from holdfast.errors import Conflict, Invalid
from holdfast.projections import cursors, keys, rebuild, state, status
from holdfast.projections.batch import ProjectionCommit, error_text, is_store_error, record_text
from holdfast.projections.event import Event
from holdfast.projections.event_log import PAGE
from holdfast.projections.projection import ProjectionLike, check_version
from holdfast.projections.state import BuildRef, DeadLetter, ProjectionState, Reading
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import StoredView
from holdfast.storage.kv.store import Transaction, WriteBatch, end_of

MAX_CONFLICTS = 100


def reset(store: ProjectionStore, name: str) -> None:
    """Empty a projection in one commit, then remove the keys of its old builds."""
    ref = state.live_build(name)
    with step("projection.reset"), state.begin(store.kv) as transaction:
        found = state.read(transaction, ref.key, store.address)
        kept = [key for key, _ in transaction.scan("cursors", ref.prefix, end_of(ref.prefix))]
        if found is None and not kept:
            raise status.unknown(name, store.address)
        transaction.write({"cursors": dict.fromkeys(kept, None)})
        if found is not None:
            transaction.write(_emptied(transaction, ref, found, store))
    store.notify()
    rebuild.sweep(store.kv, ref)


def move_back(store: ProjectionStore, ref: BuildRef, position: int) -> None:
    """Set the cursors to where they were at a position. Remove later dead letters: their events are handled again.

    The events after the position are read before the transaction begins; inside it, at most one more page.
    """
    _check_behind(store, ref, position, store.kv)
    first: dict[str, int] = {}
    """The first event of each stream after the position."""
    read = position
    while True:
        for event in store.log.read_all(read):
            first.setdefault(event.stream, event.sequence)
            read = event.position
        with step("projection.rewind"), state.begin(store.kv) as transaction:
            found = _check_behind(store, ref, position, transaction)
            if store.log.head(transaction) - read > PAGE:
                continue  # events have come faster than the transaction; read them outside as well
            for event in store.log.read_all(read):
                first.setdefault(event.stream, event.sequence)
            transaction.write(_moved_back(transaction, ref, found, position, first, store))
            return


def _check_behind(store: ProjectionStore, ref: BuildRef, position: int, reading: Reading) -> ProjectionState:
    """The projection's state. `NotFound` if there is none, `Invalid` if it has not come as far as the position."""
    found = state.read(reading, ref.key, store.address)
    if found is None:
        raise status.unknown(ref.name, store.address)
    if position > (found.position or 0):
        raise Invalid(
            f"Projection {ref.name[:200]!r} is at position {found.position or 0}, before {position}.",
            code="projection.rewind",
            about=f"projection {ref.name[:200]!r}",
            unchanged="its read model and its cursors",
            next_step="catch up to go forward",
        )
    return found


def _moved_back(
    transaction: Transaction,
    ref: BuildRef,
    found: ProjectionState,
    position: int,
    first: dict[str, int],
    store: ProjectionStore,
) -> WriteBatch:
    known = dict(cursors.read_all(transaction, ref, store.address))
    wanted = {stream: min(cursor, first.get(stream, cursor + 1) - 1) for stream, cursor in known.items()}
    letters = keys.of_build(ref.escaped, found.build)
    after = letters + keys.NUMBER.pack(position + 1)
    new = msgspec.structs.replace(
        found, position=position, revision=found.revision + 1, updated_ms=store.now_ms(), failed=None
    )
    return {
        ref.space: cursors.replaced(transaction, ref, {stream: cursor for stream, cursor in wanted.items() if cursor}),
        "letters": dict.fromkeys((key for key, _ in transaction.scan("letters", after, end_of(letters))), None),
        "meta": {ref.key: keys.seal(ref.key, new)},
    }


def retry_letters(store: ProjectionStore, ref: BuildRef, projection: ProjectionLike) -> list[DeadLetter]:
    """Retry dead letters, one commit each. Returns those that failed again, with the new error."""
    found = state.read(store.kv, ref.key, store.address)
    if found is None:
        return []
    left = []
    for letter in status.letters_of(store.kv, ref, found.build):
        for conflicts in itertools.count(1):
            known = status.required(store.kv, ref)
            check_version(projection, known.version)
            try:
                again = _retry(store, ref, known, projection, letter)
            except Conflict:  # another runner has committed meanwhile
                if conflicts > MAX_CONFLICTS:
                    raise
            else:
                break
        if again is not None:
            left.append(again)
    store.notify()
    return left


def _retry(
    store: ProjectionStore, ref: BuildRef, known: ProjectionState, projection: ProjectionLike, letter: DeadLetter
) -> DeadLetter | None:
    """The letter as it is stored now; None if it is gone."""
    key = keys.of_build(ref.escaped, known.build) + keys.NUMBER.pack(letter.position)
    if store.kv.get("letters", key) is None:
        return None  # handled by another process, or its read model is no longer the live one
    commit = ProjectionCommit(store.kv, ref, known, None)
    view = StoredView(store.kv, ref.escaped, known.build, commit.begin)
    try:
        try:
            projection.handle(_event_of(store, letter), view)
            view.accept()
        except Exception as error:
            if is_store_error(error):
                raise
            commit.rollback()  # also undoes the SQL that the handler ran
            commit = ProjectionCommit(store.kv, ref, known, None)
            again = msgspec.structs.replace(
                letter, error=record_text(error_text(error)), attempts=letter.attempts + 1, when_ms=store.now_ms()
            )
            commit.commit({"letters": {key: keys.seal(key, again)}})
            return again
        new = msgspec.structs.replace(known, revision=known.revision + 1, updated_ms=store.now_ms())
        meta: dict[bytes, bytes | None] = {ref.key: keys.seal(ref.key, new)}
        commit.commit({"views": view.writes(), "letters": {key: None}, "meta": meta})
    finally:
        commit.rollback()
    return None


def _event_of(store: ProjectionStore, letter: DeadLetter) -> Event:
    page = store.log.page(letter.position - 1, 1)
    if not page:
        raise keys.corrupt(store.address, f"event {letter.position}", "it has a dead letter, but is missing")
    return page[0]


def _emptied(transaction: Transaction, ref: BuildRef, found: ProjectionState, store: ProjectionStore) -> WriteBatch:
    key = keys.NEXT_STATES + ref.escaped
    begun = state.read(transaction, key, store.address)
    gone = (found.build,) if begun is None else (found.build, begun.build)
    new = ProjectionState(
        version=None,
        build=found.builds + 1,
        position=0,
        revision=found.revision + 1,
        updated_ms=store.now_ms(),
        builds=found.builds + 1,
        garbage=(*found.garbage, *gone),
    )
    return {"meta": {ref.key: keys.seal(ref.key, new), key: None}}
