"""`FaultyDisk` fails where it is told to, and only there."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from holdfast.storage.files.disk import Disk
from holdfast.testing.faults.disk import FaultyDisk
from holdfast.testing.faults.powerloss import ForgetfulDisk


def everything(disk: Disk) -> None:
    disk.make_directory("/d")
    disk.write_file("/d/a", [b"bo", b"dy"])
    disk.link("/d/a", "/d/b")
    disk.rename("/d/a", "/d/c")
    disk.sync_directory("/d")
    with disk.locked("/d"), disk.open_file("/d/b") as file:
        assert file.read() == b"body"
    assert disk.entry("/d/b").size == 4
    assert len(disk.scan("/d")) == 2
    disk.remove_file("/d/b")
    disk.remove_file("/d/c")
    disk.remove_directory("/d")


ALL = [
    "directory.make",
    "file.write",
    "file.fill",
    "file.sync",
    "file.link",
    "file.rename",
    "directory.sync",
    "directory.lock",
    "file.open",
    "path.entry",
    "directory.scan",
    "file.remove",
    "file.remove",
    "directory.remove",
]


READS = {"directory.lock", "file.open", "path.entry", "directory.scan"}


def at(number: int, code: int = errno.ENOSPC) -> Callable[[int, str], OSError | None]:
    return lambda count, name: OSError(code, name) if count == number else None


def test_it_is_a_disk_like_the_one_behind_it() -> None:
    disk = FaultyDisk(ForgetfulDisk(), lambda number, name: None)
    everything(disk)
    assert disk.operations == ALL


@pytest.mark.parametrize(("number", "name"), list(enumerate(ALL)))
def test_each_operation_can_fail(number: int, name: str) -> None:
    behind = ForgetfulDisk()
    disk = FaultyDisk(behind, at(number))
    with pytest.raises(OSError, match=name) as caught:
        everything(disk)
    assert caught.value.errno == errno.ENOSPC
    assert disk.operations == ALL[: number + 1]
    done = ALL[: ALL.index("file.sync") + 1] if name in ("file.fill", "file.sync") else ALL[:number]
    assert [line.split()[0] for line in behind.journal] == [each for each in done if each not in READS]


def test_it_is_told_the_number_and_the_name() -> None:
    told: list[tuple[int, str]] = []
    everything(FaultyDisk(ForgetfulDisk(), lambda number, name: told.append((number, name))))
    assert told == list(enumerate(ALL))


@pytest.mark.parametrize(
    ("name", "left"), [("file.write", {}), ("file.fill", {"/a": b"bo"}), ("file.sync", {"/a": b"body"})]
)
def test_a_failed_write_leaves_what_a_real_one_would(name: str, left: dict[str, bytes]) -> None:
    behind = ForgetfulDisk()
    disk = FaultyDisk(behind, lambda _, asked: OSError(errno.ENOSPC, "full") if asked == name else None)
    with pytest.raises(OSError, match="full"):
        disk.write_file("/a", [b"bod", b"y"])
    assert behind.files() == left


def test_the_disk_behind_gives_its_own_errors() -> None:
    with pytest.raises(FileNotFoundError):
        FaultyDisk(ForgetfulDisk(), lambda number, name: None).remove_file("/x")
