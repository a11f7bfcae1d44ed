"""From a workdir into a store and back: what is written, what is inherited, what is let go, and what is refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CheckpointManifest, CheckpointStore
from holdfast.base.steps import observe
from holdfast.checkpoints import CheckpointBatcher, read_batch
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection
from holdfast.errors import Corrupt, HoldfastError
from holdfast.pipeline.workdir.addresses import ROOT_MARK
from holdfast.pipeline.workdir.owner import OWNER_FILE
from holdfast.pipeline.workdir.pack import pack_on_driver
from holdfast.pipeline.workdir.restore import compare, restore
from holdfast.pipeline.workdir.snapshot import (
    COMPACTED_AT_LEAST,
    COMPACTED_SHARE,
    MOSTLY_DEAD,
    FileLocation,
    Snapshot,
    WorkdirSnapshotter,
    choose_compaction,
)
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.sparkdir.state_files import files_for_batch
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace
from workdir_files import OWNER, HandMade, HdfsState, RocksState, archive


class Driver:
    """Captures and saves a checkpoint for every batch of a workdir made by hand."""

    def __init__(self, place: StoreUnderTest, root: Path, *, max_retained: int | None = None) -> None:
        self.place = place
        self.store = place.open(max_retained=max_retained)
        self.made = HandMade(root)
        self.made.begin()
        self.snapshotter = WorkdirSnapshotter(self.made.workdir, self.store)
        self.newest: CheckpointManifest | None = None

    def epoch(self, batch_id: int, *states: HdfsState | RocksState) -> Snapshot:
        """What is there when a batch begins, the snapshotter, the checkpoint, and then what the batch writes."""
        self.made.plan(batch_id)
        for state in states:
            state.plan(batch_id)
        captured = self.snapshotter.snapshot(batch_id, batch_id + 1)
        self.save(batch_id, captured)
        self.snapshotter.confirm(captured)
        for state in states:
            state.run(batch_id)
        self.made.commit(batch_id)
        return captured

    def save(self, batch_id: int, captured: Snapshot) -> CheckpointManifest:
        is_child = bool(captured.inherited)
        found = manifest(
            batch_id + 1,
            wal_position=batch_id,
            is_incremental=is_child,
            parent_id=batch_id if is_child else None,
            holdfast=HoldfastSection(batches=captured.batches, inherited=captured.inherited),
        )
        self.store.save(found)
        self.newest = found
        return found

    def load(self, batch_id: int) -> CheckpointManifest:
        found = self.place.open().load_by_id(batch_id + 1)
        assert found is not None
        return found

    def stored(self) -> dict[str, list[str]]:
        """Every batch object there is, and the files in it."""
        keys = [key for key in self.place.all_keys() if key.endswith(".lz4")]
        return {key: list(read_batch(self.place.objects, key).keys()) for key in keys}

    def needed(self, batch_id: int) -> dict[str, bytes]:
        """What running a batch needs of the workdir as it is."""
        files = self.made.files()
        return {path: files[path] for path in files_for_batch(files, batch_id, files.__getitem__)}


@pytest.fixture
def driver(place: StoreUnderTest, tmp_path: Path) -> Driver:
    return Driver(place, tmp_path / "work")


def rebuilt(place: StoreUnderTest, found: CheckpointManifest, root: Path) -> dict[str, bytes]:
    made = HandMade(root)
    restore(made.workdir, place.objects, found, OWNER)
    assert made.workdir.owner() == OWNER
    return made.files()


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
    files = rebuilt(driver.place, driver.load(2), driver.made.root.parent / "again")
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
        files = rebuilt(memory, driver.load(batch), tmp_path / f"again-{batch}")
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
    assert driver.needed(4) == rebuilt(driver.place, driver.load(4), driver.made.root.parent / "again")


# Round trips


@pytest.mark.parametrize("kind", ["hdfs", "rocks", "both"])
def test_every_epoch_can_be_rebuilt(driver: Driver, kind: str, tmp_path: Path) -> None:
    states: list[HdfsState | RocksState] = []
    if kind != "rocks":
        states.append(HdfsState(driver.made, snapshot_every=3, keep=5))
    if kind != "hdfs":
        states.append(RocksState(driver.made))
    for batch in range(9):
        driver.made.write(f"sources/0/{batch}", f"file {batch}")
        if batch % 5 == 4:
            driver.made.write(f"sources/0/{batch}.compact", f"files up to {batch}")
        driver.epoch(batch, *states)
        files = driver.made.files()
        expected = {path: files[path] for path in files_for_batch(files, batch, files.__getitem__)}
        expected.pop(f"commits/{batch}", None)
        found = driver.load(batch)
        assert compare(driver.made.workdir, driver.place.objects, found).difference is None
        assert rebuilt(driver.place, found, tmp_path / f"again-{batch}").keys() == expected.keys()
        assert driver.place.open().validate_checkpoint(batch + 1).valid
    again = HandMade(tmp_path / "work")
    kept = again.files()
    again.lose()
    assert rebuilt(driver.place, driver.load(8), tmp_path / "work") == {
        path: kept[path] for path in files_for_batch(kept, 8, kept.__getitem__)
    }


def test_a_rebuilt_workdir_is_what_was_captured(driver: Driver, tmp_path: Path) -> None:
    state = RocksState(driver.made)
    for batch in range(6):
        driver.epoch(batch, state)
    found = driver.load(5)
    again = Workdir(tmp_path / "again")
    holders = restore(again, driver.place.objects, found, OWNER)
    comparison = compare(again, driver.place.objects, found)
    assert comparison.difference is None
    assert comparison.same == holders


def test_at_another_place_addresses_are_its_own(driver: Driver, tmp_path: Path) -> None:
    driver.epoch(0, RocksState(driver.made))
    path = "state/0/_metadata/v2/0"
    assert bytes(driver.made.workdir.path) in driver.made.files()[path]
    stored = read_batch(driver.place.objects, "checkpoints/batch-000001.lz4")
    assert bytes(stored.read(path)) == b'v2\n{"stateSchemaFilePath":"' + ROOT_MARK + b'/state/0/schema"}'
    moved = tmp_path / "another place" / "work"
    files = rebuilt(driver.place, driver.load(0), moved)
    assert b"file:" + bytes(moved) + b"/state/0/schema" in files[path]
    assert bytes(driver.made.workdir.path) + b"/" not in files[path]


# The comparison


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("state/0/0/2.delta", "state/0/0/2.delta is not what was captured"),
        ("offsets/3", "offsets/3 is not what was captured"),
        ("metadata", "metadata is not what was captured"),
        ("state/0/_metadata/metadata", "state/0/_metadata/metadata is not what was captured"),
    ],
)
def test_a_difference(driver: Driver, path: str, said: str) -> None:
    state = HdfsState(driver.made)
    for batch in range(4):
        driver.epoch(batch, state)
    (driver.made.root / path).write_bytes(b"something else")
    comparison = compare(driver.made.workdir, driver.place.objects, driver.load(3))
    assert comparison.difference == said
    assert path not in comparison.same
    assert comparison.same.keys() | {path} == driver.needed(3).keys()


def test_what_is_missing_is_a_difference(driver: Driver) -> None:
    state = HdfsState(driver.made)
    for batch in range(4):
        driver.epoch(batch, state)
    driver.made.remove("state/0/1/3.delta")
    difference = compare(driver.made.workdir, driver.place.objects, driver.load(3)).difference
    assert difference == "state/0/1/3.delta cannot be read: No such file or directory"


def test_what_is_not_needed_may_differ(driver: Driver) -> None:
    state = HdfsState(driver.made)
    for batch in range(4):
        driver.epoch(batch, state)
    driver.made.remove("offsets/0")
    (driver.made.root / "state/0/0/4.delta").write_bytes(b"of the batch that is run again")
    (driver.made.root / "commits/3").unlink()
    assert compare(driver.made.workdir, driver.place.objects, driver.load(3)).difference is None


# Letting old objects go


def held(size: int, key: str, entries: int) -> FileLocation:
    return FileLocation(BatchObject(key, 1, "", entries), size, (size, 0))


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
def test_repacked(holdings: dict[str, FileLocation], new_bytes: int, expected: set[str]) -> None:
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
    for key in {holdings[path].batch.key for path in chosen}:
        alive = {path for path, holding in holdings.items() if holding.batch.key == key}
        assert alive <= chosen
        assert len(alive) <= holdings[next(iter(alive))].batch.entries * MOSTLY_DEAD


def test_repacking_lets_the_first_object_go(place: StoreUnderTest, tmp_path: Path) -> None:
    driver = Driver(place, tmp_path / "work", max_retained=2)
    for batch in range(6):
        driver.epoch(batch)
    newest = driver.load(5)
    assert "checkpoints/batch-000001.lz4" not in {batch.key for batch in newest.needed_batches}
    assert "checkpoints/batch-000001.lz4" not in place.all_keys()
    assert rebuilt(place, newest, tmp_path / "again") == driver.needed(5)


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
    assert rebuilt(place, driver.load(99), driver.made.root) == expected
    assert place.open_later().cleanup_orphans() == 0


# Files that come and go while they are captured


class Packings:
    """A packing that does something first, each time it is called."""

    def __init__(self, *actions: Any) -> None:
        self._actions = iter(actions)
        self.calls = 0

    def __call__(
        self, store: CheckpointStore, workdir: Workdir, files: Mapping[str, int], epoch: int
    ) -> dict[str, BatchObject]:
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


# Checkpoints that cannot be rebuilt from


def planted(place: StoreUnderTest, *batches: Mapping[str, bytes], wal_position: int = 0) -> CheckpointManifest:
    """A checkpoint whose batch objects hold these entries, each object after the other."""
    store = place.open(max_retained=None)
    batcher = CheckpointBatcher(store)
    objects = []
    for entries in batches:
        for path, data in entries.items():
            batcher.add(path, data)
        batch = batcher.flush(1)
        assert batch is not None
        objects.append(batch)
    found = manifest(1, wal_position=wal_position, holdfast=HoldfastSection(batches=objects))
    store.save(found)
    return found


WHOLE = {"metadata": b'{"id":"q"}', "offsets/0": b"v1\n{}\n0"}
HOSTILE = [
    *("../outside", "state/../../outside", "/etc/outside", "state//x", "state/", "", ".", "state/./x"),
    *("state\\x", "state/a\0b", "state/" + "x" * 300, "/".join(["state", *["d" * 200] * 30])),
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:24])
def test_hostile_names_are_refused(memory: MemoryPlace, tmp_path: Path, name: str) -> None:
    found = planted(memory, WHOLE | {name: b"mine now"})
    made = HandMade(tmp_path / "deep" / "work")
    made.begin()
    before = made.files()
    with pytest.raises(Corrupt) as refused:
        restore(made.workdir, memory.objects, found, OWNER)
    assert "checkpoints/batch-000001.lz4" in str(refused.value)
    assert made.files() == before
    assert os.listdir(tmp_path) == ["deep"]
    assert os.listdir(tmp_path / "deep") == ["work"]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:24])
def test_hostile_names_are_not_read_either(memory: MemoryPlace, tmp_path: Path, name: str) -> None:
    found = planted(memory, WHOLE | {name: b"mine now"})
    made = HandMade(tmp_path / "work")
    made.begin()
    made.write("metadata", WHOLE["metadata"])
    made.write("offsets/0", WHOLE["offsets/0"])
    try:
        comparison = compare(made.workdir, memory.objects, found)
    except HoldfastError:
        return
    assert comparison.same.keys() <= WHOLE.keys()


@pytest.mark.parametrize(
    "batches",
    [
        ({**WHOLE, "state/0/x": b"file", "state/0/x/y": b"below a file"},),
        ({**WHOLE, "state/0/x/y": b"file"}, {"state/0/x": b"instead of a directory"}),
        ({**WHOLE, "offsets/0/x": b"below a log"},),
    ],
)
def test_names_that_exclude_each_other_are_refused(
    memory: MemoryPlace, tmp_path: Path, batches: tuple[dict[str, bytes], ...]
) -> None:
    found = planted(memory, *batches)
    with pytest.raises(Corrupt):
        restore(Workdir(tmp_path / "work"), memory.objects, found, OWNER)
    assert os.listdir(tmp_path) == []


def test_hidden_entries_do_not_get_in(memory: MemoryPlace, tmp_path: Path) -> None:
    found = planted(memory, WHOLE | {OWNER_FILE: b'{"pipeline":"theirs","store":"x"}', "state/.x/y": b"", ".a": b""})
    restore(Workdir(tmp_path / "work"), memory.objects, found, OWNER)
    assert Workdir(tmp_path / "work").owner() == OWNER
    assert not (tmp_path / "work/.a").exists()
    assert not (tmp_path / "work/state/.x/y").exists()


@pytest.mark.parametrize("missing", ["metadata", "offsets/0"])
def test_without_what_spark_cannot_do_without(memory: MemoryPlace, tmp_path: Path, missing: str) -> None:
    found = planted(memory, {path: data for path, data in WHOLE.items() if path != missing})
    with pytest.raises(Corrupt) as refused:
        restore(Workdir(tmp_path / "work"), memory.objects, found, OWNER)
    assert refused.value.code == "checkpoint.incomplete"
    assert missing in refused.value.message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "gone"])
def test_damaged_batches(place: StoreUnderTest, tmp_path: Path, damage: str) -> None:
    found = planted(place, WHOLE, {"state/0/0/1.delta": b"x" * 500}, {"state/0/1/1.delta": b"y" * 500})
    key = found.own.batches[1].key
    body = place.read(key)
    if damage == "gone":
        place.objects.delete([key])
    elif damage == "flip":
        place.damage(key)
    else:
        place.overwrite(key, {"cut": body[:-1], "grow": body + b"\0"}[damage])
    made = HandMade(tmp_path / "work")
    made.begin()
    for act in (
        lambda: restore(made.workdir, place.objects, found, OWNER),
        lambda: compare(made.workdir, place.objects, found),
    ):
        with pytest.raises(HoldfastError) as refused:
            act()
        assert key in str(refused.value)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert made.files().keys() == {"metadata"}


def test_later_objects_replace_what_earlier_ones_hold(memory: MemoryPlace, tmp_path: Path) -> None:
    found = planted(memory, WHOLE | {"offsets/0": b"a longer text than the one that counts"}, {"offsets/0": b"v1"})
    assert rebuilt(memory, found, tmp_path / "work")["offsets/0"] == b"v1"
    assert compare(Workdir(tmp_path / "work"), memory.objects, found).difference is None


# A rebuild that is interrupted


class Killed(BaseException):
    pass


def interrupted_at(number: int) -> Iterator[list[str]]:
    """Ends the process at one event of a step, as far as a test can."""
    seen: list[str] = []

    def observer(name: str, phase: str, _: float) -> None:
        seen.append(f"{name} {phase}")
        if len(seen) - 1 == number:
            raise Killed

    stop = observe(observer)
    try:
        yield seen
    finally:
        stop()


def test_an_interrupted_rebuild_leaves_the_old_none_or_the_new(
    memory: MemoryPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planted(memory, WHOLE)
    place = tmp_path / "here"
    outcomes = []
    for number in range(7):
        made = HandMade(place / "work")
        made.begin()
        old = made.files()
        monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # a process that has ended cleans nothing up
        for seen in interrupted_at(number):
            try:
                restore(made.workdir, memory.objects, found, OWNER)
                outcomes.append("done")
            except Killed:
                left = made.files() if made.root.exists() else None
                outcomes.append(f"{seen[-1]}: {({str(old): 'old', str(WHOLE): 'new'}).get(str(left), 'none')}")
        monkeypatch.undo()
        made.workdir.sweep()
        assert os.listdir(place) in ([], ["work"])
        restore(made.workdir, memory.objects, found, OWNER)
        assert made.files() == WHOLE
        made.workdir.discard()
        assert os.listdir(place) == []
    assert outcomes == [
        "workdir.fill begin: old",
        "workdir.fill end: old",
        "workdir.discard begin: old",
        "workdir.discard end: none",
        "workdir.publish begin: none",
        "workdir.publish end: new",
        "done",
    ]


def test_a_disk_that_runs_full_publishes_nothing(memory: MemoryPlace, tmp_path: Path) -> None:
    """A write may take a part of the bytes and raise nothing."""
    found = planted(memory, WHOLE | {"state/0/0/1.delta": bytes(20_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises((OSError, HoldfastError)):
            restore(Workdir(tmp_path / "work"), memory.objects, found, OWNER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []
