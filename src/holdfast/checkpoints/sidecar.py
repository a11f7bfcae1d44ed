"""Writing sidecars. No writer ever replaces another writer's sidecar, or depends on it.

A sidecar is created, never overwritten. If its usual key is taken (by an attempt that died, or by a rival), this writer
uses a unique key and records it in the manifest. Only the creation of the manifest decides which writer wins. A sidecar
that another writer left behind is not reused even if the bytes are the same: a clean-up may be about to remove it.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.base.arguments import BUFFERS, refused, type_name
from holdfast.base.steps import step
from holdfast.checkpoints.catalog import Catalog
from holdfast.checkpoints.manifest import SidecarObject
from holdfast.errors import Conflict, Corrupt, Fenced
from holdfast.storage.objects.store import Bytes

REMEMBERED = 16


class WrittenSidecar(msgspec.Struct, frozen=True):
    """A sidecar that this handle wrote, its checksum, and when its write began (monotonic clock)."""

    sidecar: SidecarObject
    checksum: str
    at: float
    is_new: bool = True
    """False if a call reused a sidecar that an earlier call wrote."""


class Sidecars:
    """The sidecars one handle has written, newest last, and which of them are still without a manifest."""

    def __init__(
        self, catalog: Catalog, writer_id: str, *, fresh_for: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A sidecar older than `fresh_for` seconds is not used again: a clean-up may take it for abandoned."""
        self._catalog = catalog
        self._writer_id = writer_id
        self._attempts = itertools.count()
        self._fresh_for = fresh_for
        self._clock = clock
        self._written: OrderedDict[int, WrittenSidecar] = OrderedDict()
        self._removed: set[int] = set()
        self.unsaved: dict[int, SidecarObject] = {}
        """Sidecars written ahead of their manifest, which is not saved yet."""

    def create(self, checkpoint_id: int, chunks: Sequence[Bytes], checksum: str) -> WrittenSidecar:
        """Write a sidecar under its usual key, or under one of our own if that is taken.

        Writing the same state again soon after reuses the sidecar, so that a repeated save is the same save.
        """
        before = self._written.get(checkpoint_id)
        if (
            before
            and before.checksum == checksum
            and self._clock() - before.at < self._fresh_for
            and self._is_there(before)
        ):
            return msgspec.structs.replace(before, is_new=False)
        began = self._clock()
        sidecar = self._create_under_free_key(checkpoint_id, chunks)
        self._written[checkpoint_id] = written = WrittenSidecar(sidecar, checksum, began)
        self._removed.discard(checkpoint_id)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        return written

    def expected(self, checkpoint_id: int, chunks: Sequence[Bytes]) -> SidecarObject:
        """Where `create` will most likely write: under the key it used before for this id, else the usual one."""
        before = self._written.get(checkpoint_id)
        key = before.sidecar.key if before else self._catalog.layout.sidecar_key(checkpoint_id)
        return SidecarObject(key, _size(chunks))

    def create_ahead(self, checkpoint_id: int, chunks: Sequence[Bytes], checksum: str) -> None:
        """Write a sidecar before its manifest, which must not exist yet."""
        key = self._catalog.layout.manifest_key(checkpoint_id)
        if self._catalog.objects.info(key) is not None:
            raise Fenced(
                f"Checkpoint {checkpoint_id} is saved already; its state cannot change any more.",
                code="checkpoint.taken",
                about=self._catalog.shown(key),
                unchanged="the checkpoint and its state",
                next_step="use the next id",
            )
        self.unsaved[checkpoint_id] = self.create(checkpoint_id, chunks, checksum).sidecar

    def written(self, checkpoint_id: int) -> SidecarObject | None:
        """The sidecar that this handle wrote for a checkpoint, if it wrote one. `Corrupt` if a clean-up removed it."""
        found = self._written.get(checkpoint_id)
        if checkpoint_id in self._removed or (found and not self._is_there(found)):
            raise Corrupt(
                f"The sidecar of checkpoint {checkpoint_id} was cleaned up before the checkpoint was saved.",
                code="sidecar.swept",
                about=f"checkpoint {checkpoint_id}",
                unchanged="the store",
                next_step="write the state again, then save",
            )
        return found.sidecar if found else None

    def withdraw(self, written: WrittenSidecar) -> None:
        """Remove a sidecar after losing its id, if it was written for that attempt alone.

        One under the usual key stays: the winner may be a foreign writer, whose own sidecar has that key.
        """
        if written.is_new and self._writer_id in written.sidecar.key:
            with step("sidecar.withdraw", key=written.sidecar.key):
                self._catalog.objects.delete([written.sidecar.key])

    def saved(self, checkpoint_id: int) -> None:
        """Note that a manifest names the sidecar of this checkpoint."""
        self.unsaved.pop(checkpoint_id, None)

    def is_lost(self, checkpoint_id: int) -> bool:
        """Whether a clean-up removed the sidecar before a manifest named it.

        Looks only where that is free, or if the sidecar is older than `fresh_for`.
        """
        written = self._written.get(checkpoint_id)
        if written is None:
            return False
        is_old = self._clock() - written.at >= self._fresh_for
        return (is_old or self._catalog.objects.looks_are_free) and not self._is_there(written)

    def removed(self, keys: set[str]) -> None:
        """Note that a clean-up of this handle removed these keys."""
        for checkpoint_id in [number for number, sidecar in self.unsaved.items() if sidecar.key in keys]:
            del self.unsaved[checkpoint_id]
            self._written.pop(checkpoint_id, None)
            self._removed.add(checkpoint_id)

    def _is_there(self, written: WrittenSidecar) -> bool:
        """Whether it still exists: a clean-up may have removed it, or the whole checkpoint may have been removed."""
        info = self._catalog.objects.info(written.sidecar.key)
        return info is not None and info.size == written.sidecar.bytes

    def _create_under_free_key(self, checkpoint_id: int, chunks: Sequence[Bytes]) -> SidecarObject:
        layout = self._catalog.layout
        own = layout.sidecar_key(checkpoint_id, f"{self._writer_id}{next(self._attempts):04x}")
        for key in (layout.sidecar_key(checkpoint_id), own):
            try:
                with step("sidecar.create", key=key):
                    self._catalog.objects.create(key, chunks)
                return SidecarObject(key, _size(chunks))
            except Conflict:
                continue
        raise Conflict(
            f"{own} exists already, and only this writer could have made it.",
            code="sidecar.taken",
            about=self._catalog.shown(own),
            unchanged="the sidecar that is there",
            next_step="try again",
        )


def _size(chunks: Sequence[Bytes]) -> int:
    return sum(memoryview(chunk).nbytes for chunk in chunks)


def as_chunks(chunks: Any) -> list[Bytes]:
    """A sidecar's chunks as a list; one buffer alone is one chunk."""
    if isinstance(chunks, BUFFERS):
        return [chunks]
    if isinstance(chunks, str) or not hasattr(chunks, "__iter__"):
        raise refused("state_data", f"a list of bytes is needed, not {type_name(chunks)}")
    found = list(chunks)
    for chunk in found:
        if not isinstance(chunk, BUFFERS):
            raise refused("state_data", f"each chunk must be bytes, not {type_name(chunk)}")
    return found
