"""Spark's directory: whose it is, where its logs stand, what lies in it, and how it goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.base.steps import observe
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.pipeline.workdir.workdir import MARKER, Belonging, Logs, Workdir
from workdir_files import OWNER, QUERY_ID, HandMade, commit_log, offset_log


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
def test_addresses(given_as: str | Path, expected: str) -> None:
    assert str(Workdir(given_as).path) == expected


def test_a_relative_path_is_below_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Workdir("w").path == tmp_path / "w"


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/w", "s3a://bucket/w", "hdfs://host/w", "hdfs:/w", "dbfs:/w", "memory://x", "file://host/w", ""],
)
def test_addresses_that_are_no_disk(address: str) -> None:
    with pytest.raises(Invalid) as refused:
        Workdir(address)
    assert refused.value.code == "workdir.address"


def test_nothing_is_made_by_looking(made: HandMade) -> None:
    workdir = made.workdir
    assert (workdir.is_empty(), workdir.belonging(), workdir.logs(), list(workdir.files())) == (True, None, Logs(), [])
    assert workdir.has_committed(0) is False
    workdir.sweep()
    workdir.discard()
    assert os.listdir(made.root.parent) == []


# Whose it is


def test_marked(made: HandMade) -> None:
    made.workdir.make(OWNER)
    assert made.workdir.belonging() == OWNER
    assert made.workdir.is_empty()
    made.workdir.make(Belonging("other", "memory://x"))
    assert made.workdir.belonging() == Belonging("other", "memory://x")


@pytest.mark.parametrize("mark", [b"", b"{", b"[]", b'{"pipeline":5,"store":"x"}', b"\xff\xfe", b'{"pipeline":"x"}'])
def test_a_mark_that_cannot_be_read_is_nobodys(made: HandMade, mark: bytes) -> None:
    made.workdir.make(OWNER)
    (made.root / MARKER).write_bytes(mark)
    assert made.workdir.belonging() is None


def test_anything_else_in_it_counts(made: HandMade) -> None:
    made.workdir.make(OWNER)
    (made.root / "notes.txt").touch()
    assert not made.workdir.is_empty()


def test_a_file_in_its_place(made: HandMade) -> None:
    made.root.write_text("a file of somebody's")
    with pytest.raises(HoldfastError):
        made.workdir.is_empty()
    assert made.root.read_text() == "a file of somebody's"


# What lies in it


def test_files_are_those_that_spark_can_see(made: HandMade) -> None:
    made.begin()
    made.plan(0)
    made.write("state/0/0/SSTs/1.sst", b"four")
    (made.root / "state/0/.hidden").mkdir()
    (made.root / "state/0/.hidden/file").touch()
    (made.root / "empty").mkdir()
    found = {path: stat.st_size for path, stat in made.workdir.files()}
    assert found.keys() == {"metadata", "offsets/0", "state/0/0/SSTs/1.sst"}
    assert found["state/0/0/SSTs/1.sst"] == 4


def test_a_link_to_a_directory_is_not_followed(made: HandMade) -> None:
    made.begin()
    (made.root / "state").mkdir()
    (made.root / "state/up").symlink_to(made.root)
    assert len([path for path, _ in made.workdir.files() if "up/" in path]) == 0


# Addresses in captured files


# Where its logs stand


def test_logs(made: HandMade) -> None:
    made.begin()
    assert made.workdir.logs() == Logs(QUERY_ID)
    made.plan(0)
    assert (made.workdir.logs().planned, made.workdir.logs().committed) == (0, -1)
    made.commit(0)
    made.plan(1)
    assert made.workdir.logs() == Logs(QUERY_ID, (0, 1), (0,))
    assert (made.workdir.has_committed(0), made.workdir.has_committed(1)) == (True, False)
    assert made.workdir.planned(1).ends == ('{"logOffset":1}',)
    assert made.workdir.committed(0).next_watermark_ms == 1


def test_logs_are_in_the_order_of_numbers(made: HandMade) -> None:
    made.begin()
    for batch in (9, 10, 100):
        made.plan(batch)
        made.commit(batch)
    assert made.workdir.logs() == Logs(QUERY_ID, (9, 10, 100), (9, 10, 100))


def test_other_names_in_the_logs_are_passed_over(made: HandMade) -> None:
    made.begin()
    made.plan(3)
    for name in ("4.tmp", "x", "-1", "²", "5.compact"):
        (made.root / "offsets" / name).write_text("garbage")
    assert made.workdir.logs() == Logs(QUERY_ID, (3,), ())


@pytest.mark.parametrize("path", ["metadata", "offsets/1", "commits/0"])
@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"v1\n", b"\xff\xfe\xfd", b"v1\n{", b'v1\n{"conf":7}\n0'])
def test_a_log_that_cannot_be_read_is_a_problem(made: HandMade, path: str, body: bytes) -> None:
    made.begin()
    made.plan(0)
    made.commit(0)
    made.plan(1)
    (made.root / path).write_bytes(body)
    logs = made.workdir.logs()
    is_readable = path == "commits/0" and b"conf" in body  # what Spark would take, so do we
    assert (logs.problem is None) == is_readable
    assert is_readable or path in (logs.problem or "")
    assert (logs.planned, logs.committed) == (1, 0)


def test_only_the_newest_are_read(made: HandMade) -> None:
    made.begin()
    made.plan(0)
    made.plan(1)
    (made.root / "offsets/0").write_bytes(b"")
    assert made.workdir.logs().problem is None


def test_without_metadata(made: HandMade) -> None:
    made.plan(0)
    logs = made.workdir.logs()
    assert logs.query_id is None
    assert "metadata" in (logs.problem or "")


def test_a_directory_where_a_log_belongs(made: HandMade) -> None:
    made.begin()
    (made.root / "offsets/0").mkdir(parents=True)
    assert "offsets/0" in (made.workdir.logs().problem or "")


@pytest.mark.parametrize(("path", "body"), [("offsets/0", "v9\n{}\n0"), ("commits/0", "v9\n{}")])
def test_a_newer_spark_is_not_a_problem_to_rebuild_for(made: HandMade, path: str, body: str) -> None:
    made.begin()
    made.write("offsets/0", offset_log("0"))
    made.write("commits/0", commit_log())
    made.write(path, body)
    with pytest.raises(Invalid, match="v9"):
        made.workdir.logs()


def test_a_batch_that_is_not_there(made: HandMade) -> None:
    made.begin()
    for look in (made.workdir.planned, made.workdir.committed):
        with pytest.raises(Corrupt, match="/5"):
            look(5)


# How it goes


def fill(root: Path) -> None:
    (root / "state").mkdir(parents=True)
    (root / "state/file").touch()


def test_discard(made: HandMade) -> None:
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
    workdir = Workdir(tmp_path / name)
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
    workdir = Workdir(tmp_path / "deep" / "work")
    one, other = workdir.new_sibling(), workdir.new_sibling()
    assert one != other
    assert {one.parent, other.parent} == {tmp_path / "deep"}
    assert all(path.name.startswith(".work.rebuild-") for path in (one, other))
