"""A workdir that is as it was when its query ended is not read; one that is not, or may not be, is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from snapshots import Driver

from holdfast.pipeline.recovery import observe, unchanged_checkpoint
from holdfast.pipeline.recovery_plan import Observation
from holdfast.pipeline.workdir import local
from holdfast.pipeline.workdir.stamps import remove_stamps
from holdfast.pipeline.workdir.workdir import STAMPS
from holdfast.storage.objects import CloudObjects
from holdfast.storage.objects.infos import FEW
from holdfast.storage.objects.local import LocalObjects
from places import LocalPlace, MemoryPlace
from workdir_files import HdfsState


class Ended:
    """A pipeline whose query has ended after four epochs, and its next start."""

    def __init__(self, place: LocalPlace, root: Path) -> None:
        self.place = place
        self.root = root
        self.driver = Driver(place, root)
        self.made = self.driver.made
        state = HdfsState(self.made)
        for batch in range(4):
            self.driver.epoch(batch, state)
        self.read: list[str] = []

    def leave_stamps(self, *, is_clean: bool = True) -> None:
        self.driver.snapshotter.leave_stamps(self.driver.load(3), is_clean=is_clean)

    def start(self) -> Observation:
        """What the next start sees; `read` has the batch objects that it has read then."""
        self.read.clear()
        return observe(self.place.open(), self.made.workdir)

    def is_compared(self) -> bool:
        """Whether the next start reads what the checkpoint holds."""
        self.start()
        return bool(self.read)


@pytest.fixture
def ended(local: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    found = Ended(local, tmp_path / "work")
    stream = LocalObjects.stream

    def counted(self: LocalObjects, key: str, **bounds: Any) -> Iterator[Any]:
        found.read.append(key)
        return stream(self, key, **bounds)

    monkeypatch.setattr(LocalObjects, "stream", counted)
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# A clean end


@pytest.mark.parametrize("is_clean", [True, False])
def test_nothing_is_read(ended: Ended, is_clean: bool) -> None:
    """Also after a failure: what was captured is vouched for all the same."""
    before = ended.start()
    assert ended.read
    ended.leave_stamps(is_clean=is_clean)
    assert ended.start() == before
    assert ended.read == []
    assert before.workdir.problem is None


def test_what_spark_wrote_since_is_not_read_either(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    ended.leave_stamps()
    newer = ended.made.workdir.spark_checkpoint
    assert {"commits/3", "state/0/0/4.delta"} <= {path for path, _ in newer.files()}
    read: list[str] = []
    monkeypatch.setattr(
        "holdfast.sparkdir.checkpoint.matches_checksum", lambda data, checksum: bool(read.append("one")) or True
    )
    assert ended.start().workdir.problem is None
    assert read == []


def test_the_stamps_go_before_spark_comes(ended: Ended) -> None:
    """So there are none if it is killed."""
    ended.leave_stamps()
    remove_stamps(ended.made.workdir)
    assert ended.is_compared()
    assert not (ended.root / STAMPS).exists()


def test_the_next_query_leaves_its_own(ended: Ended) -> None:
    ended.leave_stamps()
    held = ended.start().held
    remove_stamps(ended.made.workdir)
    ended.driver.snapshotter.begin(held, ended.driver.load(3).needed_batches)
    ended.driver.snapshotter.leave_stamps(ended.driver.load(3), is_clean=True)
    assert not ended.is_compared()


# Whatever is not as it was is compared


CHANGES: dict[str, Callable[[Path], None]] = {
    "a captured file flipped": lambda root: flip(root / "state/0/0/2.delta"),
    "a captured file gone": lambda root: (root / "state/0/1/1.delta").unlink(),
    "a log edited": lambda root: flip(root / "offsets/3"),
    "metadata emptied": lambda root: os.truncate(root / "metadata", 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_damage_is_found(ended: Ended, change: str) -> None:
    ended.leave_stamps()
    CHANGES[change](ended.root)
    assert ended.start().workdir.problem is not None
    assert ended.read


def test_damage_with_the_time_put_back(ended: Ended) -> None:
    ended.leave_stamps()
    path = ended.root / "state/0/0/2.delta"
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ended.start().workdir.problem == "state/0/0/2.delta is not what was captured"


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("path", ["commits/3", "state/0/0/4.delta"])
def test_damage_in_what_spark_wrote_since(ended: Ended, path: str, is_clean: bool) -> None:
    ended.leave_stamps(is_clean=is_clean)
    flip(ended.root / path)
    assert path in (ended.start().workdir.problem or "")


def test_what_a_failure_may_have_torn_is_verified(ended: Ended) -> None:
    flip(ended.root / "state/0/0/4.delta")
    ended.leave_stamps(is_clean=False)
    assert ended.start().workdir.problem == "state/0/0/4.delta is not what Spark wrote"


def test_a_suspect_workdir_is_compared(ended: Ended) -> None:
    ended.leave_stamps()
    ended.made.workdir.mark_suspect("Spark stumbled")
    assert ended.is_compared()


def test_a_copy_is_compared(ended: Ended) -> None:
    ended.leave_stamps()
    shutil.copytree(ended.root, ended.root.with_name("copy"))
    shutil.rmtree(ended.root)
    ended.root.with_name("copy").rename(ended.root)
    assert ended.is_compared()


def test_after_the_machine_was_started_anew(ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may leave a file with its size and time, and without its bytes."""
    ended.leave_stamps()
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(local, "_BOOT_ID", tmp_path / "boot")
    assert ended.is_compared()


def test_where_the_machines_runs_cannot_be_told_apart(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_BOOT_ID", tmp_path / "none")
    ended.leave_stamps()
    assert ended.is_compared()


@pytest.mark.parametrize("body", [b"", b"{}", b"nonsense"])
def test_stamps_that_cannot_be_read(ended: Ended, body: bytes) -> None:
    ended.leave_stamps()
    (ended.root / STAMPS).write_bytes(body)
    assert ended.is_compared()


def test_a_file_that_changed_while_the_query_ran_is_not_vouched_for(ended: Ended) -> None:
    flip(ended.root / "state/0/0/2.delta")
    ended.leave_stamps()
    assert ended.start().workdir.problem == "state/0/0/2.delta is not what was captured"


# The store


def test_another_checkpoint_is_the_newest(ended: Ended) -> None:
    ended.leave_stamps()
    ended.made.plan(4)
    captured = ended.driver.snapshotter.snapshot(4, 5)
    ended.driver.save(4, captured)
    assert ended.is_compared()


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_batch_object_is_noticed(ended: Ended, damage: str) -> None:
    """Or every later checkpoint would stand on it."""
    ended.leave_stamps()
    newest = Path(ended.place.root) / ended.driver.load(3).needed_batches[-1].key
    flip(newest) if damage == "flipped" else newest.unlink()
    seen = ended.start()
    assert [number for number, _ in seen.skipped] == [4]


def test_a_damaged_manifest_is_noticed(ended: Ended) -> None:
    ended.leave_stamps()
    flip(Path(ended.place.root) / ended.place.manifest_key(4))
    seen = ended.start()
    assert seen.newest is not None
    assert seen.newest.checkpoint_id == 3


def test_where_looks_cost_requests_batch_objects_are_listed(
    memory: MemoryPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(memory, tmp_path / "work")
    state = HdfsState(driver.made, snapshot_every=20)
    for batch in range(12):
        driver.epoch(batch, state)
    needed = driver.load(11).needed_batches
    assert len(needed) > FEW
    looked: list[str] = []
    look = CloudObjects.info

    def noted(self: CloudObjects, key: str) -> Any:
        looked.append(key)
        return look(self, key)

    monkeypatch.setattr(CloudObjects, "info", noted)
    driver.snapshotter.leave_stamps(driver.load(11), is_clean=True)
    found = unchanged_checkpoint(memory.open(), driver.made.workdir)
    assert found is not None
    assert looked == []
    memory.objects.delete([needed[3].key])
    assert unchanged_checkpoint(memory.open(), driver.made.workdir) is None
