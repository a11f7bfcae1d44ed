"""Which entries of batch objects a checkpoint holds, and large files, which are several entries."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import Driver, restored

from holdfast.checkpoints import batch_format
from holdfast.checkpoints.manifest import BatchEntry, BatchObject, CheckpointManifest, HoldfastSection
from holdfast.errors import Corrupt
from holdfast.pipeline.workdir import entries, pack
from holdfast.pipeline.workdir.entries import Part, bitmaps, joined, live_entries, part_of_entry, parts_of
from holdfast.pipeline.workdir.restore import compare, restore
from holdfast.testing.conformance.checkpoints.subject import manifest
from places import MemoryPlace
from workdir_files import OWNER, HdfsState

# Which entries count


def batch_of(count: int) -> BatchObject:
    return BatchObject("batch-1", 1, "", count)


def with_live(live: dict[str, str]) -> CheckpointManifest:
    return manifest(1, holdfast=HoldfastSection(live=live))


@given(st.sets(st.integers(0, 999), min_size=1), st.integers(0, 50))
def test_a_bitmap_is_what_it_was_made_of(places: set[int], more: int) -> None:
    batch = batch_of(max(places) + 1 + more)
    live = bitmaps(BatchEntry(batch, place) for place in places)
    found = live_entries(with_live(live), batch)
    assert found is not None
    assert {place for place in range(batch.entries) if place in found} == places
    assert all(len(text) <= 4 + batch.entries // 6 for text in live.values())


def test_an_object_without_a_bitmap_is_held_whole() -> None:
    assert bitmaps(BatchEntry(batch_of(3), place) for place in range(3)) == {}
    assert live_entries(with_live({}), batch_of(3)) == range(3)


def test_older_checkpoints_say_nothing_about_it() -> None:
    assert live_entries(manifest(1, holdfast=HoldfastSection()), batch_of(3)) is None
    assert b"live" not in msgspec.json.encode(HoldfastSection())


@pytest.mark.parametrize("text", ["", "AA==", "!", "AQ", base64.b64encode(b"\x08").decode()])
def test_a_bitmap_that_does_not_fit(text: str) -> None:
    with pytest.raises(Corrupt) as found:
        live_entries(with_live({"batch-1": text}), batch_of(3))
    assert (found.value.code, found.value.about) == ("checkpoint.entries", "checkpoint 1")


def test_manifests_do_not_grow_with_the_files(memory: MemoryPlace, tmp_path: Path) -> None:
    """At 50 partitions the list takes a dozen bytes for each object."""
    driver = Driver(memory, tmp_path / "work", max_retained=3)
    state = HdfsState(driver.made, partitions=50, snapshot_every=3, keep=5)
    sizes = [len("".join(driver.epoch(batch, state).live.values())) for batch in range(12)]
    assert max(sizes) <= 16 * 24
    assert restored(memory, driver.load(11), tmp_path / "again") == driver.needed(11)


# Large files


def test_names_of_parts() -> None:
    whole = list(parts_of("a/b", 5))
    assert whole == [Part("a/b", 0, 5, 5)]
    assert whole[0].name == "a/b"
    assert [part.name for part in parts_of("empty", 0)] == ["empty"]
    size = 2 * entries.PART_BYTES
    names = [part.name for part in parts_of("a/b", size)]
    assert names == [f"a/b//{offset}/{size}" for offset in (0, entries.PART_BYTES)]


@given(st.integers(1, 9), st.integers(-1, 1))
def test_no_part_is_so_small_that_it_shares_an_object(count: int, more: int) -> None:
    size = count * entries.PART_BYTES + more
    lengths = [part.length for part in parts_of("a/b", size)]
    assert len(lengths) == count + (more > 0)
    assert size <= entries.PART_BYTES or min(lengths) >= pack.PACKED_TOGETHER
    assert max(lengths) <= entries.PART_BYTES


@given(st.integers(0, 5 * entries.PART_BYTES))
def test_a_part_is_read_from_its_name(size: int) -> None:
    parts = list(parts_of("state/0/0/1.snapshot", size))
    assert [part_of_entry(part.name, part.length) for part in parts] == parts
    batch = batch_of(len(parts))
    found = joined((part, BatchEntry(batch, place)) for place, part in reversed(list(enumerate(parts))))
    assert found == {"state/0/0/1.snapshot": tuple(BatchEntry(batch, place) for place in range(len(parts)))}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_part_that_is_missing(lost: int) -> None:
    parts = [part for place, part in enumerate(parts_of("x", 3 * entries.PART_BYTES)) if place != lost]
    with pytest.raises(Corrupt, match="x do not make a whole file"):
        joined((part, BatchEntry(batch_of(3), place)) for place, part in enumerate(parts))


@pytest.fixture
def large(memory: MemoryPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A state file that is larger than a batch can be, captured."""
    monkeypatch.setattr(entries, "PART_BYTES", 3000)
    monkeypatch.setattr(pack, "PACKED_TOGETHER", 1000)
    monkeypatch.setattr(batch_format, "MAX_RAW", 5000)
    driver = Driver(memory, tmp_path / "work")
    driver.epoch(0)
    driver.made.write("state/0/0/1.snapshot", os.urandom(10_000))
    driver.epoch(1)
    return driver


def test_a_file_larger_than_a_batch_can_be(large: Driver, tmp_path: Path) -> None:
    assert restored(large.place, large.load(1), tmp_path / "again") == large.needed(1)
    large.made.write("state/0/0/2.delta", b"new")
    captured = large.epoch(2)
    assert len(captured.batches) == 1
    assert len(captured.locations["state/0/0/1.snapshot"].entries) == 4


def test_going_on_with_a_large_file(large: Driver) -> None:
    comparison = compare(large.made.workdir, large.place.objects, large.load(1))
    assert comparison.difference is None
    assert len(comparison.same["state/0/0/1.snapshot"]) == 4
    large.snapshotter.begin(comparison.same, large.load(1).needed_batches)
    large.made.write("state/0/0/2.delta", b"new")
    captured = large.epoch(2)
    assert "state/0/0/1.snapshot" not in {path for batch in captured.batches for path in large.stored()[batch.key]}


@pytest.mark.parametrize("damage", ["flipped", "shorter", "longer"])
def test_damage_in_a_large_file(large: Driver, damage: str) -> None:
    path = large.made.root / "state/0/0/1.snapshot"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[7000] ^= 1
    path.write_bytes({"flipped": data, "shorter": data[:-1], "longer": data + b"x"}[damage])
    difference = compare(large.made.workdir, large.place.objects, large.load(1)).difference
    assert difference is not None
    assert "state/0/0/1.snapshot" in difference


def test_a_large_file_without_one_of_its_parts(large: Driver, tmp_path: Path) -> None:
    found = large.load(1)
    fewer = [
        batch for batch in found.own.batches if "state/0/0/1.snapshot//2500/10000" not in large.stored()[batch.key]
    ]
    assert len(fewer) == len(found.own.batches) - 1
    found = msgspec.structs.replace(found, holdfast=msgspec.structs.replace(found.own, batches=fewer))
    with pytest.raises(Corrupt) as refused:
        restore(large.made.workdir, large.place.objects, found, OWNER)
    assert refused.value.code == "batch.path"
