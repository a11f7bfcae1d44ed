"""Hostile manifests whose checksum is right: anybody can compute one."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import BatchObject, CheckpointBatcher, CheckpointManifest, OperatorCheckpoint
from holdfast.checkpoints import manifest_json
from holdfast.checkpoints.manifest import HoldfastSection, SidecarObject
from holdfast.errors import Corrupt, Invalid
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest, settled
from places import LocalPlace, MemoryPlace


def plant_ours(place: StoreUnderTest, found: CheckpointManifest) -> None:
    place.overwrite(place.manifest_key(found.checkpoint_id), manifest_json.encode(found))


def hostile_keys(place: StoreUnderTest) -> list[str]:
    other = [place.manifest_key(1), place.sidecar_key(1), place.layout.pointer_key, "lease/x", "notes.txt"]
    return ["../outside", "/etc/passwd", "a/../../b", "", "a\x00b", "x" * 10_000, "checkpoints", *other]


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("kind", ["sidecar", "batch"])
def test_manifest_that_claims_what_is_not_its_own(place: StoreUnderTest, number: int, kind: str) -> None:
    key = hostile_keys(place)[number]
    place.open().save_with_state(manifest(1), [b"state"])
    place.overwrite("notes.txt", b"not ours")
    outside = Path(place.root).parent / "outside" if isinstance(place, LocalPlace) else None
    if outside:
        outside.write_bytes(b"not in the store")
    section = HoldfastSection(write_id="w-2", sidecar=SidecarObject(key, 5))
    if kind == "batch":
        section = HoldfastSection(write_id="w-2", batches=[BatchObject(key, 8, "00", 1)])
    plant_ours(place, manifest(2, holdfast=section))
    assert not place.open().validate_checkpoint(2).valid
    assert place.open().recover_latest_validated().chosen_id == 1
    place.open().load_state_data(2)
    store = place.open(max_retained=None)
    store.save(manifest(3))
    store.save(manifest(4))
    keep = {place.layout.pointer_key, "notes.txt", place.manifest_key(4)}
    place.open_later().prune(3)
    assert place.open().validate_checkpoint(1).valid, "pruning went by what a hostile manifest said"
    place.open_later().prune(1)
    place.open_later().cleanup_orphans()
    assert keep <= set(place.all_keys())
    if outside:
        assert outside.read_bytes() == b"not in the store"


@pytest.mark.parametrize(
    "section",
    [
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(1, 1, "00")}),
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(2, 1, "00")}),
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(99, 1, "00")}),
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(0, 1, "00")}),
    ],
    ids=["not in the parent", "not here", "in the future", "nowhere"],
)
def test_manifest_that_claims_state_it_does_not_have(place: StoreUnderTest, section: HoldfastSection) -> None:
    place.open().save(manifest(1))
    plant_ours(place, manifest(2, is_incremental=True, parent_id=1, holdfast=section))
    assert not place.open().validate_checkpoint(2).valid
    assert place.open().recover_latest_validated().chosen_id == 1
    with pytest.raises(Corrupt):
        place.open().load_states(2)


def test_chain_of_thousands_is_no_recursion(memory: MemoryPlace) -> None:
    memory.plant(1)
    for number in range(2, 3000):
        memory.plant(number, is_incremental=True, parent_id=number - 1)
    assert memory.open().validate_checkpoint(2999).valid
    assert memory.open().load_states(2999) == {}
    memory.damage(memory.manifest_key(1))
    assert not memory.open().validate_checkpoint(2999).valid
    assert memory.open().prune(1) == 0


# Names

NAMES = [
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\nb\x1b[31m",
    "ä\u202e",
    "x" * 10_000,
    "",
    " ",
    "~",
    "$HOME",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:12]))
def test_names_inside_a_manifest_never_become_paths(place: StoreUnderTest, name: str) -> None:
    saved = manifest(
        1,
        source_offsets={name: holdfast.ConnectorCheckpoint({name: name}, 0, {name: name})},
        source_names=[name],
        sink_names=[name],
        sink_epochs={name: 1},
        sink_commit_statuses={name: "Pending"},
        source_watermarks={name: 1},
        operator_states={name: OperatorCheckpoint.inline(b"x"), name + "2": OperatorCheckpoint.external(0, 5)},
        table_store_checkpoint_path=name,
    )
    place.open().save_with_state(saved, [b"state"])
    assert place.open().load_states(1) == {name: b"x", name + "2": b"state"}
    found = place.open().load_by_id(1)
    assert found is not None
    assert found.source_offsets == saved.source_offsets
    place.open().update_manifest(settled(saved))
    assert place.open().validate_checkpoint(1).valid
    assert place.all_keys() == sorted([place.manifest_key(1), place.sidecar_key(1), place.layout.pointer_key])


@pytest.mark.parametrize(
    "name", ["..", "../x/", "/abs/", "a/../b/", "a\x00/", "a\n/", "a//b/", "x" * 10_000, "a\ud800/"]
)
def test_prefix_of_batches_is_refused(place: StoreUnderTest, name: str) -> None:
    with pytest.raises(Invalid):
        CheckpointBatcher(place.open(), prefix=name)
    assert place.all_keys() == []
