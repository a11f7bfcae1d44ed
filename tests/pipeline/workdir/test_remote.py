"""A workdir on object storage: which place a generation gets, and what becomes of the others."""

from __future__ import annotations

import pickle
import uuid

import pytest

from holdfast.errors import Fenced
from holdfast.pipeline.workdir.open import open_workdir
from holdfast.pipeline.workdir.owner import WorkdirOwner
from holdfast.pipeline.workdir.remote import RemoteWorkdir
from holdfast.pipeline.workdir.workdir import SPOOL, STAMPS
from holdfast.storage.files.directory import Directory, TakesPieces

OWNER = WorkdirOwner("orders", "memory://store")


def ours() -> None:
    """The lease is ours."""


def taken_over() -> None:
    raise Fenced("Another driver has taken over.", code="lease.lost")


@pytest.fixture
def workdir() -> RemoteWorkdir:
    return RemoteWorkdir(f"memory://{uuid.uuid4().hex}")


def run(workdir: RemoteWorkdir, generation: int, *, is_clean: bool) -> RemoteWorkdir:
    """A driver that writes a file and ends."""
    entered = workdir.fenced(generation, ours)
    entered.make(OWNER)
    entered.directory.remove(STAMPS)
    entered.directory.write(f"offsets/{generation}", b"v1")
    if is_clean:
        entered.directory.write(STAMPS, b"{}")
    return entered


def test_a_place_is_handed_over_after_a_clean_end(workdir: RemoteWorkdir) -> None:
    first = run(workdir, 1, is_clean=True)
    second = run(workdir, 2, is_clean=True)
    assert second.place == first.place
    assert sorted(path for path, _ in second.directory.files()) == ["offsets/1", "offsets/2"]
    assert second.owner() == OWNER


def test_after_any_other_end_there_is_a_new_place(workdir: RemoteWorkdir) -> None:
    first = run(workdir, 1, is_clean=False)
    second = workdir.fenced(2, ours)
    assert second.place != first.place
    assert second.is_empty()
    assert second.owner() is None


def test_what_a_fenced_driver_writes_nobody_reads(workdir: RemoteWorkdir) -> None:
    frozen = run(workdir, 1, is_clean=False)
    successor = run(workdir, 2, is_clean=False)
    frozen.directory.write("state/0/0/2.delta", b"stale")
    assert sorted(path for path, _ in successor.directory.files()) == ["offsets/2"]
    frozen.directory.write(STAMPS, b"{}")  # it believes that it ended well
    third = workdir.fenced(3, ours)
    assert third.place not in (frozen.place, successor.place)


def test_of_two_that_find_the_same_stamps_the_later_one_gets_the_place(workdir: RemoteWorkdir) -> None:
    run(workdir, 1, is_clean=True)
    early, late = workdir.fenced(2, ours), workdir.fenced(3, ours)
    assert early.place == late.place
    late.directory.remove(STAMPS)
    with pytest.raises(Fenced):  # generation 3 has claimed: generation 2 stops before it starts Spark
        workdir.fenced(2, taken_over)


def test_old_places_are_removed(workdir: RemoteWorkdir) -> None:
    gone = [run(workdir, number, is_clean=False).place for number in (1, 2)]
    third = run(workdir, 3, is_clean=False)
    third.directory.write(f"{SPOOL}-2/part", b"rows")
    third.sweep(ours)
    assert not set(gone) & set(workdir._places())
    assert third.directory.names("") == [".holdfast.json", "offsets"]


def test_a_successors_place_is_left_alone(workdir: RemoteWorkdir) -> None:
    frozen = run(workdir, 4, is_clean=False)
    successor = run(workdir, 5, is_clean=False)
    with pytest.raises(Fenced):
        frozen.sweep(taken_over)
    assert successor.directory.read("offsets/5") == b"v1"


def test_a_store_that_lost_its_generations_does_not_bring_old_places_back(workdir: RemoteWorkdir) -> None:
    old = run(workdir, 7, is_clean=False)
    begun_again = run(workdir, 1, is_clean=False)
    begun_again.sweep(ours)
    assert workdir._places() == [begun_again.place]
    assert old.place != begun_again.place


def test_a_replacement_is_a_place_of_its_own(workdir: RemoteWorkdir) -> None:
    entered = run(workdir, 1, is_clean=False)
    before = entered.place

    def fill(fresh: Directory) -> int:
        fresh.write_new([("metadata", b"{}"), ("offsets/0", b"v1")])
        assert isinstance(fresh, TakesPieces)
        large = fresh.new_file("state/0/0/1.snapshot")
        large.write(b"large file")
        large.close()
        return 3

    assert entered.replace(fill, OWNER, ours) == 3
    assert entered.place != before
    assert entered.directory.read("state/0/0/1.snapshot") == b"large file"
    assert entered.owner() == OWNER
    assert entered.directory.address == f"{entered.address}/{entered.place}"


def test_a_replacement_that_fails_leaves_nothing(workdir: RemoteWorkdir) -> None:
    entered = run(workdir, 1, is_clean=False)
    before = entered.place

    def fill(fresh: Directory) -> None:
        fresh.write_new([("metadata", b"{}")])
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        entered.replace(fill, OWNER, ours)
    with pytest.raises(Fenced):
        entered.replace(lambda fresh: fresh.write_new([("metadata", b"{}")]), OWNER, taken_over)
    assert (entered.place, workdir._places()) == (before, [before])


def test_a_workdir_that_is_given_up_is_not_handed_over(workdir: RemoteWorkdir) -> None:
    run(workdir, 1, is_clean=True)
    open_again = RemoteWorkdir(workdir.address)
    open_again.discard(ours)
    assert workdir.as_found().is_empty()
    assert workdir.fenced(2, ours).is_empty()


def test_as_the_next_start_finds_it(workdir: RemoteWorkdir) -> None:
    assert workdir.as_found().is_empty()
    run(workdir, 1, is_clean=False)
    assert workdir.as_found().is_empty()
    run(workdir, 2, is_clean=True)
    assert not workdir.as_found().is_empty()


def test_the_place_that_is_not_used_again_can_still_be_read(workdir: RemoteWorkdir) -> None:
    """Without a checkpoint it alone tells that epochs were delivered."""
    assert workdir.fenced(1, ours).left_behind() is None
    first = run(workdir, 1, is_clean=False)
    left = workdir.fenced(2, ours).left_behind()
    assert left is not None
    assert left.place == first.place
    run(workdir, 3, is_clean=True)
    assert workdir.fenced(4, ours).left_behind() is None


def test_a_failure_leaves_no_note(workdir: RemoteWorkdir) -> None:
    """The place of a query that failed is not used again."""
    RemoteWorkdir(workdir.address).mark_suspect("a file is torn")
    assert workdir._places() == []


def test_a_driver_that_was_taken_over_removes_nothing(workdir: RemoteWorkdir) -> None:
    old = run(workdir, 5, is_clean=False)
    late = workdir.fenced(6, ours)
    with pytest.raises(Fenced):
        late.sweep(taken_over)
    assert old.directory.read("offsets/5") == b"v1"


def test_a_place_is_closed_before_it_is_removed(workdir: RemoteWorkdir) -> None:
    """Its driver, fenced since, leaves stamps late. A third one finds none, or has claimed before the last check."""
    old = run(workdir, 5, is_clean=False)
    second = workdir.fenced(6, ours)
    old.directory.write(STAMPS, b"{}")
    is_open = []

    def third_claims() -> None:
        is_open.append(not workdir.as_found().is_empty())
        if not is_open[-1]:
            taken_over()

    with pytest.raises(Fenced):
        second.sweep(third_claims)
    assert is_open == [True, False]
    assert old.directory.read("offsets/5") == b"v1"
    second.sweep(ours)
    assert workdir._places() == []


def test_an_executor_gets_the_place_and_the_options() -> None:
    workdir = RemoteWorkdir("s3a://bucket/wd", options={"region": "x"}, generation=3, place="g000003-0123abcd")
    sent = pickle.loads(pickle.dumps(workdir))
    assert sent.directory.address == "s3a://bucket/wd/g000003-0123abcd"
    assert sent._spark.access().options == {"region": "x"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://b/w", "RemoteWorkdir('s3a://b/w')"),
        ("s3a://b/w/", "RemoteWorkdir('s3a://b/w')"),
        ("gs://b/w", "RemoteWorkdir('gs://b/w')"),
        ("abfss://c@a.dfs.core.windows.net/w", "RemoteWorkdir('abfss://c@a.dfs.core.windows.net/w')"),
        ("hdfs://h:1/w", "RemoteWorkdir('hdfs://h:1/w')"),
        ("/data/w", "LocalWorkdir('/data/w')"),
        ("file:///data/w", "LocalWorkdir('/data/w')"),
    ],
)
def test_addresses_of_workdirs(address: str, expected: str) -> None:
    assert repr(open_workdir(address)) == expected


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark, whatever other tests of this process have left."""
    for module in ("pipeline.workdir.remote", "storage.objects.spark_access"):
        monkeypatch.setattr(f"holdfast.{module}.active_session", lambda: None)
