"""Which objects are orphans, in both layouts: decided over a listing alone."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import OperatorCheckpoint
from holdfast.checkpoints.catalog import Catalog
from holdfast.checkpoints.layout import DirectoryLayout, Layout, ObjectLayout
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection, SidecarObject
from holdfast.checkpoints.retention import find_orphans
from holdfast.storage.objects import open_objects
from holdfast.storage.objects.store import ObjectInfo
from holdfast.testing.conformance.checkpoints.subject import manifest

OLD, YOUNG, NOW = 0.0, 990.0, 900.0
LAYOUTS: list[Layout] = [DirectoryLayout(), ObjectLayout()]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["directory", "object"])


def infos(*keys: str, modified: float = OLD) -> list[ObjectInfo]:
    return [ObjectInfo(key, 5, modified) for key in keys]


def orphans(layout: Layout, listing: list[ObjectInfo], manifests: dict[int, Any], **named: Any) -> list[str]:
    leftovers = named.pop("leftovers", [])
    owner = Catalog(open_objects("memory://"), layout)
    owned = {key for found in manifests.values() if found for key in owner.owned_keys(found)}
    found = find_orphans(listing, leftovers, manifests, owned, layout, written_before=NOW, **named)
    assert all(orphan.why for orphan in found)
    return sorted(orphan.key for orphan in found)


@layouts
def test_orphans_sidecars(layout: Layout) -> None:
    usual, own = layout.sidecar_key(2), layout.sidecar_key(2, "abc123")
    assert orphans(layout, infos(usual, own), {}) == sorted([usual, own])
    assert orphans(layout, infos(usual, own, modified=YOUNG), {}) == []
    assert orphans(layout, infos(usual, own, modified=YOUNG), {}, abandoned={usual}) == [usual]
    assert orphans(layout, infos(usual, own), {2: None}) == [], "a damaged manifest may own either"
    owner = manifest(2, holdfast=HoldfastSection(write_id="w", sidecar=SidecarObject(own, 5)))
    assert orphans(layout, infos(usual, own), {2: owner}) == [usual]
    owner = manifest(2, holdfast=HoldfastSection(write_id="w", sidecar=SidecarObject(usual, 5)))
    assert orphans(layout, infos(usual, own), {2: owner}) == [own]
    assert orphans(layout, infos(usual), {2: manifest(2)}) == [], "a foreign writer's sidecar is never an orphan"
    stateless = manifest(2, holdfast=HoldfastSection(write_id="w"))
    assert orphans(layout, infos(usual), {2: stateless}) == [usual]
    sliced = manifest(
        2, operator_states={"a": OperatorCheckpoint.external(0, 1)}, holdfast=HoldfastSection(write_id="w")
    )
    assert orphans(layout, infos(usual), {2: sliced}) == []


@layouts
def test_orphans_batches(layout: Layout) -> None:
    lost = "nodes/a/checkpoints/batch-000007.lz4"
    part = "checkpoints/batch-000007-part-0002.lz4"
    assert orphans(layout, infos(lost, part), {1: manifest(1)}) == sorted([lost, part])
    assert orphans(layout, infos(lost, part, modified=YOUNG), {1: manifest(1)}) == []
    assert orphans(layout, infos(lost, part), {1: manifest(1, epoch=7)}) == [], "it may say so in a way we cannot see"
    listed = manifest(1, epoch=7).with_batches([BatchObject(part, 5, "00", 1)])
    assert orphans(layout, infos(lost, part), {1: listed}) == [lost]
    assert orphans(layout, infos(lost, part), {1: manifest(1), 2: None}) == []


@layouts
def test_orphans_leave_strangers_alone(layout: Layout) -> None:
    strange = [
        "a",
        "checkpoints/state-1.bin",
        "checkpoints/x.bin",
        "manifests/y.json",
        "checkpoints/batch-1.lz4",
        "state.bin",
    ]
    manifests = [layout.manifest_key(4), layout.pointer_key]
    assert orphans(layout, infos(*strange, *manifests), {}) == []


@layouts
def test_orphans_leftovers_by_age(layout: Layout) -> None:
    assert orphans(layout, [], {}, leftovers=infos("checkpoints/.x.tmp", "checkpoints/empty/")) == [
        "checkpoints/.x.tmp",
        "checkpoints/empty/",
    ]
    assert orphans(layout, [], {}, leftovers=infos("checkpoints/.x.tmp", modified=YOUNG)) == []
