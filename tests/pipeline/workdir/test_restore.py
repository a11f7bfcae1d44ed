"""From a checkpoint back to a workdir, and a workdir held against a checkpoint: what is restored, what is refused."""

from __future__ import annotations

import io
import os
import resource
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from snapshots import Driver, names_in, restored

from holdfast import CheckpointManifest
from holdfast.base.steps import observe
from holdfast.checkpoints import CheckpointBatcher, read_batch
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.errors import Corrupt, HoldfastError
from holdfast.pipeline.query.description import RECORDED, Description, StatefulOperator
from holdfast.pipeline.workdir.addresses import ROOT_MARK
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.owner import OWNER_FILE
from holdfast.pipeline.workdir.restore import Completeness, compare, restore
from holdfast.sparkdir.state_files import UNDESCRIBED, files_for_batch
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace
from workdir_files import OWNER, HandMade, HdfsState, RocksState, archive, commit_log, offset_log, operator_metadata

# Round trips


@pytest.mark.parametrize("kind", ["hdfs", "rocks", "both"])
def test_every_epoch_can_be_restored(driver: Driver, kind: str, tmp_path: Path) -> None:
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
        expected = {path: files[path] for path in files_for_batch(files, batch, names_in(files))}
        expected.pop(f"commits/{batch}", None)
        found = driver.load(batch)
        assert compare(driver.made.workdir, driver.place.objects, found).difference is None
        assert restored(driver.place, found, tmp_path / f"again-{batch}").keys() == expected.keys()
        assert driver.place.open().validate_checkpoint(batch + 1).valid
    again = HandMade(tmp_path / "work")
    kept = again.files()
    again.lose()
    assert restored(driver.place, driver.load(8), tmp_path / "work") == {
        path: kept[path] for path in files_for_batch(kept, 8, names_in(kept))
    }


def test_a_rebuilt_workdir_is_what_was_captured(driver: Driver, tmp_path: Path) -> None:
    state = RocksState(driver.made)
    for batch in range(6):
        driver.epoch(batch, state)
    found = driver.load(5)
    again = LocalWorkdir(tmp_path / "again")
    holders = restore(again, driver.place.objects, found, OWNER)
    comparison = compare(again, driver.place.objects, found)
    assert comparison.difference is None
    assert comparison.same == holders


def test_at_another_place_addresses_are_its_own(driver: Driver, tmp_path: Path) -> None:
    driver.epoch(0, RocksState(driver.made))
    path = "state/0/_metadata/v2/0"
    assert bytes(driver.made.workdir.path) in driver.made.files()[path]
    stored = read_batch(driver.place.objects, "checkpoints/batch-000001.lz4")
    assert b'"' + ROOT_MARK + b'/state/0/schema"' in bytes(stored.read(path))
    assert bytes(driver.made.workdir.path) not in bytes(stored.read(path))
    moved = tmp_path / "another place" / "work"
    files = restored(driver.place, driver.load(0), moved)
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


# Checkpoints that cannot be restored


def planted(
    place: StoreUnderTest, *batches: Mapping[str, bytes], wal_position: int = 0, **runtime: Any
) -> CheckpointManifest:
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
    found = manifest(1, wal_position=wal_position, holdfast=HoldfastSection(batches=objects, runtime=runtime))
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
        restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
    assert os.listdir(tmp_path) == []


def test_hidden_entries_do_not_get_in(memory: MemoryPlace, tmp_path: Path) -> None:
    found = planted(memory, WHOLE | {OWNER_FILE: b'{"pipeline":"theirs","store":"x"}', "state/.x/y": b"", ".a": b""})
    restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
    assert LocalWorkdir(tmp_path / "work").owner() == OWNER
    assert not (tmp_path / "work/.a").exists()
    assert not (tmp_path / "work/state/.x/y").exists()


@pytest.mark.parametrize("missing", ["metadata", "offsets/0"])
def test_without_what_spark_cannot_do_without(memory: MemoryPlace, tmp_path: Path, missing: str) -> None:
    found = planted(memory, {path: data for path, data in WHOLE.items() if path != missing})
    with pytest.raises(Corrupt) as refused:
        restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
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
    assert restored(memory, found, tmp_path / "work")["offsets/0"] == b"v1"
    assert compare(LocalWorkdir(tmp_path / "work"), memory.objects, found).difference is None


# Memory

ARCHIVE = 4 << 20
ARCHIVES = 8


@pytest.fixture
def archives(memory: MemoryPlace) -> CheckpointManifest:
    """A checkpoint of an earlier release with a large archive in each batch object; the newest one counts."""
    body = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive())) as small, zipfile.ZipFile(body, "w") as large:
        large.writestr("MANIFEST-000005", os.urandom(ARCHIVE))
        large.writestr("metadata", small.read("metadata"))
    files = WHOLE | {"offsets/0": offset_log(partitions=1).encode(), "offsets/1": offset_log(partitions=1).encode()}
    files |= {
        "commits/0": commit_log().encode(),
        "state/0/_metadata/metadata": operator_metadata("default", partitions=1).encode(),
    }
    states = [{f"state/0/{partition}/1.zip": body.getvalue()} for partition in range(ARCHIVES)]
    return planted(memory, files, *states, wal_position=1)


def peak_of(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_comparison_keeps_no_archives(memory: MemoryPlace, archives: CheckpointManifest, tmp_path: Path) -> None:
    made = HandMade(tmp_path / "work")
    made.begin()
    assert peak_of(lambda: compare(made.workdir, memory.objects, archives)) < ARCHIVES * ARCHIVE


def test_a_search_for_what_is_missing_keeps_no_archives(memory: MemoryPlace, archives: CheckpointManifest) -> None:
    search = Completeness(memory.objects)
    assert peak_of(lambda: search.missing_in(archives)) < ARCHIVES * ARCHIVE / 2
    assert search.missing_in(archives) == []


def test_no_archive_is_looked_into_where_the_entries_are_recorded(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RocksState(driver.made)
    for batch in range(3):
        driver.epoch(batch, state)
    found = driver.load(2)
    assert isinstance(found.own.live, dict)
    monkeypatch.delattr("holdfast.pipeline.workdir.restore.referred_names")
    assert compare(driver.made.workdir, driver.place.objects, found).difference is None


@pytest.mark.parametrize("is_needed", [False, True])
def test_an_archive_that_cannot_be_read(memory: MemoryPlace, tmp_path: Path, is_needed: bool) -> None:
    """It is damage where Spark would load it, and nothing otherwise."""
    version = 0 if is_needed else 5
    found = planted(memory, WHOLE | {f"state/0/0/{version}.zip": b"not an archive"})
    made = HandMade(tmp_path / "work")
    made.begin()
    for act in (
        lambda: Completeness(memory.objects).missing_in(found),
        lambda: compare(made.workdir, memory.objects, found),
        lambda: restore(LocalWorkdir(tmp_path / "again"), memory.objects, found, OWNER),
    ):
        if is_needed:
            with pytest.raises(Corrupt, match=r"state/0/0/0\.zip is not a snapshot archive"):
                act()
        else:
            act()


def test_an_archive_and_the_files_of_another_one(memory: MemoryPlace, tmp_path: Path) -> None:
    """Whether or not a checkpoint records its entries: Spark would load a state that never was, or nothing."""
    files = WHOLE | {
        "offsets/0": offset_log(partitions=1).encode(),
        "offsets/1": offset_log(partitions=1).encode(),
        "commits/0": commit_log().encode(),
        "state/0/_metadata/metadata": operator_metadata("default", partitions=1).encode(),
        "state/0/0/1.zip": archive("000001-one.sst"),
        "state/0/0/SSTs/000002-two.sst": b"two",
    }
    found = planted(memory, files, wal_position=1)
    found = replace(found, holdfast=replace(found.own, live={}))
    assert Completeness(memory.objects).missing_in(found) == ["state/0/0/SSTs/000001-one.sst"]
    with pytest.raises(Corrupt, match=r"does not hold state/0/0/SSTs/000001-one\.sst") as refused:
        restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
    assert refused.value.code == "checkpoint.incomplete"
    assert not (tmp_path / "work").exists()


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
            restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_without_state_that_an_operator_has(memory: MemoryPlace, tmp_path: Path) -> None:
    """A checkpoint of an earlier release that passed as whole: Spark would fail on it, or begin with no state."""
    files = {
        "metadata": b"{}",
        "offsets/0": offset_log(partitions=2).encode(),
        "offsets/1": offset_log(partitions=2).encode(),
        "commits/0": commit_log().encode(),
        "state/0/_metadata/metadata": operator_metadata("default").encode(),
        "state/0/0/1.delta": b"x",
    }
    with pytest.raises(Corrupt, match="state/0/1, version 1") as refused:
        restore(LocalWorkdir(tmp_path / "work"), memory.objects, planted(memory, files, wal_position=1), OWNER)
    assert refused.value.code == "checkpoint.incomplete"
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("has_state", [True, False])
def test_without_anything_that_describes_the_state(memory: MemoryPlace, tmp_path: Path, has_state: bool) -> None:
    """The checkpoint says that its query keeps state, so what is missing is not only a description."""
    state = [StatefulOperator("aggregation")] if has_state else []
    description = Description(
        spark="4.1.0",
        sources=[],
        plan=[],
        plan_fingerprint="",
        state=state,
        output_mode="update",
        columns="",
        sinks={},
    )
    files = {
        "metadata": b"{}",
        "offsets/0": offset_log().encode(),
        "offsets/1": offset_log().encode(),
        "commits/0": commit_log().encode(),
    }
    found = planted(memory, files, wal_position=1, **{RECORDED: description.recorded({})})
    assert Completeness(memory.objects).missing_in(found) == ([UNDESCRIBED] if has_state else [])
    if has_state:
        with pytest.raises(Corrupt, match="does not hold state/0/_metadata") as refused:
            restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
        assert refused.value.code == "checkpoint.incomplete"
    else:
        restore(LocalWorkdir(tmp_path / "work"), memory.objects, found, OWNER)
