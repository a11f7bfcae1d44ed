"""What is done through a handle that may fail and is then used again."""

from __future__ import annotations

from collections.abc import Callable

from proof_works import Note, entries, manifest, save

from holdfast.checkpoints import CheckpointBatcher, CheckpointStore

Act = Callable[[CheckpointStore, Note], None]


def saves(kind: str, number: int) -> Act:
    return lambda store, note: save(store, note, number, "first", kind)


class Flushing:
    """What a driver does with its batcher: after a failure it goes on where it was, with the same batcher."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        # Of the newest store alone: each batcher maps 128 MiB, and a process that has mapped too much cannot fork.
        self._driver: tuple[CheckpointStore, CheckpointBatcher] | None = None

    def __call__(self, store: CheckpointStore, note: Note) -> None:
        if self._driver is None or self._driver[0] is not store:
            self._driver = store, CheckpointBatcher(store, "nodes/a/")
        batcher = self._driver[1]
        for part in range(len(batcher.flushed(2)), self._parts):
            if batcher.is_empty:
                for name, data in entries(2, part, "first").items():
                    batcher.add(name, data)
            batcher.flush(2)
        store.save(manifest(2, f"batches-{self._parts}", "first").with_batches(batcher.flushed(2)))
        note("saved 2")
