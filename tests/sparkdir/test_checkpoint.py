"""Spark's checkpoint directory, read: where its logs stand, what lies in it, what is damaged; on a disk and off it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.errors import Corrupt, Invalid
from holdfast.sparkdir.checkpoint import Logs, SparkCheckpoint
from holdfast.storage.files.directory import FileStamp, LocalDirectory
from workdir_files import QUERY_ID, HandMade, HdfsState, commit_log, offset_log


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return HandMade(tmp_path / "work")


def spark(made: HandMade) -> SparkCheckpoint:
    return SparkCheckpoint(LocalDirectory(made.root))


class InMemory:
    """A directory that is nowhere: what a listing and a reader of an object store would give."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        below = (path[len(prefix) :] for path in self._files if path.startswith(prefix))
        return sorted({rest.split("/")[0] for rest in below})

    def files(self) -> Iterator[tuple[str, FileStamp]]:
        for path, data in self._files.items():
            if not any(part.startswith(".") for part in path.split("/")):
                yield path, FileStamp(len(data), 0)

    def read(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def exists(self, path: str) -> bool:
        return path in self._files or any(name.startswith(f"{path}/") for name in self._files)


def test_nothing_there(made: HandMade) -> None:
    assert (spark(made).logs(), list(spark(made).files())) == (Logs(), [])
    assert spark(made).damage_after(0, ()) is None
    assert not spark(made).has_committed(0)


def three_batches(made: HandMade) -> None:
    made.begin()
    state = HdfsState(made)
    for batch in range(3):
        made.plan(batch)
        state.plan(batch)
        state.run(batch)
        made.commit(batch)


def test_any_listing_reads_the_same(made: HandMade) -> None:
    three_batches(made)
    everything = {
        str(path.relative_to(made.root)): path.read_bytes() for path in made.root.rglob("*") if path.is_file()
    }
    there, elsewhere = spark(made), SparkCheckpoint(InMemory(everything))
    assert there.logs() == elsewhere.logs() == Logs(QUERY_ID, (0, 1, 2), (0, 1, 2))
    assert there.query_id() == elsewhere.query_id() == QUERY_ID
    assert there.planned(1) == elsewhere.planned(1)
    assert {path: stamp.size for path, stamp in there.files()} == {path: s.size for path, s in elsewhere.files()}
    assert there.unknown_names() == elsewhere.unknown_names() == {".holdfast.json"}
    damaged = everything | {"state/0/0/3.delta": b"something else"}
    assert SparkCheckpoint(InMemory(damaged)).damage_after(2, ()) == "state/0/0/3.delta is not what Spark wrote"


@pytest.mark.parametrize(
    ("path", "after", "said"),
    [
        ("offsets/2", 2, "offsets/2 is not what Spark wrote"),
        ("commits/2", 2, "commits/2 is not what Spark wrote"),
        ("state/0/1/3.delta", 2, "state/0/1/3.delta is not what Spark wrote"),
        ("state/0/1/2.delta", 2, None),  # not after it: a checkpoint of batch 2 holds it
        ("offsets/1", 2, None),
    ],
)
def test_damage_that_only_checksums_show(made: HandMade, path: str, after: int, said: str | None) -> None:
    three_batches(made)
    assert spark(made).damage_after(after, ()) is None
    (made.root / path).write_bytes(b"v1 something else")
    assert spark(made).damage_after(after, ()) == said
    assert spark(made).damage_after(after, {path}) is None


@pytest.mark.parametrize(("path", "said"), [("commits/2", "commits/2 is gone"), ("commits/1", None)])
def test_a_log_file_that_left_its_checksums(made: HandMade, path: str, said: str | None) -> None:
    three_batches(made)
    made.remove(path)
    assert spark(made).damage_after(2, ()) == said


# What lies in it


def test_files_are_those_that_spark_can_see(made: HandMade) -> None:
    made.begin()
    made.plan(0)
    made.write("state/0/0/SSTs/1.sst", b"four")
    (made.root / "state/0/.hidden").mkdir()
    (made.root / "state/0/.hidden/file").touch()
    (made.root / "empty").mkdir()
    found = {path: stamp.size for path, stamp in spark(made).files()}
    assert found.keys() == {"metadata", "offsets/0", "state/0/0/SSTs/1.sst"}
    assert found["state/0/0/SSTs/1.sst"] == 4


def test_a_link_to_a_directory_is_not_followed(made: HandMade) -> None:
    made.begin()
    (made.root / "state").mkdir()
    (made.root / "state/up").symlink_to(made.root)
    assert len([path for path, _ in spark(made).files() if "up/" in path]) == 0


# Where its logs stand


def test_logs_say_what_spark_has_planned_and_committed(made: HandMade) -> None:
    made.begin()
    assert spark(made).logs() == Logs(QUERY_ID)
    made.plan(0)
    assert (spark(made).logs().planned, spark(made).logs().committed) == (0, -1)
    made.commit(0)
    made.plan(1)
    assert spark(made).logs() == Logs(QUERY_ID, (0, 1), (0,))
    assert (spark(made).has_committed(0), spark(made).has_committed(1)) == (True, False)
    assert spark(made).planned(1).ends == ('{"logOffset":1}',)
    assert spark(made).committed(0).next_watermark_ms == 1


def test_logs_are_in_the_order_of_numbers(made: HandMade) -> None:
    made.begin()
    for batch in (9, 10, 100):
        made.plan(batch)
        made.commit(batch)
    assert spark(made).logs() == Logs(QUERY_ID, (9, 10, 100), (9, 10, 100))


def test_other_names_in_the_logs_are_passed_over(made: HandMade) -> None:
    made.begin()
    made.plan(3)
    for name in ("4.tmp", "x", "-1", "²", "5.compact"):
        (made.root / "offsets" / name).write_text("garbage")
    assert spark(made).logs() == Logs(QUERY_ID, (3,), ())


@pytest.mark.parametrize("path", ["metadata", "offsets/1", "commits/0"])
@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"v1\n", b"\xff\xfe\xfd", b"v1\n{", b'v1\n{"conf":7}\n0'])
def test_a_log_that_cannot_be_read_is_a_problem(made: HandMade, path: str, body: bytes) -> None:
    made.begin()
    made.plan(0)
    made.commit(0)
    made.plan(1)
    (made.root / path).write_bytes(body)
    logs = spark(made).logs()
    is_readable = path == "commits/0" and b"conf" in body  # what Spark would take, so do we
    assert (logs.problem is None) == is_readable
    assert is_readable or path in (logs.problem or "")
    assert (logs.planned, logs.committed) == (1, 0)


def test_only_the_newest_are_read(made: HandMade) -> None:
    made.begin()
    made.plan(0)
    made.plan(1)
    (made.root / "offsets/0").write_bytes(b"")
    assert spark(made).logs().problem is None


def test_without_metadata(made: HandMade) -> None:
    made.plan(0)
    logs = spark(made).logs()
    assert logs.query_id is None
    assert "metadata" in (logs.problem or "")


def test_a_directory_where_a_log_belongs(made: HandMade) -> None:
    made.begin()
    (made.root / "offsets/0").mkdir(parents=True)
    assert "offsets/0" in (spark(made).logs().problem or "")


@pytest.mark.parametrize(("path", "body"), [("offsets/0", "v9\n{}\n0"), ("commits/0", "v9\n{}")])
def test_a_newer_spark_is_not_a_problem_to_rebuild_for(made: HandMade, path: str, body: str) -> None:
    made.begin()
    made.write("offsets/0", offset_log("0"))
    made.write("commits/0", commit_log())
    made.write(path, body)
    with pytest.raises(Invalid, match="v9"):
        spark(made).logs()


def test_a_batch_that_is_not_there(made: HandMade) -> None:
    made.begin()
    for look in (spark(made).planned, spark(made).committed):
        with pytest.raises(Corrupt, match="/5"):
            look(5)
