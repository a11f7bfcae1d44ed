"""Spark's directory as ours: its address, whose it is, and how it goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.steps import observe
from holdfast.errors import HoldfastError, Invalid
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.owner import OWNER_FILE, WorkdirOwner
from holdfast.sparkdir.checkpoint import Logs
from workdir_files import OWNER, HandMade


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return HandMade(tmp_path / "work")


# Its address


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        ("/data/w", "/data/w"),
        ("file:///data/w", "/data/w"),
        ("file:/data/w", "/data/w"),
        ("/data/w/", "/data/w"),
        (Path("/data/w"), "/data/w"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_a_workdir_is_a_path_however_it_is_written(given_as: str | Path, expected: str) -> None:
    assert str(LocalWorkdir(given_as).path) == expected


def test_a_relative_path_is_below_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalWorkdir("w").path == tmp_path / "w"


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/w", "s3a://bucket/w", "hdfs://host/w", "hdfs:/w", "dbfs:/w", "memory://x", "file://host/w", ""],
)
def test_addresses_that_are_no_disk(address: str) -> None:
    with pytest.raises(Invalid) as refused:
        LocalWorkdir(address)
    assert refused.value.code == "workdir.address"


def test_nothing_is_made_by_looking(made: HandMade) -> None:
    workdir = made.workdir
    assert (workdir.is_empty(), workdir.owner(), workdir.spark_checkpoint.logs()) == (True, None, Logs())
    workdir.sweep()
    workdir.discard()
    assert os.listdir(made.root.parent) == []


# Whose it is


def test_make_records_the_owner(made: HandMade) -> None:
    made.workdir.make(OWNER)
    assert made.workdir.owner() == OWNER
    assert made.workdir.is_empty()
    made.workdir.make(WorkdirOwner("other", "memory://x"))
    assert made.workdir.owner() == WorkdirOwner("other", "memory://x")


@pytest.mark.parametrize("mark", [b"", b"{", b"[]", b'{"pipeline":5,"store":"x"}', b"\xff\xfe", b'{"pipeline":"x"}'])
def test_a_mark_that_cannot_be_read_is_nobodys(made: HandMade, mark: bytes) -> None:
    made.workdir.make(OWNER)
    (made.root / OWNER_FILE).write_bytes(mark)
    assert made.workdir.owner() is None


def test_anything_else_in_it_counts(made: HandMade) -> None:
    made.workdir.make(OWNER)
    (made.root / "notes.txt").touch()
    assert not made.workdir.is_empty()


def test_a_file_in_its_place(made: HandMade) -> None:
    made.root.write_text("a file of somebody's")
    with pytest.raises(HoldfastError):
        made.workdir.is_empty()
    assert made.root.read_text() == "a file of somebody's"


# How it goes


def fill(root: Path) -> None:
    (root / "state").mkdir(parents=True)
    (root / "state/file").touch()


def test_discard_removes_everything_and_may_be_repeated(made: HandMade) -> None:
    fill(made.root)
    made.workdir.discard()
    assert os.listdir(made.root.parent) == []
    made.workdir.discard()


def test_discard_that_is_interrupted_leaves_no_half(made: HandMade, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(made.root)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    made.workdir.discard()
    monkeypatch.undo()
    assert not made.root.exists()
    (left,) = made.root.parent.iterdir()
    assert (left / "state/file").exists()
    made.workdir.sweep()
    assert list(made.root.parent.iterdir()) == []


def test_discard_is_a_step(made: HandMade) -> None:
    fill(made.root)
    seen: list[tuple[str, str]] = []
    stop = observe(lambda name, phase, _: seen.append((name, phase)))
    try:
        made.workdir.discard()
    finally:
        stop()
    assert seen == [("workdir.discard", "begin"), ("workdir.discard", "end")]


@pytest.mark.parametrize("name", ["work", "work[1]", "w?rk", "[!w]", "wörk dir", "w*"])
def test_sweep_takes_its_own_leftovers_and_nothing_else(tmp_path: Path, name: str) -> None:
    workdir = LocalWorkdir(tmp_path / name)
    fill(workdir.path)
    fill(workdir.new_sibling())
    fill(tmp_path / f".{name}.discarded-0123456789ab")
    others = [
        ".other.rebuild-0123456789ab",
        ".wx.rebuild-0123456789ab",
        f".{name}x.rebuild-1",
        f"{name}.rebuild-1",
        ".x",
    ]
    for other in others:
        fill(tmp_path / other)
    workdir.sweep()
    assert sorted(os.listdir(tmp_path)) == sorted([name, *others])
    assert (workdir.path / "state/file").exists()


def test_siblings_are_beside_it_and_new(tmp_path: Path) -> None:
    workdir = LocalWorkdir(tmp_path / "deep" / "work")
    one, other = workdir.new_sibling(), workdir.new_sibling()
    assert one != other
    assert {one.parent, other.parent} == {tmp_path / "deep"}
    assert all(path.name.startswith(".work.rebuild-") for path in (one, other))


# Where it cannot be replaced


def test_a_symbolic_link_is_refused_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "large disk")
    with pytest.raises(Invalid, match="a symbolic link to") as caught:
        LocalWorkdir(tmp_path / "work").check_replaceable()
    assert caught.value.code == "workdir.not-replaceable"
    assert str(tmp_path / "large disk") in str(caught.value.next_step)


@pytest.mark.parametrize("kind", ["a disk of its own", "a part of the same disk"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_mount_point_is_refused(kind: str, tmp_path: Path) -> None:
    place, other = tmp_path / "the work", tmp_path / "other"
    place.mkdir()
    other.mkdir()
    mount = ["mount", "-t", "tmpfs", "none"] if kind == "a disk of its own" else ["mount", "--bind", str(other)]
    script = (
        "from holdfast.pipeline.workdir.local import LocalWorkdir, is_mount_point\n"
        "import pathlib, sys\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "assert not is_mount_point(place / 'inside') and not is_mount_point(place.parent)\n"
        "try:\n    LocalWorkdir(place).check_replaceable()\n"
        "except Exception as error:\n    print(error.code, error.next_step)\n"
    )
    command = ["unshare", "--mount", "sh", "-c", '"$@"; exec "$PYTHON" -c "$SCRIPT" "$PLACE"', "sh", *mount, str(place)]
    environment = {**os.environ, "PYTHON": sys.executable, "SCRIPT": script, "PLACE": str(place)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("workdir.not-replaceable pass a directory inside it"), done.stderr


def test_a_directory_and_nothing_are_fine(tmp_path: Path) -> None:
    LocalWorkdir(tmp_path / "not there").check_replaceable()
    LocalWorkdir(tmp_path).check_replaceable()
