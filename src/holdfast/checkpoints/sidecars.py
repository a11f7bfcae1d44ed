"""Writing sidecars so that no writer ever replaces another's.

A sidecar is created, never overwritten. If its usual key is taken by other bytes (an attempt that died, or a rival),
this writer uses a key of its own: the manifest says which, and only the manifest's creation decides who wins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from holdfast.checkpoints import statesum
from holdfast.checkpoints.catalog import Catalog
from holdfast.errors import Conflict, Fenced, NotFound
from holdfast.manifest import SidecarObject
from holdfast.objects.medium import Bytes
from holdfast.steps import step

REMEMBERED = 16


class Sidecars:
    """The sidecars one handle has written, and which of them are still without a manifest."""

    def __init__(self, catalog: Catalog, writer_id: str) -> None:
        self._catalog = catalog
        self._writer_id = writer_id
        self.unsaved: dict[int, SidecarObject] = {}
        """Sidecars written ahead of their manifest, which is not saved yet."""
        self._ahead: OrderedDict[int, SidecarObject] = OrderedDict()

    def create(self, checkpoint_id: int, chunks: Sequence[Bytes]) -> SidecarObject:
        """Write a sidecar under its usual key, or under one of our own if that is taken by other bytes."""
        layout = self._catalog.layout
        for key in (layout.sidecar_key(checkpoint_id), layout.sidecar_key(checkpoint_id, self._writer_id)):
            if self._create(key, chunks):
                return _described(key, chunks)
        raise _taken(checkpoint_id, self._catalog.shown(key))

    def create_usual(self, checkpoint_id: int, chunks: Sequence[Bytes]) -> SidecarObject:
        """Write a sidecar under its usual key, where a manifest that names none will look for it."""
        key = self._catalog.layout.sidecar_key(checkpoint_id)
        is_saved = self._catalog.objects.info(self._catalog.layout.manifest_key(checkpoint_id)) is not None
        if is_saved or not self._create(key, chunks):
            raise _taken(checkpoint_id, self._catalog.shown(key))
        self.unsaved[checkpoint_id] = self._ahead[checkpoint_id] = sidecar = _described(key, chunks)
        while len(self._ahead) > REMEMBERED:
            self._ahead.popitem(last=False)
        return sidecar

    def written_ahead(self, checkpoint_id: int) -> SidecarObject | None:
        """The sidecar that this handle wrote for a checkpoint before its manifest."""
        return self._ahead.get(checkpoint_id)

    def withdraw(self, sidecar: SidecarObject) -> None:
        """Remove a sidecar after losing its id, if nobody else can be using it.

        One under the usual key stays: a rival with the same bytes may have adopted it.
        """
        if self._writer_id in sidecar.key:
            with step("sidecar.withdraw", key=sidecar.key):
                self._catalog.objects.delete([sidecar.key])

    def settle(self, checkpoint_id: int) -> None:
        """A manifest names it now, or it is gone: nothing is left to clean up."""
        self.unsaved.pop(checkpoint_id, None)

    def _create(self, key: str, chunks: Sequence[Bytes]) -> bool:
        """True if the key holds these bytes afterwards, whoever wrote them."""
        try:
            with step("sidecar.create", key=key):
                self._catalog.objects.create(key, chunks)
        except Conflict:
            try:
                return _same_bytes(self._catalog.objects.stream(key), chunks)
            except NotFound:
                return False
        return True


def _described(key: str, chunks: Sequence[Bytes]) -> SidecarObject:
    return SidecarObject(key, sum(memoryview(chunk).nbytes for chunk in chunks))


def _same_bytes(stored: Iterable[Bytes], chunks: Sequence[Bytes]) -> bool:
    return statesum.state_checksum({}, stored) == statesum.state_checksum({}, list(chunks))


def _taken(checkpoint_id: int, about: str) -> Fenced:
    return Fenced(
        f"Checkpoint {checkpoint_id} has a sidecar of another writer already.",
        code="sidecar.taken",
        about=about,
        unchanged="the other writer's sidecar",
        next_step="use the next id; an abandoned sidecar goes with: holdfast gc",
    )
