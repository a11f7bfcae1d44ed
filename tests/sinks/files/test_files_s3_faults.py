"""File sinks on object storage: drivers killed at every step, replies lost, and what readers see meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.fs
import pytest
from cloud_files import CloudPlace, logged_files, opened_of
from sink_places import committing, elsewhere

from holdfast.cli import main
from holdfast.errors import Corrupt, HoldfastError, Unavailable
from holdfast.sinks.files import FileSink, spark_metadata_format
from holdfast.sinks.files.spark_metadata_format import LoggedEpoch, LoggedFile
from holdfast.sinks.sink import SinkProgress, StagedOutputGone
from holdfast.storage.objects import open, retry
from holdfast.testing.conformance.sinks import A, B, C, delivery
from holdfast.testing.faults.crash import CrashRing, KilledRun, StepEvent
from holdfast.testing.faults.proxy import FaultyProxy, LostReply, Request, Status, once
from servers.s3 import S3Server, options_for

pytestmark = pytest.mark.s3
COPIED = b"<CopyObjectResult><ETag>&quot;1&quot;</ETag></CopyObjectResult>"
WORKS = f"{Path(__file__).parents[1] / 'sink_works.py'}"


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def place(s3_server: S3Server, bucket: str) -> CloudPlace:
    """One epoch committed."""
    return begun(s3_server, bucket)


def begun(s3_server: S3Server, bucket: str, entries: int = 0) -> CloudPlace:
    """One epoch committed, behind so many entries of the log that are of an earlier lineage and have no files."""
    place = CloudPlace(bucket, s3_server.options)
    place.claim(delivery(0))
    if entries:
        earlier = [LoggedEpoch(0, epoch) for epoch in range(1, entries)]
        lines = [spark_metadata_format.encode(place.root, f"epoch={logged.epoch:06}", logged) for logged in earlier]
        for number in range(entries // 10 * 10 - 1, entries):
            some = lines[:number] if spark_metadata_format.is_compact(number) else lines[number - 1 : number]
            name = spark_metadata_format.entry_name(number)
            place.objects.create(f"out/_spark_metadata/{name}", [spark_metadata_format.entry(some)])
    place.deliver(A, delivery(1, lineage=1 if entries else 0))
    return place


@pytest.mark.crash
class TestKilled:
    """At every step of what a sink does without Spark."""

    @pytest.fixture(autouse=True)
    def server(self, s3_server: S3Server, bucket: str) -> None:
        self.s3_server, self.bucket = s3_server, bucket

    def killed_everywhere(
        self, work: str, *, keep: bool = True, generation: int = 1
    ) -> Iterator[tuple[CloudPlace, dict[str, Any], KilledRun]]:
        with CrashRing(f"{WORKS}:{work}") as ring:
            count = None
            index = 0
            while count is None or index < count:
                place = begun(self.s3_server, self.bucket)
                descriptor = place.stage(B, delivery(2))
                arguments: dict[str, Any] = {
                    "kind": "files-s3",
                    "root": f"{place.root} {json.dumps(place.options)}",
                    "descriptor": descriptor if keep else None,
                    "generation": generation,
                }
                if count is None:
                    count = len(ring.record(**arguments))
                    assert count >= 2
                    continue
                run = ring.kill_at(index, **arguments)
                assert run.killed
                index += 1
                yield place, descriptor, run

    def test_commit(self) -> None:
        names = set()
        for place, descriptor, run in self.killed_everywhere("commit"):
            assert run.event is not None
            names.add(run.event.name)
            seen = place.listed()
            assert seen == sorted(set(seen))
            assert set(A) <= set(seen) <= {*A, *B}
            assert place.logged() in (A, [*A, *B])
            after = place.sink()
            progress = after.recover(delivery(2, generation=2), descriptor)
            assert progress.committed == (2 if len(place.logged()) > len(A) else 1)
            after.commit(descriptor, delivery(2, generation=2))
            assert place.listed() == place.logged() == [*A, *B]
            assert place.staged() == []
            place.sink().commit(descriptor, delivery(2, generation=3))
            assert place.listed() == place.logged() == [*A, *B]
        assert names >= {"files.choose", "files.copy", "object.copy", "files.log", "sink.publish", "sink.discard"}

    def test_rollback(self) -> None:
        for place, descriptor, _ in self.killed_everywhere("rollback"):
            assert place.listed() == A
            after = place.sink()
            after.rollback(descriptor, delivery(2, generation=2))
            assert after.recover(delivery(1, generation=2), None) == SinkProgress(committed=1, lineage=0)
            assert place.staged() == []
            with pytest.raises(StagedOutputGone):
                after.commit(descriptor, delivery(2, generation=2))
            assert place.listed() == place.logged() == A

    @pytest.mark.parametrize("kept", [True, False], ids=["kept", "swept"])
    def test_recover(self, kept: bool) -> None:
        for place, descriptor, _ in self.killed_everywhere("recover", keep=kept, generation=2):
            assert place.listed() == A
            after = place.sink()
            keep = descriptor if kept else None
            assert after.recover(delivery(2, generation=3), keep) == SinkProgress(committed=1, lineage=0)
            assert len(place.staged()) == kept
            if kept:
                after.commit(descriptor, delivery(2, generation=3))
            assert place.listed() == place.logged() == ([*A, *B] if kept else A)


@pytest.mark.crash
def test_killed_while_the_log_is_compacted_and_trimmed(s3_server: S3Server, bucket: str) -> None:
    names = set()
    with CrashRing(f"{WORKS}:commit_of_a_lineage") as ring:
        index, killed = -1, True  # the first run is not killed: it tells where the log begins to be written
        while killed:
            place = begun(s3_server, bucket, entries=28)
            to = delivery(2, lineage=1)
            arguments = {"root": f"{place.root} {json.dumps(place.options)}", "descriptor": place.stage(B, to)}
            if index < 0:
                index = ring.record(**arguments).index(StepEvent("files.log", "begin"))
                continue
            run = ring.kill_at(index, **arguments)
            names.add(run.event.name if run.event else "")
            index, killed = index + 1, run.killed
            assert place.logged() in (A, [*A, *B])
            sink = place.sink()
            sink.commit(arguments["descriptor"], delivery(2, lineage=1, generation=2))
            assert place.listed() == place.logged() == [*A, *B]
            place.deliver(C, delivery(3, lineage=1))
            assert place.logged() == [*A, *B, *C]
            progress = place.sink().recover(delivery(9, generation=2), None)
            assert progress == SinkProgress(committed=27, lineage=1)
    assert names >= {"files.log", "files.trim-log"}


class TestReplies:
    @pytest.fixture(autouse=True)
    def through(self, s3_server: S3Server, place: CloudPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
        backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
        monkeypatch.setitem(open.RETRIES_OF_READS, "backoff", backoff)
        self.place = place
        with FaultyProxy(s3_server.endpoint) as proxy:
            self.proxy = proxy
            self.options = options_for(proxy.endpoint) | {"timeout": "2s"}
            yield

    @pytest.mark.parametrize("to", ["_epoch", "part-00001", "_spark_metadata/2"])
    @pytest.mark.parametrize("fault", [LostReply(), LostReply(reset=True), Status(503)], ids=["lost", "reset", "503"])
    def test_one_is_lost(self, to: str, fault: LostReply | Status) -> None:
        descriptor = self.place.stage(B, delivery(2))
        hit = []

        def is_meant(request: Request) -> bool:
            if request.method == "PUT" and to in request.path:
                hit.append(request.path)
            return bool(hit)

        self.proxy.script = once(fault, is_meant)
        self.place.sink(**self.options).commit(descriptor, delivery(2))
        assert hit
        assert self.place.listed() == self.place.logged() == [*A, *B]
        assert self.place.staged() == []

    @pytest.mark.parametrize("to", ["_epoch", "part-00001", "_spark_metadata/2"])
    def test_all_are_lost(self, to: str) -> None:
        """The service does as it is told, and never says so."""
        descriptor = self.place.stage(B, delivery(2))
        self.proxy.script = lambda request: (
            LostReply() if request.method in ("PUT", "GET") and to in request.path else None
        )
        sink = self.place.sink(**self.options)
        with pytest.raises(HoldfastError):
            sink.commit(descriptor, delivery(2))
        assert self.place.logged() in (A, [*A, *B])
        self.proxy.script = lambda _: None
        sink.commit(descriptor, delivery(2))
        assert self.place.listed() == self.place.logged() == [*A, *B]
        assert self.place.staged() == []

    @pytest.mark.parametrize("answer", [Status(200, COPIED), Status(202, COPIED)], ids=str)
    def test_a_copy_that_is_taken_on_and_not_made(self, answer: Status) -> None:
        descriptor = self.place.stage(B, delivery(2))
        self.proxy.script = once(
            answer, lambda request: "x-amz-copy-source" in request.headers and "part-00001" in request.path
        )
        with pytest.raises(Unavailable, match="though the service has taken it") as caught:
            self.place.sink(**self.options).commit(descriptor, delivery(2))
        assert caught.value.code == "sink.files-copy"
        assert self.place.logged() == A
        self.place.sink(**self.options).commit(descriptor, delivery(2))
        assert self.place.listed() == self.place.logged() == [*A, *B]
        assert self.place.staged() == []


def test_two_drivers_with_other_rows(place: CloudPlace) -> None:
    """The first to commit says what the epoch is, and the other finishes that, from wherever it was left."""
    first, second = place.stage(B, delivery(2)), place.stage(C, delivery(2, generation=2))
    dead = opened_of(place.sink())
    record = dead.staging.record(first["staged"])
    assert record is not None
    place.objects.copy(f"_out.holdfast-staging/{first['staged']}/_epoch", "out/epoch=000002/_epoch")
    place.sink().recover(delivery(2, generation=3), second)
    place.sink().rollback(first, delivery(2))
    assert len(place.staged()) == 2
    place.sink().commit(second, delivery(2, generation=2))
    assert place.listed() == place.logged() == [*A, *B]
    assert place.staged() == []


def test_an_epoch_that_has_left_the_log_is_not_published_again(place: CloudPlace) -> None:
    """A driver was frozen right before it committed an epoch that another one committed, long ago by now."""
    late = place.stage(B, delivery(2, generation=2))
    place.deliver(B, delivery(2))
    place.deliver(C, delivery(3))
    log = opened_of(FileSink(place.root, storage_options=place.options, keep="1s")).log
    for epoch in range(4, 12):
        log.append(LoggedEpoch(0, epoch, None, (LoggedFile("part", 1, 10**14 + epoch),)))
    left = [f"epoch={epoch:06}/part" for epoch in range(4, 12)]
    assert logged_files(place.objects, "out/") == left
    place.sink().commit(late, delivery(2, generation=2))
    assert logged_files(place.objects, "out/") == left
    assert place.sink().recover(delivery(12, generation=3), None) == SinkProgress(committed=11, lineage=0)


def test_what_was_begun_and_lost_is_replaced(place: CloudPlace) -> None:
    """Somebody has removed staged files by hand, in the middle of a commit: they are staged again."""
    gone = place.stage(B, delivery(2))
    staging = f"_out.holdfast-staging/{gone['staged']}"
    place.objects.copy(f"{staging}/_epoch", "out/epoch=000002/_epoch")
    keys = [key for key in place.all_keys() if key.startswith(staging)]
    copied = next(key for key in keys if "part-00000" in key)
    place.objects.copy(copied, f"out/epoch=000002/{copied.rpartition('/')[2]}")
    place.objects.delete([key for key in keys if not key.endswith("_epoch")])
    with pytest.raises(StagedOutputGone):
        place.sink().commit(gone, delivery(2))
    assert place.logged() == A  # what was copied stays: a driver that had copied all of it may still log it
    again = place.stage(B, delivery(2))
    place.sink().commit(again, delivery(2))
    assert place.listed() == place.logged() == [*A, *B]


def test_pipeline_of_the_same_name_with_another_store(place: CloudPlace) -> None:
    descriptor = place.stage(B, elsewhere(1, generation=3))
    before = place.all_keys()
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            place.sink().commit(descriptor, committing(1))
        assert (caught.value.code, caught.value.about) == (
            "sink.other-delivery",
            f"{place.root}/epoch=000001".replace("s3:", "s3a:"),
        )
    assert place.all_keys() == before
    half = place.stage(B, delivery(2))
    place.objects.copy(f"_out.holdfast-staging/{half['staged']}/_epoch", "out/epoch=000002/_epoch")
    with pytest.raises(Corrupt, match="another pipeline of the same name"):
        place.sink().commit(place.stage(B, elsewhere(2)), committing(2))
    assert place.logged() == place.listed() == A


def test_path_that_was_removed(place: CloudPlace) -> None:
    descriptor = place.stage(B, delivery(2))
    place.objects.delete([key for key in place.all_keys() if key.startswith("out/")])
    with pytest.raises(Unavailable, match="never prepared"):
        place.sink().commit(descriptor, delivery(2))
    with pytest.raises(Unavailable, match="never prepared"):
        place.sink().files()
    assert place.listed() == []


def test_unknown_things_in_the_staging_folder_are_left_alone(place: CloudPlace) -> None:
    place.stage(B, delivery(1))
    place.objects.create("_out.holdfast-staging/mine/notes.txt", [b"x"])
    place.sink().recover(delivery(1, generation=9), None)
    assert place.staged() == ["mine"]


def test_list_of_the_committed_files(place: CloudPlace) -> None:
    place.stage(B, delivery(2))
    place.deliver(C, delivery(1, lineage=3))
    for scheme in ("s3", "s3a"):
        place.root = f"{scheme}://{place.root.partition('://')[2]}"
        found = place.sink().files()
        assert [path.rpartition("/")[0] for path in found] == [
            *[f"{place.root}/epoch=000001"] * 2,
            *[f"{place.root}/epoch=3-000001"] * 2,
        ]


def test_list_on_the_command_line(place: CloudPlace, capsys: pytest.CaptureFixture[str]) -> None:
    place.stage(B, delivery(2))
    options = [word for name, value in place.options.items() for word in ("--option", f"{name}={value}")]
    assert main(["files", place.root, *options]) == 0
    assert capsys.readouterr().out.splitlines() == place.sink().files()
    assert main(["files", f"{place.parent}/other", *options]) == 3
    assert main(["files", "s3://no-such-bucket/out", "--json", *options]) == 3
    assert "bucket.not-found" in capsys.readouterr().err


def test_list_for_readers_without_spark(place: CloudPlace) -> None:
    """As docs/reading-files.md has it for pyarrow."""
    place.deliver(B, delivery(2))
    place.stage(C, delivery(3))
    address = place.options["aws_endpoint_url"].removeprefix("http://")
    s3 = pyarrow.fs.S3FileSystem(
        access_key=place.options["aws_access_key_id"],
        secret_key=place.options["aws_secret_access_key"],
        endpoint_override=address,
        scheme="http",
        region="us-east-1",
    )
    paths = [path.removeprefix("s3://") for path in place.sink().files()]
    table = pyarrow.dataset.dataset(paths, filesystem=s3, format="parquet", partitioning="hive").to_table()
    rows = sorted((row["epoch"], row["id"]) for row in table.to_pylist())
    assert rows == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
