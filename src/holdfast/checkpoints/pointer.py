"""`latest`: a hint for people and for LaminarDB, which only moves forward. Holdfast itself never depends on it."""

from __future__ import annotations

import logging

from holdfast.base.steps import step
from holdfast.checkpoints.catalog import MAX_POINTER_BYTES, Catalog
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.checkpoints")


def advance(catalog: Catalog, checkpoint_id: int) -> None:
    """Move `latest` forward to a checkpoint that is saved already, so a failure here is only worth a warning.

    It stays where it is if it names a newer checkpoint, unless that one does not exist.
    """
    try:
        with step("pointer.advance", checkpoint_id=checkpoint_id):
            ahead = _move(catalog, checkpoint_id)
            if ahead and catalog.objects.info(catalog.layout.manifest_key(ahead)) is None:
                _move(catalog, checkpoint_id, dangling=ahead)
    except HoldfastError as error:
        log.warning("checkpoint %d is saved, but latest still names an older one: %s", checkpoint_id, error)


def expected(catalog: Catalog, checkpoint_id: int) -> dict[str, bytes]:
    """What `advance` will write, unless `latest` is ahead already."""
    return {catalog.layout.pointer_key: catalog.layout.pointer_body(checkpoint_id)}


def repair(catalog: Catalog, checkpoint_id: int) -> bool:
    """Make `latest` name exactly this checkpoint, backwards if need be; True if it did not before."""
    body = catalog.layout.pointer_body(checkpoint_id)
    with step("pointer.repair", checkpoint_id=checkpoint_id):
        return catalog.objects.update(
            catalog.layout.pointer_key, lambda found: None if found == body else body, limit=MAX_POINTER_BYTES
        )


def _move(catalog: Catalog, checkpoint_id: int, *, dangling: int | None = None) -> int | None:
    """Point `latest` at this id; the newer id it names instead, if it stays there."""
    layout = catalog.layout
    ahead: int | None = None

    def change(body: bytes | None) -> bytes | None:
        nonlocal ahead
        named = layout.pointer_id(body) if body is not None else None
        if named is None or named < checkpoint_id or named == dangling:
            ahead = None
            return layout.pointer_body(checkpoint_id)
        ahead = named if named > checkpoint_id else None
        return None

    catalog.objects.update(layout.pointer_key, change, limit=MAX_POINTER_BYTES)
    return ahead
