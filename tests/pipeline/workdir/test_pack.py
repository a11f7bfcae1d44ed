"""Dividing files among executors, and packing them on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from holdfast.checkpoints import read_batch
from holdfast.errors import Corrupt, Fenced, Unavailable
from holdfast.pipeline.failures import is_permanent
from holdfast.pipeline.workdir import entries, pack
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.pack import pack_on_driver, packing_for, split_evenly
from holdfast.storage.objects.spark_access import Access
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest
from places import LocalPlace, MemoryPlace

SPLITS: list[tuple[dict[str, int], int, list[list[str]]]] = [
    ({}, 4, []),
    ({"a": 5}, 4, [["a"]]),
    ({"a": 5, "b": 5}, 1, [["a", "b"]]),
    ({"a": 1, "b": 9, "c": 1, "d": 7}, 2, [["b", "c"], ["d", "a"]]),
    ({"a": 0, "b": 0, "c": 0, "d": 0}, 2, [["a", "c"], ["b", "d"]]),
    ({"a": 100, "b": 1, "c": 1}, 3, [["a"], ["b"], ["c"]]),
]


@pytest.mark.parametrize(("files", "count", "expected"), SPLITS)
def test_files_are_split_evenly_by_size(files: dict[str, int], count: int, expected: list[list[str]]) -> None:
    assert split_evenly(files, count) == expected


@given(st.dictionaries(st.text(max_size=4), st.integers(0, 1 << 30), max_size=40), st.integers(1, 9))
def test_split_is_whole_and_even(files: dict[str, int], count: int) -> None:
    groups = split_evenly(files, count)
    assert sorted(path for group in groups for path in group) == sorted(files)
    assert len(groups) == min(count, len(files))
    assert all(groups)
    sizes = [sum(files[path] + 1 for path in group) for group in groups]
    largest = max(files.values(), default=0)
    assert max(sizes, default=0) - min(sizes, default=0) <= largest + 1


def in_workdir(root: Path, files: Mapping[str, bytes]) -> LocalWorkdir:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return LocalWorkdir(root)


def sizes(files: Mapping[str, bytes]) -> dict[str, int]:
    return {path: len(data) for path, data in files.items()}


def test_packed_on_the_driver(place: StoreUnderTest, tmp_path: Path) -> None:
    files = {"offsets/0": b"v1", "state/0/0/1.delta": b"\x00\xff" * 40, "sources/0/0": b""}
    packed = pack_on_driver(place.open(), in_workdir(tmp_path / "w", files), sizes(files), 1)
    assert packed.keys() == files.keys()
    (batch,) = {entry.batch for entries in packed.values() for entry in entries}
    assert [entry.index for entries in packed.values() for entry in entries] == [0, 1, 2]
    assert (batch.key, batch.entries) == ("checkpoints/batch-000001.lz4", 3)
    assert place.all_keys() == [batch.key]
    opened = read_batch(place.objects, batch.key)
    assert {path: bytes(data) for path, data in opened.entries()} == files


def test_packed_apart_where_there_is_much(
    place: StoreUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "PACKED_TOGETHER", 1000)
    files = {f"state/0/{number}/1.delta": bytes([number]) * 400 for number in range(7)}
    packed = pack_on_driver(place.open(), in_workdir(tmp_path / "w", files), sizes(files), 3)
    assert sorted({entry.batch.key for entries in packed.values() for entry in entries}) == place.all_keys()
    assert len(place.all_keys()) == 3
    for path, (entry,) in packed.items():
        opened = read_batch(place.objects, entry.batch.key)
        assert list(opened.keys())[entry.index] == path
        assert bytes(opened.read(path)) == files[path]


def test_a_large_file_has_an_object_of_its_own(
    memory: MemoryPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "PACKED_TOGETHER", 1000)
    files = {"a": b"small", "b": b"small", "c": b"l" * 1000, "d": b"small"}
    packed = pack_on_driver(memory.open(), in_workdir(tmp_path / "w", files), sizes(files), 3)
    batches = {path: entry.batch for path, (entry,) in packed.items()}
    assert batches["a"] == batches["b"]
    assert len({batches[name].key for name in "acd"}) == 3
    assert batches["c"].entries == 1


def test_nothing_to_pack(place: StoreUnderTest, tmp_path: Path) -> None:
    assert pack_on_driver(place.open(), LocalWorkdir(tmp_path / "w"), {}, 1) == {}
    assert place.all_keys() == []


def test_a_driver_that_was_taken_over_packs_nothing(place: StoreUnderTest, tmp_path: Path) -> None:
    files = {"offsets/0": b"v1"}
    store = place.open()
    store.claim("old")
    place.open().claim("new")
    before = place.all_keys()
    with pytest.raises(Fenced):
        pack_on_driver(store, in_workdir(tmp_path / "w", files), sizes(files), 1)
    assert place.all_keys() == before


# On executors: Python processes of their own


@pytest.fixture
def cluster(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session as if it were a cluster's: every snapshot is packed by a job."""
    monkeypatch.setattr(pack, "is_one_process", lambda spark: False)
    monkeypatch.setattr(pack, "LARGE", 0)
    return spark


FILES = {f"state/0/{number}/1.delta": bytes([number]) * 400 for number in range(5)}


def test_packed_on_executors(cluster: SparkSession, local: LocalPlace, tmp_path: Path) -> None:
    packing = packing_for(cluster, Access(str(local.root)))
    packed = packing(local.open(), in_workdir(tmp_path / "w", FILES), sizes(FILES), 1)
    assert packed.keys() == FILES.keys()
    assert local.all_keys() == sorted({entry.batch.key for entries in packed.values() for entry in entries})
    assert all(key.startswith("nodes/") for key in local.all_keys())


def test_executors_that_do_not_see_the_store(
    cluster: SparkSession, local: LocalPlace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have another disk at its path: nothing is written there, and the driver packs."""
    elsewhere = tmp_path / "a disk of their own"
    packing = packing_for(cluster, Access(str(elsewhere)))
    store, workdir = local.open(), in_workdir(tmp_path / "w", FILES)
    for epoch in (1, 2):
        packed = packing(store, workdir, sizes(FILES), epoch)
        assert packed.keys() == FILES.keys()
    assert local.all_keys() == ["checkpoints/batch-000001.lz4", "checkpoints/batch-000002.lz4"]
    assert not elsewhere.exists()
    assert [record.message for record in caplog.records if "does not see the checkpoints" in record.message] == [
        record.message for record in caplog.records if record.levelname == "WARNING"
    ]


@pytest.mark.parametrize("what", ["changed", "gone", "no answer"])
def test_errors_on_executors_are_those_of_the_driver(
    cluster: SparkSession, local: LocalPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """So that a file that Spark has replaced is captured again, and a store that does not answer is waited for."""
    workdir = in_workdir(tmp_path / "w", FILES)
    access, wanted = Access(str(local.root)), sizes(FILES)
    if what == "no answer":
        keys = {"access_key_id": "x", "secret_access_key": "x"}
        access = Access("s3://bucket/store", {"endpoint": "http://127.0.0.1:9", "allow_http": "true", **keys})
    elif what == "gone":
        wanted["state/0/9/1.delta"] = 400
    else:
        wanted["state/0/0/1.delta"] = entries.PART_BYTES + 1
    expected = {"changed": Corrupt, "gone": FileNotFoundError, "no answer": Unavailable}[what]
    with pytest.raises(expected) as raised:
        packing_for(cluster, access)(local.open(), workdir, wanted, 1)
    if isinstance(raised.value, Unavailable):
        assert not is_permanent(raised.value)
