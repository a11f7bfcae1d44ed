"""Works that the proofs disturb: what a driver does with a store, each written so that a second run can go on.

Every work opens handles through a `Place`, so that the same lines run on local disk, on one that forgets, on one that
fails, and on S3. Content is a function of id, kind and variant, all of which the manifest itself records: whoever finds
a checkpoint can tell what its bytes must be.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from holdfast.checkpoints import CheckpointBatcher, CheckpointStore, open_store
from holdfast.checkpoints.manifest import CheckpointManifest, ConnectorCheckpoint
from holdfast.checkpoints.operator_state import encode
from holdfast.testing.faults.crash import Acknowledge

INLINE = 200
"""Up to here `save_states` keeps state in the manifest; the real limit would make every one of these works slow."""


def small_states() -> tuple[dict[str, Any], str, int]:
    """Where the limit for inline state is, and what to put there: the arguments of `monkeypatch.setitem`."""
    assert encode.__kwdefaults__ is not None
    return encode.__kwdefaults__, "inline_threshold", INLINE


class Place(Protocol):
    """Somewhere a store can be opened, again and again, each time by a handle that knows nothing of the others."""

    def open(self, **settings: Any) -> CheckpointStore: ...


class Address(msgspec.Struct, frozen=True):
    """A place that has an address."""

    url: str
    layout: Any
    options: dict[str, str] | None = None

    def open(self, **settings: Any) -> CheckpointStore:
        return open_store(self.url, layout=self.layout, options=self.options, **{"max_retained": None, **settings})


def noise(*parts: object, size: int = 300) -> bytes:
    """Bytes that nothing else in a test has, always the same for the same parts."""
    seed = hashlib.sha256(repr(parts).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def manifest(number: int, kind: str, variant: str, *, pending: tuple[str, ...] = ()) -> CheckpointManifest:
    return msgspec.structs.replace(
        CheckpointManifest.new(number, number, timestamp_ms=1_700_000_000_000 + number),
        source_offsets={"orders": ConnectorCheckpoint({"kind": kind, "variant": variant})},
        sink_names=list(pending),
        sink_commit_statuses=dict.fromkeys(pending, "Pending"),
        sink_epochs=dict.fromkeys(pending, number),
    )


def sidecar(number: int, variant: str) -> list[bytes]:
    whole = noise("sidecar", number, variant)
    return [whole[:100], b"", whole[100:]]


def states(number: int, variant: str) -> dict[str, bytes]:
    """One that never changes, one that changes each time, one that is large and changes every third, one that goes."""
    found = {
        "still": noise("still", size=INLINE),
        "moving": noise("moving", number, variant),
        "large": noise("large", number // 3, size=INLINE + 1),
    }
    return found | ({"brief": noise("brief", number)} if number % 2 else {})


def entries(number: int, part: int, variant: str) -> dict[str, bytes]:
    return {f"{part}/{name}": noise("entry", number, part, name, variant) for name in "abc"}


Note = Acknowledge
Run = Callable[[Place, Note, str], None]


@dataclass(frozen=True)
class Work:
    """`prepare` runs undisturbed, `run` is disturbed and then run again; both tell what was acknowledged."""

    prepare: Callable[[Place, Note], None]
    run: Run
    keep: int | None = None
    """How many complete checkpoints the work leaves, where it removes any."""
    final: tuple[int, ...] = ()
    """What is there when the work has been done."""
    may_differ: bool = True
    """Whether a second run may bring other bytes. Not where the contract says that it has to take another id then."""


def save(store: CheckpointStore, note: Note, number: int, variant: str, kind: str = "plain") -> None:
    wanted = manifest(number, kind, variant)
    if kind == "sidecar":
        store.save_with_state(wanted, sidecar(number, variant))
    elif kind == "ahead":
        store.save_state_data(number, sidecar(number, variant))
        store.save(wanted)
    elif kind == "states":
        store.save_states(wanted, states(number, variant))
    elif kind.startswith("batches"):
        batcher = CheckpointBatcher(store, "" if kind == "batches-1" else "nodes/a/", before_write=store.check_lease)
        for part in range(int(kind[-1])):
            for name, data in entries(number, part, variant).items():
                batcher.add(name, data)
            batcher.flush(number)
        store.save(wanted.with_batches(batcher.flushed(number)))
    else:
        store.save(wanted)
    note(f"saved {number}")


def prepared(*kinds: str, **settings: Any) -> Callable[[Place, Note], None]:
    def prepare(place: Place, note: Note) -> None:
        store = place.open(**settings)
        for number, kind in enumerate(kinds, start=1):
            save(store, note, number, "before", kind)

    return prepare


def saving(kind: str, *numbers: int, **settings: Any) -> Run:
    """Save these ids, those left out that are there already."""

    def run(place: Place, note: Note, variant: str) -> None:
        store = place.open(**settings)
        there = store.list_ids()
        for number in numbers:
            if number not in there:
                save(store, note, number, variant, kind)

    return run


def with_stray_sidecar(place: Place, note: Note) -> None:
    prepared("sidecar", "sidecar")(place, note)
    place.open().save_state_data(3, [b"what a dead attempt had in mind"])


def with_pending(place: Place, note: Note) -> None:
    store = place.open()
    save(store, note, 1, "before", "sidecar")
    store.save_with_state(manifest(2, "sidecar", "before", pending=("a", "b")), sidecar(2, "before"))
    note("saved 2")


def commit_sinks(place: Place, note: Note, variant: str) -> None:
    """Each sink commits, and with the last one checkpoint 2 is complete and 1 may go."""
    store = place.open(max_retained=1)
    for sink in ("a", "b"):
        found = store.load_by_id(2)
        assert found is not None
        statuses: Any = {**found.sink_commit_statuses, sink: "Committed"}
        store.update_manifest(msgspec.structs.replace(found, sink_commit_statuses=statuses))
        note(f"committed 2 {sink}")


def prune_two(place: Place, note: Note, variant: str) -> None:
    place.open().prune(2)
    note("pruned 2")


def with_orphans(place: Place, note: Note) -> None:
    prepared("sidecar", "batches-2", "plain")(place, note)
    place.open().save_state_data(8, [b"never saved"])
    for number, prefix in ((8, ""), (9, "nodes/a/")):
        batcher = CheckpointBatcher(place.open(), prefix)
        batcher.add("key", noise("orphan", number))
        batcher.flush(number)


def clean_up(place: Place, note: Note, variant: str) -> None:
    place.open().cleanup_orphans(older_than=0)
    note("cleaned")


def with_claims(place: Place, note: Note) -> None:
    for _ in range(10):  # more than are kept, so that the next claim removes some
        store = place.open()
        note(f"generation {store.claim().generation}")
    save(store, note, 1, "before", "sidecar")


def claim_and_save(place: Place, note: Note, variant: str) -> None:
    store = place.open()
    note(f"generation {store.claim('driver').generation}")
    if 2 not in store.list_ids():
        save(store, note, 2, variant, "sidecar")


WORKS: dict[str, Work] = {
    "save": Work(prepared("plain", "plain"), saving("plain", 3), final=(1, 2, 3)),
    "save-first": Work(prepared(), saving("plain", 1, 2), final=(1, 2)),
    "save-with-state": Work(prepared("sidecar", "sidecar"), saving("sidecar", 3), final=(1, 2, 3)),
    "stray-sidecar": Work(with_stray_sidecar, saving("sidecar", 3), final=(1, 2, 3)),
    "state-ahead": Work(prepared("plain"), saving("ahead", 2), final=(1, 2), may_differ=False),
    "states-full": Work(prepared(), saving("states", 1), final=(1,)),
    "states-incremental": Work(
        prepared("states", full_every=3), saving("states", 2, 3, 4, full_every=3), final=(1, 2, 3, 4)
    ),
    "states-child": Work(prepared("states"), saving("states", 2), final=(1, 2)),
    "update": Work(with_pending, commit_sinks, keep=1, final=(2,)),
    "batch": Work(prepared("batches-1"), saving("batches-1", 2), final=(1, 2)),
    "batches": Work(prepared("batches-1"), saving("batches-3", 2), final=(1, 2)),
    "prune": Work(
        prepared("batches-3", "plain", "sidecar", "states", "states", "batches-2"), prune_two, keep=2, final=(4, 5, 6)
    ),
    "gc": Work(with_orphans, clean_up, final=(1, 2, 3)),
    "retention": Work(
        prepared("sidecar", "batches-1", "states", "states"),
        saving("sidecar", 5, 6, max_retained=2),
        keep=2,
        final=(5, 6),
    ),
    "claim": Work(with_claims, claim_and_save, final=(1, 2)),
}


def run(acknowledge: Acknowledge, work: str, url: str, layout: str, options: dict[str, str] | None = None) -> None:
    """What a child process does until it is killed. Its writers have the same names in each run."""
    names = itertools.count(0xACE)
    uuid.uuid4 = lambda: uuid.UUID(int=next(names) << 64 | 0xF)  # type: ignore[assignment]
    defaults, name, value = small_states()
    defaults[name] = value
    WORKS[work].run(Address(url, layout, options), acknowledge, "first")
