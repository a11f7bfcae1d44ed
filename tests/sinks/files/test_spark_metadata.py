"""The format of Spark's log of files, and the log on object storage."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from cloud_files import logged_files
from obstore.store import MemoryStore

from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.sinks.files import spark_metadata_format, spark_metadata_log
from holdfast.sinks.files.layout import FileLayout
from holdfast.sinks.files.spark_metadata_format import LoggedEpoch, LoggedFile
from holdfast.sinks.files.spark_metadata_log import SparkMetadataLog
from holdfast.storage.objects import CloudObjects

AT = "s3a://bucket/a b"
# As Spark 4.3's own file sink writes it, partitioned by `epoch`, on S3.
OF_SPARK = (
    '{"path":"s3a://bucket/a%20b/epoch=000017/part-0.parquet","size":454,"isDir":false,'
    '"modificationTime":1795010015000,"blockReplication":1,"blockSize":33554432,"action":"add"}'
)
EPOCH = LoggedEpoch(0, 17, "mark", (LoggedFile("part-0.parquet", 454, 1795010015000),))


def test_a_file_is_written_as_spark_writes_it() -> None:
    body = spark_metadata_format.entry([spark_metadata_format.encode(AT, "epoch=000017", EPOCH)]).decode()
    version, directory, file = body.split("\n")
    assert (version, file) == ("v1", OF_SPARK)
    assert json.loads(directory) == json.loads(OF_SPARK) | {
        "path": "s3a://bucket/a%20b/epoch=000017",
        "size": 0,
        "isDir": True,
        "holdfast": {"lineage": 0, "epoch": 17, "mark": "mark"},
    }


@pytest.mark.parametrize(
    "epochs",
    [
        [],
        [EPOCH],
        [LoggedEpoch(0, 1)],
        [LoggedEpoch(0, 1), EPOCH, LoggedEpoch(3, 1, None, (LoggedFile("ä b%.csv", 1, 2), LoggedFile("c", 3, 4)))],
    ],
)
def test_an_entry_tells_what_it_was_made_of(epochs: list[LoggedEpoch]) -> None:
    parts = [spark_metadata_format.encode(AT, f"epoch={logged.epoch}", logged) for logged in epochs]
    body = spark_metadata_format.entry(parts)
    assert spark_metadata_format.decode(body) == epochs
    assert spark_metadata_format.entry([spark_metadata_format.lines_of(body)]) == body


@pytest.mark.parametrize("body", [b"", b"v2", b"v1\n{", b"v1\n[]", f"v1\n{OF_SPARK}".encode(), b"v1\n{}"])
def test_entries_that_make_no_sense(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        spark_metadata_format.decode(body)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("0", 0),
        ("12", 12),
        ("9.compact", 9),
        ("9", None),
        ("8.compact", None),
        ("08", None),
        (".3.tmp", None),
        ("", None),
        ("3.crc", None),
    ],
)
def test_names(name: str, number: int | None) -> None:
    assert spark_metadata_format.number_in(name) == number


@pytest.mark.parametrize(
    ("there", "needed", "removable"),
    [
        (range(1), [0], []),
        (range(9), list(range(9)), []),
        (range(10), [9], []),
        (range(13), [9, 10, 11, 12], []),
        (range(20), [19], list(range(9))),
        (range(9, 33), [29, 30, 31, 32], list(range(9, 19))),
        ([0, 19, 20], [19, 20], []),
        ([5, *range(19, 31)], [29, 30], [5]),
    ],
)
def test_which_entries_are_needed(there: Any, needed: list[int], removable: list[int]) -> None:
    assert spark_metadata_format.needed(there) == needed
    assert spark_metadata_format.removable(there) == removable
    left = set(there) - set(removable)
    assert spark_metadata_format.needed(left) == needed


@pytest.mark.parametrize("there", [[], [1], [0, 2], [10], [9, 11]])
def test_entries_that_are_missing(there: list[int]) -> None:
    with pytest.raises(ValueError, match=r"no entry|missing"):
        spark_metadata_format.needed(there)


class TestLog:
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects = CloudObjects(MemoryStore(), "memory://")

    def open(self, keep_ms: int | None = None) -> SparkMetadataLog:
        layout = FileLayout("parquet", "epoch", {}, keep_ms)
        return SparkMetadataLog(self.objects, "out", address="s3a://b/out", layout=layout)

    def begun(self, keep_ms: int | None = None) -> SparkMetadataLog:
        log = self.open(keep_ms)
        log.begin()
        return log

    def names(self) -> list[str]:
        names = [info.key.rpartition("/")[2] for info in self.objects.list("out/_spark_metadata/")]
        return sorted(names, key=lambda name: int(name.partition(".")[0]))

    def test_every_tenth_entry_has_everything(self) -> None:
        log = self.begun()
        for epoch in range(1, 36):
            assert log.append(epoch_of(epoch)) == f"mark-{epoch}"
            files = [f"epoch={one:06}/part-{one}" for one in range(1, epoch + 1)]
            assert logged_files(self.objects, "out/") == files
        assert self.names() == ["19.compact", *map(str, range(20, 29)), "29.compact", *map(str, range(30, 36))]
        assert self.open().epochs() == [epoch_of(epoch) for epoch in range(1, 36)]
        assert log.committed() == self.open().committed()

    def test_an_epoch_is_committed_once(self) -> None:
        one, other = self.begun(), self.open()
        assert other.committed() == {}
        for epoch in range(1, 25):
            drivers = (one, other) if epoch % 3 else (other, one)
            for log in drivers:
                theirs = LoggedEpoch(0, epoch, f"other-{epoch}") if log is drivers[1] else epoch_of(epoch)
                assert log.append(theirs) == f"mark-{epoch}"
        assert self.open().epochs() == [epoch_of(epoch) for epoch in range(1, 25)]

    def test_lineages_and_epochs_without_files(self) -> None:
        log = self.begun()
        logged = [LoggedEpoch(0, 5), LoggedEpoch(1, 1, "m"), LoggedEpoch(0, 6), epoch_of(7)]
        for one in logged:
            log.append(one)
        assert self.open().epochs() == sorted(logged, key=lambda one: (one.lineage, one.epoch))

    @pytest.mark.parametrize("behind", [1, 8, 9, 12, 30])
    def test_a_driver_that_was_frozen_while_the_log_was_trimmed(self, behind: int) -> None:
        log, frozen = self.begun(), self.open()
        for epoch in range(1, 12):
            log.append(epoch_of(epoch))
        assert len(frozen.committed()) == 11
        for epoch in range(12, 12 + behind):
            log.append(epoch_of(epoch))
        frozen.append(LoggedEpoch(1, 1, "late"))
        frozen.append(LoggedEpoch(0, 12, "other"))
        assert self.open().committed() == {(0, n): f"mark-{n}" for n in range(1, 12 + behind)} | {(1, 1): "late"}
        for epoch in range(50, 90):
            log.append(epoch_of(epoch))
        assert len(self.open().committed()) == 11 + behind + 1 + 40
        assert len(self.names()) <= 20

    def test_a_log_that_was_lost(self) -> None:
        log = self.begun()
        log.append(epoch_of(1))
        self.objects.create("out/epoch=000001/part-1", [b"x"])
        self.objects.delete(["out/_spark_metadata/0"])
        for call in (lambda: self.open().committed(), lambda: self.open().epochs(), lambda: self.open().append(EPOCH)):
            with pytest.raises(Corrupt, match="missing"):
                call()
        self.objects.delete(["out/_spark_metadata/1"])
        with pytest.raises(Corrupt, match="entries are gone"):
            self.open().begin()

    def test_old_epochs_leave_the_log(self) -> None:
        """Those of which every file is older than ten seconds, with each tenth entry. A second between two epochs."""
        log, without = self.begun(keep_ms=10_000), self.open()
        for epoch in range(1, 36):
            assert log.append(epoch_of(epoch)) == f"mark-{epoch}"
        files = [f"epoch={epoch:06}/part-{epoch}" for epoch in range(19, 36)]
        assert logged_files(self.objects, "out/") == files
        forgotten = LoggedEpoch(0, 18, "mark-18", is_forgotten=True)
        for opened in (self.open(keep_ms=10_000), without):
            assert opened.epochs() == [forgotten, *(epoch_of(epoch) for epoch in range(19, 36))]
            assert all(opened.is_committed((0, epoch)) for epoch in range(1, 36))
            assert not opened.is_committed((0, 36))
            assert not opened.is_committed((1, 1))
            assert opened.append(LoggedEpoch(0, 5, "other")) is None  # a driver that was frozen since
            assert opened.append(LoggedEpoch(0, 18, "other")) == "mark-18"
        assert logged_files(self.objects, "out/") == files

    def test_a_lineage_that_has_left_the_log_is_remembered(self) -> None:
        log = self.begun(keep_ms=1000)
        log.append(epoch_of(7))
        for epoch in range(1, 60):
            log.append(LoggedEpoch(1, epoch, None, (LoggedFile("part", 10, 60_000 * epoch),)))
        assert [(one.lineage, one.epoch) for one in self.open().epochs() if one.is_forgotten] == [(0, 7), (1, 57)]
        assert logged_files(self.objects, "out/") == ["epoch=1-000058/part", "epoch=1-000059/part"]

    def test_epochs_without_files_leave_with_those_before_and_the_newest_stays(self) -> None:
        epochs = (epoch_of(1), LoggedEpoch(0, 2), EPOCH)
        lines = [spark_metadata_format.encode(AT, f"epoch={one.epoch}", one) for one in epochs]
        kept = [(one.epoch, one.is_forgotten) for one in forgotten(lines, keep_ms=1)]
        assert kept == [(2, True), (17, False)]
        assert [one.epoch for one in forgotten(lines[:2], keep_ms=1)] == [1, 2]
        assert forgotten(lines, keep_ms=10**15) == [epoch_of(1), LoggedEpoch(0, 2), EPOCH]
        assert forgotten([], keep_ms=1) == []

    def test_a_log_that_grows_too_large(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A warning at each doubling, then a refusal, which an option lifts. Nothing has been decided by then."""
        monkeypatch.setattr(spark_metadata_log, "LARGE", 1000)
        monkeypatch.setattr(spark_metadata_log, "MOST_BYTES", 5000)
        log, epochs = self.begun(), itertools.count(1)

        def deliver() -> int:
            epoch = next(epochs)
            log.check_room(epoch_of(epoch))
            log.append(epoch_of(epoch))
            return epoch

        with pytest.raises(Invalid, match="no reader could take it") as refused:
            list(iter(deliver, None))
        epoch = len(log.committed()) + 1
        assert refused.value.code == "sink.files-log-full"
        assert "FileSink(..., keep='30d')" in refused.value.next_step
        assert 10 < epoch < 20
        assert len(caplog.records) == 3
        assert "the log of committed files has" in caplog.messages[0]
        with pytest.raises(Invalid, match="no reader could take it"):
            self.open(keep_ms=3_600_000).check_room(epoch_of(epoch))
        for later in range(epoch, epoch + 40):
            kept = self.open(keep_ms=2000)
            kept.check_room(epoch_of(later))
            kept.append(epoch_of(later))
        self.open().check_room(epoch_of(epoch + 40))

    def test_a_log_of_another_program(self) -> None:
        self.objects.create("out/_spark_metadata/0", [f"v1\n{OF_SPARK}".encode()])
        with pytest.raises(HoldfastError) as caught:
            self.open().committed()
        assert caught.value.code == "sink.files-log"


def forgotten(lines: list[bytes], *, keep_ms: int) -> list[LoggedEpoch]:
    left = spark_metadata_format.forget(b"\n".join(lines), keep_ms)
    return spark_metadata_format.decode(spark_metadata_format.entry([left]))


def epoch_of(epoch: int) -> LoggedEpoch:
    return LoggedEpoch(0, epoch, f"mark-{epoch}", (LoggedFile(f"part-{epoch}", 10, 1000 * epoch),))
