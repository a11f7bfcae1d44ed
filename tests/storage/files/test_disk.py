"""The functions that make directories durable which others write to as well."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.storage.files import disk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that have been synced, in order."""
    paths: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_new_directories_are_durable_from_the_top_down(tmp_path: Path, synced: list[str]) -> None:
    disk.make_directories(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]


def test_a_directory_that_is_there_may_not_be_durable_yet(tmp_path: Path, synced: list[str]) -> None:
    disk.make_directories(str(tmp_path))
    assert synced == [str(tmp_path.parent)]


def test_a_directory_below_one_that_is_closed_to_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = disk.PosixDisk.sync_directory

    def denied(self: disk.PosixDisk, path: str) -> None:
        if path == str(tmp_path.parent):
            raise PermissionError(errno.EACCES, "denied", path)
        real(self, path)

    monkeypatch.setattr(disk.PosixDisk, "sync_directory", denied)
    disk.make_directories(str(tmp_path / "a"))
    assert (tmp_path / "a").is_dir()


def test_relative_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    disk.make_directories("a/b")
    assert synced[-2:] == [str(tmp_path), str(tmp_path / "a")]


def test_a_file_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        disk.make_directories(str(tmp_path / "a" / "b"))


def test_a_whole_tree_is_synced(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for path in ("one", "a/two", "a/b/three"):
        (tmp_path / path).write_bytes(b"x")
    disk.sync_tree(str(tmp_path))
    expected = ["", "a", "empty", "a/b", "one", "a/two", "a/b/three"]
    assert sorted(synced) == sorted(str(tmp_path / path) for path in expected)


def test_a_sync_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.sync_all([str(tmp_path), str(tmp_path / "gone")])
    with pytest.raises(FileNotFoundError):
        disk.sync(str(tmp_path / "gone"))


def test_a_new_file_is_synced_and_replaces_none(tmp_path: Path, synced: list[str]) -> None:
    path = str(tmp_path / "mark")
    disk.write_file(path, b"x" * 3_000_000)
    assert synced == [path]
    assert Path(path).read_bytes() == b"x" * 3_000_000
    with pytest.raises(FileExistsError):
        disk.write_file(path, b"other")
    disk.write_file(path, b"other", overwrite=True)
    assert Path(path).read_bytes() == b"other"
    assert synced == [path, path]


def test_an_error_of_the_disk_says_what_where_and_what_to_do(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    with (
        pytest.raises(Unavailable, match=f"The sink cannot be read: No such file or directory .{gone}.") as caught,
        disk.disk_errors("The sink cannot be read", code="sink.disk", about="here", unchanged="all"),
    ):
        disk.sync(gone)
    assert (caught.value.code, caught.value.about, caught.value.unchanged) == ("sink.disk", "here", "all")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(Unavailable, match="here: No such"), disk.disk_errors("", code="c", about="here", unchanged=""):
        disk.sync(gone)
