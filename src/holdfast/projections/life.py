"""What is done to a projection from outside: emptied, moved back, and given its dead letters again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.errors import Invalid
from holdfast.projections import cursors, keys, rebuilding, records, standing, status
from holdfast.projections.backend import Change, Transaction
from holdfast.projections.batch import NOT_THE_EVENTS_FAULT, Unit
from holdfast.projections.event import Event
from holdfast.projections.projection import Handles
from holdfast.projections.standing import DeadLetter, Standing, Track
from holdfast.projections.store import ProjectionStore
from holdfast.projections.view import StoredView
from holdfast.steps import step


def reset(store: ProjectionStore, name: str) -> None:
    """Empty a projection in one step, and sweep away afterwards what nobody reads any more."""
    track = standing.live(name)
    with step("projection.reset"), store.backend.begin() as transaction:
        found = standing.read(transaction, track.key, store.address)
        kept = transaction.scan("cursors", track.prefix, keys.end_of(track.prefix))
        if found is None and not kept:
            raise status.unknown(name, store.address)
        transaction.write(("cursors", key, None) for key, _ in kept)
        if found is not None:
            transaction.write(_emptied(transaction, track, found, store))
    store.notify()
    rebuilding.sweep(store.backend, track)


def move_back(store: ProjectionStore, track: Track, position: int) -> None:
    """Set the cursors to where they were at a position. Letters of events after it go: these are handled again."""
    with step("projection.rewind"), store.backend.begin() as transaction:
        found = standing.read(transaction, track.key, store.address)
        if found is None:
            raise status.unknown(track.name, store.address)
        if position > (found.position or 0):
            raise Invalid(
                f"Projection {track.name[:200]!r} is at position {found.position or 0}, before {position}.",
                code="projection.rewind",
                about=f"projection {track.name[:200]!r}",
                unchanged="its read model and its cursors",
                next_step="catch up to go forward",
            )
        known = dict(cursors.read_all(transaction, track, store.address))
        before: dict[str, int] = {}
        for event in store.log.read_all(position):
            before.setdefault(event.stream, event.sequence - 1)
        wanted = {stream: min(cursor, before.get(stream, cursor)) for stream, cursor in known.items()}
        transaction.write(cursors.replaced(transaction, track, {s: c for s, c in wanted.items() if c}))
        letters = keys.of_build(track.escaped, found.build)
        after = letters + keys.NUMBER.pack(position + 1)
        gone = transaction.scan("letters", after, keys.end_of(letters))
        transaction.write(("letters", key, None) for key, _ in gone)
        new = msgspec.structs.replace(found, position=position, revision=found.revision + 1, updated_ms=store.now_ms())
        transaction.write([("meta", track.key, records.seal(track.key, new))])


def retry_letters(store: ProjectionStore, track: Track, projection: Handles) -> list[DeadLetter]:
    """Handle dead letters again, each in a commit of its own; those that are left."""
    found = standing.read(store.backend, track.key, store.address)
    if found is None:
        return []
    left = []
    for letter in status.letters_of(store.backend, track, found.build):
        event = next(iter(store.log.page(letter.position - 1, 1)))
        known = status.required(store.backend, track)
        if not _retry(store, track, known, projection, event):
            left.append(letter)
    store.notify()
    return left


def _retry(store: ProjectionStore, track: Track, known: Standing, projection: Handles, event: Event) -> bool:
    unit = Unit(store.backend, track, known, None)
    view = StoredView(store.backend, track.escaped, known.build, unit.begin)
    try:
        try:
            projection.handle(event, view)
            view.keep()
        except NOT_THE_EVENTS_FAULT:
            raise
        except Exception:
            return False
        new = msgspec.structs.replace(known, revision=known.revision + 1, updated_ms=store.now_ms())
        letter = keys.of_build(track.escaped, known.build) + keys.NUMBER.pack(event.position)
        unit.commit([*view.changes(), ("letters", letter, None), ("meta", track.key, records.seal(track.key, new))])
    finally:
        unit.rollback()
    return True


def _emptied(transaction: Transaction, track: Track, found: Standing, store: ProjectionStore) -> Iterator[Change]:
    key = keys.SHADOWS + track.escaped
    begun = standing.read(transaction, key, store.address)
    gone = (found.build,) if begun is None else (found.build, begun.build)
    new = Standing(
        version=None,
        build=found.builds + 1,
        position=0,
        revision=found.revision + 1,
        updated_ms=store.now_ms(),
        builds=found.builds + 1,
        garbage=(*found.garbage, *gone),
    )
    yield "meta", track.key, records.seal(track.key, new)
    yield "meta", key, None
