"""From a workdir into a store and back: what is written, what is inherited, what is let go, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import Driver, restored

from holdfast import CheckpointStore
from holdfast.checkpoints.manifest import BatchEntry, BatchObject
from holdfast.errors import Corrupt, Invalid
from holdfast.pipeline.workdir import entries
from holdfast.pipeline.workdir.entries import Entries
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.pack import pack_on_driver
from holdfast.pipeline.workdir.restore import compare, restore
from holdfast.pipeline.workdir.snapshot import (
    COMPACTED_AT_LEAST,
    COMPACTED_SHARE,
    MOSTLY_DEAD,
    FileLocation,
    WorkdirSnapshotter,
    choose_compaction,
)
from holdfast.storage.files.directory import FileStamp, LocalDirectory
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest
from places import MemoryPlace
from workdir_files import OWNER, HdfsState, RocksState, archive, operator_metadata, without

# Only what is new


def test_only_new_files_travel(driver: Driver) -> None:
    state = HdfsState(driver.made)
    first = driver.epoch(0, state)
    second = driver.epoch(1, state)
    third = driver.epoch(2, state)
    assert driver.stored() == {
        "checkpoints/batch-000001.lz4": [
            "metadata",
            "offsets/0",
            "state/0/0/_metadata/schema",
            "state/0/_metadata/metadata",
        ],
        "checkpoints/batch-000002.lz4": ["commits/0", "offsets/1", "state/0/0/1.delta", "state/0/1/1.delta"],
        "checkpoints/batch-000003.lz4": ["commits/1", "offsets/2", "state/0/0/2.delta", "state/0/1/2.delta"],
    }
    assert (first.inherited, second.inherited) == ([], first.batches)
    assert third.inherited == [*first.batches, *second.batches]
    assert third.new_bytes == sum(
        len(driver.made.files()[path]) for path in driver.stored()["checkpoints/batch-000003.lz4"]
    )


def test_an_epoch_that_is_not_settled_is_captured_again(driver: Driver) -> None:
    driver.epoch(0)
    driver.made.plan(1)
    lost = driver.snapshotter.snapshot(1, 2)
    again = driver.snapshotter.snapshot(1, 2)
    assert [batch.key for batch in lost.batches] == ["checkpoints/batch-000002.lz4"]
    assert [batch.key for batch in again.batches] == ["checkpoints/batch-000002-part-0002.lz4"]
    assert lost.inherited == again.inherited
    stored = driver.stored()
    assert stored[lost.batches[0].key] == stored[again.batches[0].key] == ["commits/0", "offsets/1"]


def test_only_what_spark_may_rewrite_is_captured_again(driver: Driver) -> None:
    driver.epoch(0)
    driver.made.write("state/0/0/1.delta", b"one")
    driver.made.write("state/0/0/_metadata/schema", b"old")
    driver.epoch(1)
    driver.made.write("state/0/0/1.delta", b"two")  # by a driver that was taken over and has not noticed yet
    driver.made.write("state/0/0/_metadata/schema", b"new")
    driver.made.write("state/0/0/2.delta", b"new")
    driver.epoch(2)
    files = restored(driver.place, driver.load(2), driver.made.root.parent / "again")
    assert files["state/0/0/1.delta"] == b"one"
    assert files["state/0/0/_metadata/schema"] == b"new"


def test_an_object_with_the_right_bytes_is_not_written_again_from_wrong_ones(
    memory: MemoryPlace, tmp_path: Path
) -> None:
    """Although it is mostly dead: repacking would take what another driver has put in place of a final file."""
    driver = Driver(memory, tmp_path / "work")
    driver.made.write("sources/0/0", b"x")
    driver.made.write("state/0/0/1.delta", b"one")
    driver.epoch(0)
    driver.epoch(1)
    driver.made.write("state/0/0/1.delta", b"two")
    driver.made.write("state/0/0/2.delta", b"new")
    for batch in (2, 3, 4):
        driver.made.write(f"state/0/0/{batch + 1}.delta", b"new")
        driver.epoch(batch)
        files = restored(memory, driver.load(batch), tmp_path / f"again-{batch}")
        assert files["state/0/0/1.delta"] == b"one"
    difference = compare(driver.made.workdir, memory.objects, driver.load(4)).difference
    assert difference == "state/0/0/1.delta is not what was captured"


def test_going_on_after_a_restart(driver: Driver) -> None:
    state = HdfsState(driver.made, partitions=3)
    for batch in range(4):
        driver.epoch(batch, state)
    found = driver.load(3)
    comparison = compare(driver.made.workdir, driver.place.objects, found)
    assert comparison.difference is None
    driver.snapshotter = WorkdirSnapshotter(driver.made.workdir, driver.store)
    driver.snapshotter.begin(comparison.same, found.needed_batches)
    captured = driver.epoch(4, state)
    assert driver.stored()[captured.batches[0].key] == [
        "commits/3",
        "offsets/4",
        "state/0/0/4.delta",
        "state/0/1/4.delta",
        "state/0/2/4.delta",
    ]
    assert captured.inherited == found.needed_batches


def test_going_on_after_a_rebuild(driver: Driver) -> None:
    state = HdfsState(driver.made)
    for batch in range(4):
        driver.epoch(batch, state)
    found = driver.load(3)
    driver.made.lose()
    holders = restore(driver.made.workdir, driver.place.objects, found, OWNER)
    driver.snapshotter = WorkdirSnapshotter(driver.made.workdir, driver.store)
    driver.snapshotter.begin(holders, found.needed_batches)
    state.run(3)  # Spark runs the batch once more
    driver.made.commit(3)
    captured = driver.epoch(4, state)
    assert "state/0/0/3.delta" not in driver.stored()[captured.batches[0].key]
    assert driver.needed(4) == restored(driver.place, driver.load(4), driver.made.root.parent / "again")


# Letting old objects go


def held(size: int, key: str, entries: int) -> FileLocation:
    return FileLocation((BatchEntry(BatchObject(key, 1, "", entries), 0),), size, FileStamp(size, 0))


KIB = 1 << 10
REPACKED: list[tuple[str, dict[str, FileLocation], int, set[str]]] = [
    ("nothing", {}, 0, set()),
    ("all alive", {"a": held(1, "k", 1)}, 0, set()),
    ("half alive", {"a": held(1, "k", 2)}, 0, {"a"}),
    ("more than half alive", {"a": held(1, "k", 3), "b": held(1, "k", 3)}, 0, set()),
    ("up to the least", {"a": held(COMPACTED_AT_LEAST, "k", 9)}, 0, {"a"}),
    ("more than the least", {"a": held(COMPACTED_AT_LEAST + 1, "k", 9)}, 0, set()),
    ("a share of what is new", {"a": held(KIB * KIB, "k", 9)}, 20 * KIB * KIB, {"a"}),
    ("more than the share", {"a": held(KIB * KIB + 1, "k", 9)}, 20 * KIB * KIB, set()),
    ("an object goes whole or not", {"a": held(60 * KIB, "k", 9), "b": held(60 * KIB, "k", 9)}, 0, set()),
    ("small ones first", {"a": held(60 * KIB, "k", 9), "b": held(10 * KIB, "l", 9)}, 0, {"b"}),
    (
        "as many as fit",
        {"a": held(30 * KIB, "k", 9), "b": held(30 * KIB, "l", 9), "c": held(30 * KIB, "m", 9)},
        0,
        {"a", "b"},
    ),
]


@pytest.mark.parametrize(
    ("holdings", "new_bytes", "expected"), [case[1:] for case in REPACKED], ids=[case[0] for case in REPACKED]
)
def test_objects_with_little_that_is_needed_are_packed_again(
    holdings: dict[str, FileLocation], new_bytes: int, expected: set[str]
) -> None:
    assert choose_compaction(holdings, new_bytes) == expected


@given(
    st.lists(st.tuples(st.integers(0, 1 << 17), st.integers(0, 6), st.integers(0, 8)), max_size=25),
    st.integers(0, 1 << 24),
)
def test_repacking_keeps_to_its_budget(files: list[tuple[int, int, int]], new_bytes: int) -> None:
    groups: dict[int, list[int]] = {}
    for size, key, _ in files:
        groups.setdefault(key, []).append(size)
    extra = {key: dead for _, key, dead in files}
    holdings = {
        f"f{place}": held(size, f"k{key}", len(groups[key]) + extra[key]) for place, (size, key, _) in enumerate(files)
    }
    chosen = choose_compaction(holdings, new_bytes)
    assert sum(holdings[path].size for path in chosen) <= max(COMPACTED_AT_LEAST, new_bytes * COMPACTED_SHARE)
    for batch in {entry.batch for path in chosen for entry in holdings[path].entries}:
        alive = {path for path, holding in holdings.items() if holding.entries[0].batch.key == batch.key}
        assert alive <= chosen
        assert len(alive) <= batch.entries * MOSTLY_DEAD


def test_repacking_lets_the_first_object_go(place: StoreUnderTest, tmp_path: Path) -> None:
    driver = Driver(place, tmp_path / "work", max_retained=2)
    for batch in range(6):
        driver.epoch(batch)
    newest = driver.load(5)
    assert "checkpoints/batch-000001.lz4" not in {batch.key for batch in newest.needed_batches}
    assert "checkpoints/batch-000001.lz4" not in place.all_keys()
    assert restored(place, newest, tmp_path / "again") == driver.needed(5)


@pytest.mark.parametrize(
    ("medium", "kind"), [("memory", "stateless"), ("memory", "hdfs"), ("memory", "rocks"), ("local", "hdfs")]
)
def test_a_hundred_epochs(request: pytest.FixtureRequest, tmp_path: Path, medium: str, kind: str) -> None:
    place: StoreUnderTest = request.getfixturevalue(medium)
    driver = Driver(place, tmp_path / "work", max_retained=3)
    states: list[HdfsState | RocksState] = []
    if kind == "hdfs":
        states.append(HdfsState(driver.made, partitions=1, snapshot_every=5, keep=8))
    if kind == "rocks":
        states.append(RocksState(driver.made, size=300))
    for batch in range(100):
        driver.made.write(f"sources/0/{batch}", f"file {batch}")
        if batch % 10 == 9:
            driver.made.write(f"sources/0/{batch}.compact", f"files up to {batch}")
        captured = driver.epoch(batch, *states)
        listed = {batch_object.key for batch_object in [*captured.inherited, *captured.batches]}
        assert len(listed) <= 16
    assert place.open().list_ids() == [98, 99, 100]
    there = {key for key in place.all_keys() if key.endswith(".lz4")}
    assert there == {batch.key for number in (97, 98, 99) for batch in driver.load(number).needed_batches}
    for number in (97, 98, 99):
        assert place.open().validate_checkpoint(number + 1).valid
    expected = driver.needed(99)
    driver.made.lose()
    assert restored(place, driver.load(99), driver.made.root) == expected
    assert place.open_later().cleanup_orphans() == 0


def test_an_archive_that_nothing_needs_any_more_comes_along_in_an_old_object(driver: Driver) -> None:
    """Its object is kept for another file, the files that it refers to are gone. Two archives were not needed."""
    made = driver.made
    made.partitions = 1
    made.write("state/0/_metadata/metadata", operator_metadata("default", partitions=1))
    driver.epoch(0)
    made.write("state/0/0/SSTs/old.sst", b"o")
    made.write("state/0/0/1_a.zip", archive("old.sst"))
    driver.epoch(1)
    made.write("state/0/0/SSTs/large.sst", os.urandom(2 * COMPACTED_AT_LEAST))
    made.write("state/0/0/2_b.zip", archive("old.sst", "large.sst"))
    driver.epoch(2)
    made.write("state/0/0/SSTs/new.sst", b"n")
    made.write("state/0/0/3_c.zip", archive("new.sst", "large.sst"))
    for gone in ("1_a.zip", "2_b.zip", "SSTs/old.sst"):
        made.remove(f"state/0/0/{gone}")
    captured = driver.epoch(3)
    inherited = [path for batch in captured.inherited for path in driver.stored()[batch.key]]
    assert "state/0/0/2_b.zip" in inherited
    assert "state/0/0/SSTs/old.sst" not in inherited
    expected = driver.needed(3)
    assert compare(made.workdir, driver.place.objects, driver.load(3)).difference is None
    assert restored(driver.place, driver.load(3), made.root.parent / "again") == expected


def test_each_partition_has_its_own_version(memory: MemoryPlace, tmp_path: Path) -> None:
    """By the state that is captured: an aggregate over all rows has one partition, whatever the settings say."""
    driver = Driver(memory, tmp_path / "work")
    state = HdfsState(driver.made, partitions=3)
    versions = [driver.epoch(batch, state).partition_versions for batch in range(3)]
    assert versions == [[], [1, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize("partitions", [0, 2])
def test_the_compacted_log_of_a_source_travels_once(memory: MemoryPlace, tmp_path: Path, partitions: int) -> None:
    """It has every file that the source has ever read, and is replaced by the next one soon."""
    driver = Driver(memory, tmp_path / "work", max_retained=None)
    states = [HdfsState(driver.made, partitions=partitions)] if partitions else []
    for batch in range(32):
        name = f"{batch}.compact" if batch % 10 == 9 else f"{batch}"
        driver.made.write(f"sources/0/{name}", b"x" * 100 * (batch + 1))
        captured = driver.epoch(batch, *states)
        assert len(captured.inherited) <= 14
    written = [path for paths in driver.stored().values() for path in paths if path.endswith(".compact")]
    assert sorted(written) == [f"sources/0/{batch}.compact" for batch in (19, 29, 9)]
    assert restored(memory, driver.load(31), tmp_path / "again") == driver.needed(31)


# Without a listing


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One item for each time that a whole workdir is listed."""
    found: list[str] = []
    files = LocalDirectory.files
    monkeypatch.setattr(LocalDirectory, "files", lambda self: found.append("listed") or files(self))
    return found


@pytest.mark.parametrize("kind", ["stateless", "hdfs", "rocks"])
def test_most_epochs_need_no_listing(memory: MemoryPlace, tmp_path: Path, listings: list[str], kind: str) -> None:
    driver = Driver(memory, tmp_path / "work")
    states: list[HdfsState | RocksState] = []
    if kind != "stateless":
        states = [RocksState(driver.made) if kind == "rocks" else HdfsState(driver.made, snapshot_every=3, keep=5)]
    for batch in range(14):
        driver.made.write(f"sources/0/{batch}", f"file {batch}")
        driver.epoch(batch, *states)
        files = restored(memory, driver.load(batch), tmp_path / f"again-{batch}")
        assert files.keys() == without(driver.needed(batch), f"state/0/0/{batch + 1}.snapshot").keys()
    assert len(listings) == (2 if states else 1)  # the first epoch, and the first one that has state


def test_what_is_not_as_expected_is_listed(memory: MemoryPlace, tmp_path: Path, listings: list[str]) -> None:
    """Spark goes over to another kind of file: nothing is missed."""
    driver = Driver(memory, tmp_path / "work")
    made = driver.made
    made.partitions = 1
    made.write("state/0/_metadata/metadata", operator_metadata("default", partitions=1))
    driver.epoch(0)
    for batch, name in ((1, "1.delta"), (2, "2.delta"), (3, "3.snapshot"), (4, "4.delta")):
        made.write(f"state/0/0/{name}", f"state {batch}")
        listings.clear()
        driver.epoch(batch)
        assert bool(listings) == (batch != 2)
        assert restored(memory, driver.load(batch), tmp_path / f"again-{batch}") == driver.needed(batch)


# State that is not there


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lost", ["state/0/1", "state/0/0"])
def test_state_that_the_metadata_name_is_missed(memory: MemoryPlace, tmp_path: Path, batch: int, lost: str) -> None:
    """Also in the first epoch with state, when nothing of it has been captured before."""
    driver = Driver(memory, tmp_path / "work")
    state = HdfsState(driver.made)
    for number in range(batch):
        driver.epoch(number, state)
    driver.made.remove(f"{lost}/{batch}.delta")
    driver.made.plan(batch)
    with pytest.raises(Corrupt, match=f"{lost}, version {batch}") as found:
        driver.snapshotter.snapshot(batch, batch + 1)
    assert found.value.code == "workdir.incomplete"


@pytest.mark.parametrize("batch", [1, 2])
def test_state_that_nothing_describes_any_more_is_missed(memory: MemoryPlace, tmp_path: Path, batch: int) -> None:
    """Nothing would be demanded then: the state's files might be lost as well."""
    driver = Driver(memory, tmp_path / "work", is_stateful=True)
    state = HdfsState(driver.made)
    for number in range(batch):
        driver.epoch(number, state)
    driver.made.remove("state/0/_metadata/metadata")
    driver.made.plan(batch)
    with pytest.raises(Corrupt, match="the description of the query's state is not there") as found:
        driver.snapshotter.snapshot(batch, batch + 1)
    assert found.value.code == "workdir.incomplete"


def test_metadata_of_a_spark_to_come_are_refused(memory: MemoryPlace, tmp_path: Path) -> None:
    driver = Driver(memory, tmp_path / "work")
    driver.made.write("state/0/_metadata/metadata", operator_metadata("default", version="v3"))
    driver.epoch(0)
    driver.made.plan(1)
    with pytest.raises(Invalid) as found:
        driver.snapshotter.snapshot(1, 2)
    assert found.value.code == "workdir.log-format"


# Files that come and go while they are captured


class Packings:
    """A packing that does something first, each time it is called."""

    def __init__(self, *actions: Any) -> None:
        self._actions = iter(actions)
        self.calls = 0

    def __call__(
        self, store: CheckpointStore, workdir: LocalWorkdir, files: Mapping[str, int], epoch: int
    ) -> dict[str, Entries]:
        self.calls += 1
        next(self._actions, lambda: None)()
        return pack_on_driver(store, workdir, files, epoch)


def with_chain(driver: Driver) -> None:
    """Three epochs of which nothing has been captured yet."""
    for number in (1, 2, 3):
        driver.made.plan(number)
        driver.made.commit(number - 1)
        driver.made.write(f"state/0/0/{number}.delta", f"delta {number}")


def test_a_file_that_is_cleaned_up_meanwhile(driver: Driver) -> None:
    with_chain(driver)

    def clean_up() -> None:
        driver.made.write("state/0/0/3.snapshot", b"snapshot 3")
        driver.made.remove("state/0/0/1.delta")

    packing = Packings(clean_up)
    captured = WorkdirSnapshotter(driver.made.workdir, driver.store, packing).snapshot(3, 4)
    assert packing.calls == 2
    assert captured.locations.keys() == driver.needed(3).keys()
    assert "state/0/0/3.snapshot" in captured.locations


def test_a_file_that_is_really_gone(driver: Driver) -> None:
    with_chain(driver)
    path = driver.made.root / "state/0/0/3.delta"

    def lose() -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    packing = Packings(*[lose] * 9)
    with pytest.raises(Corrupt) as refused:
        WorkdirSnapshotter(driver.made.workdir, driver.store, packing).snapshot(3, 4)
    assert refused.value.code == "workdir.incomplete"
    assert str(path) in refused.value.message
    assert 1 < packing.calls < 9


def rewrite_archive(driver: Driver, *names: str) -> None:
    """Another attempt at the same task uploads its snapshot of the same version."""
    for name in names:
        driver.made.write(f"state/0/0/SSTs/{name}", name.encode() * 9)
    driver.made.write("state/0/0/1.zip", archive(*names))


def test_an_archive_that_another_attempt_has_written_again(driver: Driver) -> None:
    """Its files come along: the old archive with them would be a state that never was."""
    driver.epoch(0, RocksState(driver.made))
    driver.epoch(1)
    driver.made.write("state/0/0/2.changelog", b"what batch 1 changed")
    first = driver.made.root / "state/0/0/SSTs/000001-uuid.sst"
    rewrite_archive(driver, "000009-late.sst")
    first.unlink()
    driver.epoch(2)
    driver.made.write("state/0/0/3.changelog", b"what batch 2 changed")
    driver.epoch(3)
    for batch in (2, 3):
        files = restored(driver.place, driver.load(batch), driver.made.root.parent / f"again-{batch}")
        assert files["state/0/0/1.zip"] == archive("000009-late.sst")
        assert [path for path in files if "/SSTs/" in path] == ["state/0/0/SSTs/000009-late.sst"]


def test_an_archive_that_is_written_again_while_it_is_captured(driver: Driver) -> None:
    driver.epoch(0, RocksState(driver.made))
    driver.made.plan(1)
    packing = Packings(lambda: rewrite_archive(driver, "000009-late.sst"))
    captured = WorkdirSnapshotter(driver.made.workdir, driver.store, packing).snapshot(1, 2)
    assert packing.calls == 2
    assert "state/0/0/SSTs/000009-late.sst" in captured.locations


def test_a_file_in_parts_that_is_written_again_while_it_is_captured(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is read by itself: at the same size they would be a mixture."""
    monkeypatch.setattr(entries, "PART_BYTES", 1000)
    driver.epoch(0)
    old, new = b"a" * 3500, b"b" * 3500
    driver.made.write("state/0/0/1.snapshot", old)
    driver.made.plan(1)
    reads = LocalDirectory.read_range
    replaced: list[str] = []

    def read_range(directory: LocalDirectory, path: str, start: int, length: int) -> tuple[bytes, int]:
        if start and not replaced:
            replaced.append(path)
            driver.made.write(path, new)
        return reads(directory, path, start, length)

    monkeypatch.setattr(LocalDirectory, "read_range", read_range)
    captured = driver.snapshotter.snapshot(1, 2)
    assert replaced == ["state/0/0/1.snapshot"]
    files = restored(driver.place, driver.save(1, captured), driver.made.root.parent / "again")
    assert files["state/0/0/1.snapshot"] == new


def test_a_shared_file_that_is_missing(driver: Driver) -> None:
    driver.made.plan(1)
    driver.made.write("state/0/0/1.zip", archive("1-a.sst"))
    with pytest.raises(Corrupt) as refused:
        driver.snapshotter.snapshot(1, 2)
    assert refused.value.code == "workdir.incomplete"
    assert "1-a.sst" in refused.value.message
    assert str(driver.made.root) in refused.value.message
    assert "rebuilt" in (refused.value.next_step or "")
    assert driver.stored() == {}


def test_a_damaged_archive(driver: Driver) -> None:
    driver.made.plan(1)
    driver.made.write("state/0/0/1.zip", archive("1-a.sst")[:-30])
    with pytest.raises(Corrupt) as refused:
        driver.snapshotter.snapshot(1, 2)
    assert refused.value.code == "workdir.incomplete"


def test_an_archive_is_read_once(driver: Driver) -> None:
    state = RocksState(driver.made)
    for batch in range(3):
        driver.epoch(batch, state)
    driver.made.plan(3)
    path = driver.made.root / "state/0/0/3.zip"
    driver.snapshotter.snapshot(3, 4)
    when = path.stat().st_mtime_ns
    whole = path.read_bytes()
    path.write_bytes(b"\x00" * len(whole))
    os.utime(path, ns=(when, when))
    driver.snapshotter.snapshot(3, 4)  # as it looks, it is the same
