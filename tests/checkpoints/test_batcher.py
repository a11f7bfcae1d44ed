"""The batcher: nothing added is lost, nothing stored is overwritten."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import steps
from holdfast.checkpoints import batch_format
from holdfast.checkpoints import batcher as module
from holdfast.checkpoints.batcher import BatchMetrics, CheckpointBatcher, batch_key, read_batch
from holdfast.checkpoints.manifest import BatchObject
from holdfast.errors import Conflict, Corrupt, Fenced, Invalid, NotFound, Unavailable
from holdfast.storage.objects import LocalObjects, ObjectStore, open_objects
from holdfast.storage.objects.store import Chunks
from holdfast.testing.faults.powerloss import ForgetfulDisk, lose_everything


class Watched:
    """An `ObjectStore` that counts requests, and whose next creates can fail before or after they took effect."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.requests: list[str] = []
        self.refuse = 0
        self.lose_reply = 0

    def create(self, key: str, chunks: Chunks) -> None:
        self.requests.append(f"create {key}")
        if self.refuse:
            self.refuse -= 1
            raise Unavailable("The medium is full.", about=key)
        self.inner.create(key, chunks)
        if self.lose_reply:
            self.lose_reply -= 1
            raise Unavailable("The reply was lost.", about=key)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.requests.append(f"{name} {arguments[0]}")
            return getattr(self.inner, name)(*arguments, **named)

        if name == "objects":  # what a store has, and an ObjectStore has not
            raise AttributeError(name)
        return call


@pytest.fixture(params=["memory", "local"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    return Watched(open_objects("memory://" if request.param == "memory" else str(tmp_path)))


def keys(objects: Watched) -> list[str]:
    return [info.key for info in objects.inner.list("")]


def filled(objects: Any, *entries: tuple[str, bytes], **options: Any) -> CheckpointBatcher:
    batcher = CheckpointBatcher(objects, **options)
    for key, data in entries:
        batcher.add(key, data)
    return batcher


def content(objects: Watched, batches: Sequence[BatchObject]) -> list[tuple[str, bytes]]:
    return [(k, bytes(d)) for batch in batches for k, d in read_batch(objects.inner, batch.key).entries()]


def test_buffer_size_counts_key_data_and_lengths(objects: Watched) -> None:
    batcher = filled(objects, ("agg1", bytes(100)))
    assert batcher.buffer_size == 4 + 100 + 8
    batcher.add("ö", memoryview(bytes(8)).cast("Q"))
    assert batcher.buffer_size == 112 + 2 + 8 + 8
    assert (len(batcher), batcher.is_empty) == (2, False)


def test_should_flush_from_the_threshold_on(objects: Watched) -> None:
    batcher = CheckpointBatcher(objects, flush_threshold=50)
    batcher.add("a", bytes(32))
    assert (batcher.buffer_size, batcher.should_flush()) == (41, False)
    batcher.add("b", b"")
    assert (batcher.buffer_size, batcher.should_flush()) == (50, True)


def test_default_threshold_is_eight_mebibytes(objects: Watched) -> None:
    batcher = filled(objects, ("k", bytes(8 * 1024 * 1024 - 10)))
    assert not batcher.should_flush()
    batcher.add("", b"")
    assert batcher.should_flush()


def test_empty_flush_makes_no_request(objects: Watched) -> None:
    batcher = CheckpointBatcher(objects)
    assert batcher.flush(1) is None
    assert (objects.requests, batcher.metrics, batcher.flushed(1)) == ([], BatchMetrics(), [])


def test_object_path_with_and_without_prefix(objects: Watched) -> None:
    for prefix in ("", "nodes/a/", "nodes/b"):
        filled(objects, ("k", b"d"), prefix=prefix).flush(42)
    assert keys(objects) == [
        "checkpoints/batch-000042.lz4",
        "nodes/a/checkpoints/batch-000042.lz4",
        "nodes/b/checkpoints/batch-000042.lz4",
    ]
    assert batch_key("", 12345678) == "checkpoints/batch-12345678.lz4"
    assert batch_key("", 1, 12) == "checkpoints/batch-000001-part-0012.lz4"


def test_round_trip_in_order_and_described_exactly(objects: Watched) -> None:
    entries = [(f"partition-{n}/agg", bytes([n]) * n) for n in (9, 1, 5)]
    stored = filled(objects, *entries).flush(7)
    assert stored is not None
    body = objects.inner.read(stored.key, limit=10_000)
    assert stored == BatchObject("checkpoints/batch-000007.lz4", len(body), hashlib.sha256(body).hexdigest(), 3)
    assert content(objects, [stored]) == entries


def test_a_body_that_is_hashed_on_the_side_has_the_right_hash(objects: Watched) -> None:
    noise = random.Random(1).randbytes(3_000_000)
    stored = filled(objects, ("noise", noise)).flush(1)
    assert stored is not None
    assert stored.bytes > module._HASH_ON_THREAD_FROM
    assert stored.sha256 == hashlib.sha256(objects.inner.read(stored.key, limit=stored.bytes)).hexdigest()


def test_metrics_are_a_live_handle_and_snapshots_stay(objects: Watched) -> None:
    batcher = filled(objects, ("abcd", bytes(100)), ("efgh", bytes(200)))
    metrics = batcher.metrics
    assert metrics == BatchMetrics()
    first = batcher.flush(1)
    snapshot = metrics.snapshot()
    batcher.add("x", bytes(50))
    second = batcher.flush(2)
    assert first is not None
    assert second is not None
    assert snapshot == BatchMetrics(1, 2, 324, first.bytes, 1)
    assert metrics == BatchMetrics(2, 3, 324 + 59, first.bytes + second.bytes, 2)
    assert batcher.metrics is metrics


def test_compressible_state_shrinks(objects: Watched) -> None:
    batcher = filled(objects, ("rows", b'{"user": 17, "count": 3}' * 10_000))
    batcher.flush(1)
    assert batcher.metrics.bytes_after_compression * 20 < batcher.metrics.bytes_before_compression


def test_a_flush_clears_and_the_next_holds_only_what_is_new(objects: Watched) -> None:
    batcher = filled(objects, ("k", b"old"))
    batcher.flush(1)
    assert (batcher.is_empty, len(batcher), batcher.buffer_size, batcher.should_flush()) == (True, 0, 0, False)
    batcher.add("k", b"new")
    batcher.flush(2)
    assert content(objects, batcher.flushed(2)) == [("k", b"new")]


def test_several_flushes_in_one_epoch_lose_nothing_and_take_one_request_each(objects: Watched) -> None:
    batcher = CheckpointBatcher(objects, flush_threshold=1000)
    expected = [(f"k{n}", bytes([n]) * 400) for n in range(20)]
    for key, data in expected:
        batcher.add(key, data)
        if batcher.should_flush():
            batcher.flush(5)
    batcher.flush(5)
    names = ["batch-000005.lz4", *(f"batch-000005-part-{n:04}.lz4" for n in range(2, 8))]
    assert [batch.key for batch in batcher.flushed(5)] == [f"checkpoints/{name}" for name in names]
    assert content(objects, batcher.flushed(5)) == expected
    assert objects.requests == [f"create checkpoints/{name}" for name in names]
    assert batcher.flushed(6) == []


def test_equal_content_twice_in_one_epoch_is_two_objects(objects: Watched) -> None:
    batcher = filled(objects, ("k", b"same"))
    batcher.flush(1)
    batcher.add("k", b"same")
    batcher.flush(1)
    assert len({batch.key for batch in batcher.flushed(1)}) == 2
    assert batcher.metrics.put_count == 2


def test_a_failed_flush_keeps_everything_and_can_be_repeated(objects: Watched) -> None:
    batcher = filled(objects, ("a", b"1"), ("b", b"2"), flush_threshold=10)
    objects.refuse = 1
    with pytest.raises(Unavailable):
        batcher.flush(3)
    assert (len(batcher), batcher.buffer_size, batcher.should_flush()) == (2, 20, True)
    assert (batcher.metrics, batcher.flushed(3), keys(objects)) == (BatchMetrics(), [], [])
    batcher.add("c", b"3")
    batcher.flush(3)
    assert content(objects, batcher.flushed(3)) == [("a", b"1"), ("b", b"2"), ("c", b"3")]


def test_after_a_lost_reply_only_the_repeated_flush_counts(objects: Watched) -> None:
    batcher = filled(objects, ("a", b"1"))
    objects.lose_reply = 1
    with pytest.raises(Unavailable):
        batcher.flush(3)
    stored = batcher.flush(3)
    assert stored is not None
    assert stored.key == "checkpoints/batch-000003-part-0002.lz4"
    assert (batcher.metrics.put_count, batcher.metrics.batches_flushed) == (1, 1)
    assert batcher.flushed(3) == [stored]


def test_a_lost_reply_followed_by_more_entries_loses_none(objects: Watched) -> None:
    batcher = filled(objects, ("a", b"1"))
    objects.lose_reply = 1
    with pytest.raises(Unavailable):
        batcher.flush(3)
    batcher.add("b", b"2")
    batcher.flush(3)
    assert content(objects, batcher.flushed(3)) == [("a", b"1"), ("b", b"2")]


def test_the_same_work_after_a_crash_depends_on_nothing_it_left_behind(objects: Watched) -> None:
    """A clean-up may already be on its way to remove it, so the same bytes are written again, elsewhere."""

    def work() -> list[BatchObject]:
        batcher = CheckpointBatcher(objects)
        for data in (b"1", b"2", b"2", b"3"):
            batcher.add("k", data)
            batcher.flush(9)
        return batcher.flushed(9)

    left_behind, again = work(), work()
    objects.inner.delete([batch.key for batch in left_behind])
    assert content(objects, again) == [("k", b"1"), ("k", b"2"), ("k", b"2"), ("k", b"3")]


def test_other_work_in_the_same_epoch_overwrites_nothing(objects: Watched) -> None:
    one, other = filled(objects, ("k", b"one")), filled(objects, ("k", b"two"))
    bodies = {}
    for batcher, data in ((one, b"1"), (other, b"2"), (one, b"3"), (other, b"4")):
        batcher.flush(1)
        batcher.add("k", data)
        for key, body in bodies.items():
            assert objects.inner.read(key, limit=1000) == body
        bodies = {key: objects.inner.read(key, limit=1000) for key in keys(objects)}
    assert content(objects, one.flushed(1)) == [("k", b"one"), ("k", b"1")]
    assert content(objects, other.flushed(1)) == [("k", b"two"), ("k", b"2")]
    assert len(keys(objects)) == 4


actions = st.tuples(
    st.integers(0, 1),  # which of two batchers
    st.sampled_from(["add", "add", "flush", "flush", "refused", "reply lost", "killed"]),
    st.integers(1, 2),  # the epoch, or the data: few values, so that equal batches are common
)


@given(st.lists(actions, max_size=30))
def test_whatever_fails_each_manifest_would_hold_exactly_what_was_flushed(script: list[tuple[int, str, int]]) -> None:
    objects = Watched(open_objects("memory://"))
    batchers = [CheckpointBatcher(objects), CheckpointBatcher(objects)]
    waiting: list[list[tuple[str, bytes]]] = [[], []]
    flushed: list[dict[int, list[tuple[str, bytes]]]] = [{1: [], 2: []}, {1: [], 2: []}]
    stored: dict[str, bytes] = {}
    for who, action, number in script:
        objects.refuse, objects.lose_reply = int(action == "refused"), int(action == "reply lost")
        if action == "add":
            waiting[who].append((f"k{len(waiting[who])}", bytes([number])))
            batchers[who].add(*waiting[who][-1])
        elif action == "killed":
            batchers[who], waiting[who], flushed[who] = CheckpointBatcher(objects), [], {1: [], 2: []}
        else:
            with contextlib.suppress(Unavailable):
                batchers[who].flush(number)
                flushed[who][number] += waiting[who]
                waiting[who] = []
        assert len(batchers[who]) == len(waiting[who])
        now = {key: objects.inner.read(key, limit=10_000) for key in keys(objects)}
        assert stored.items() <= now.items()
        stored = now
    for batcher, mine in zip(batchers, flushed, strict=True):
        for epoch, entries in mine.items():
            batches = batcher.flushed(epoch)
            assert content(objects, batches) == entries
            assert len({batch.key for batch in batches}) == len(batches)


def test_a_stranger_of_any_size_is_left_alone(objects: Watched) -> None:
    size = sum(map(len, batch_format.encode([("k", b"d")])))
    strangers = [b"", b"x" * (size - 1), b"x" * size, b"x" * 100_000]
    for part, body in enumerate(strangers, 1):
        objects.inner.create(batch_key("", 1, part), [body])
    batcher = filled(objects, ("k", b"d"))
    stored = batcher.flush(1)
    assert stored is not None
    assert stored.key == batch_key("", 1, 5)
    assert not [request for request in objects.requests if request.startswith(("read", "stream"))]
    for part, body in enumerate(strangers, 1):
        assert objects.inner.read(batch_key("", 1, part), limit=1_000_000) == body


def test_an_object_that_vanishes_between_conflict_and_look_is_no_problem(objects: Watched) -> None:
    class Vanishing(Watched):
        def create(self, key: str, chunks: Chunks) -> None:
            if not self.requests:
                self.requests.append(key)
                raise Conflict("It exists already.")
            super().create(key, chunks)

    batcher = filled(Vanishing(objects.inner), ("k", b"d"))
    batcher.flush(1)
    assert content(objects, batcher.flushed(1)) == [("k", b"d")]


def test_parts_come_to_an_end(objects: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTS", 3)
    batcher = CheckpointBatcher(objects)
    for _ in range(3):
        batcher.add("k", b"d")
        batcher.flush(1)
    batcher.add("k", b"d")
    with pytest.raises(Conflict) as caught:
        batcher.flush(1)
    assert (caught.value.code, len(batcher), len(keys(objects))) == ("batch.parts", 1, 3)


def test_a_flush_after_a_dead_one_survives_a_power_cut() -> None:
    """The first writer dies between giving the object its name and making that name durable."""

    class DyingDisk(ForgetfulDisk):
        dies = True

        def sync_directory(self, path: str) -> None:
            if self.dies:
                raise OSError("the process was killed here")
            super().sync_directory(path)

    disk = DyingDisk()
    batcher = filled(LocalObjects("/store", disk=disk), ("k", b"d"))
    with pytest.raises(Unavailable):
        batcher.flush(1)
    disk.dies = False
    stored = filled(LocalObjects("/store", disk=disk), ("k", b"d")).flush(1)
    assert stored is not None
    survivors = LocalObjects("/store", disk=disk.reboot(lose_everything))
    assert read_batch(survivors, stored.key).read("k") == b"d"


def test_every_write_is_preceded_by_the_lease_check(objects: Watched) -> None:
    filled(objects, ("k", b"other")).flush(1)
    filled(objects, ("k", b"mine")).flush(1)
    objects.requests.clear()
    filled(objects, ("k", b"mine"), before_write=lambda: objects.requests.append("check")).flush(1)
    assert [request.split()[0] for request in objects.requests] == ["check", "create"] * 3


def test_a_lost_lease_stops_the_flush_and_keeps_the_buffer(objects: Watched) -> None:
    def fenced() -> None:
        raise Fenced("Another driver has taken over.")

    batcher = filled(objects, ("k", b"d"), before_write=fenced)
    with pytest.raises(Fenced):
        batcher.flush(1)
    assert (objects.requests, len(batcher)) == ([], 1)


def test_writes_are_named_steps(objects: Watched) -> None:
    seen: list[tuple[str, str]] = []
    stop = steps.observe(lambda name, phase, _: seen.append((name, phase)) if name.startswith("batch.") else None)
    try:
        filled(objects, ("k", b"d")).flush(1)
        filled(objects, ("k", b"d")).flush(1)
    finally:
        stop()
    assert [phase for _, phase in seen] == ["begin", "end", "begin", "failed", "begin", "end"]
    assert {name for name, _ in seen} == {"batch.create"}


def test_forgotten_epochs_take_no_memory_and_stay_safe(objects: Watched) -> None:
    batcher = CheckpointBatcher(objects)
    for epoch in (1, 2, 3):
        batcher.add("k", b"d%d" % epoch)
        batcher.flush(epoch)
    batcher.forget(2)
    assert [len(batcher.flushed(epoch)) for epoch in (1, 2, 3)] == [0, 0, 1]
    assert len(batcher._next_part) == 1
    batcher.add("k", b"late")
    stored = batcher.flush(2)
    assert stored is not None
    assert stored.key == batch_key("", 2, 2)


def test_flushed_is_a_copy(objects: Watched) -> None:
    batcher = filled(objects, ("k", b"d"))
    batcher.flush(1)
    batcher.flushed(1).clear()
    assert len(batcher.flushed(1)) == 1


def test_the_same_key_twice_is_refused_until_flushed(objects: Watched) -> None:
    batcher = filled(objects, ("k", b"first"))
    with pytest.raises(Invalid) as caught:
        batcher.add("k", b"second")
    assert (caught.value.code, batcher.buffer_size) == ("batch.duplicate-key", 14)
    batcher.flush(1)
    assert content(objects, batcher.flushed(1)) == [("k", b"first")]


@pytest.mark.parametrize("epoch", [0, -1, 2**64, True, "1", 1.0, None])
def test_bad_epochs_are_refused_even_with_nothing_to_flush(objects: Watched, epoch: Any) -> None:
    for batcher in (CheckpointBatcher(objects), filled(objects, ("k", b"d"))):
        with pytest.raises(Invalid) as caught:
            batcher.flush(epoch)
        assert caught.value.code == "batch.epoch"
    assert objects.requests == []


def test_the_last_epoch_works(objects: Watched) -> None:
    assert filled(objects, ("k", b"d")).flush(2**64 - 1) is not None


@pytest.mark.parametrize("threshold", [0, -1, True, 1.5, "8"])
def test_bad_thresholds_are_refused(objects: Watched, threshold: Any) -> None:
    with pytest.raises(Invalid) as caught:
        CheckpointBatcher(objects, flush_threshold=threshold)
    assert caught.value.code == "batch.threshold"


@pytest.mark.parametrize("prefix", ["../up", "/abs", "a//b", "x/" * 500 + "x"])
def test_bad_prefixes_are_refused_at_once(objects: Watched, prefix: str) -> None:
    with pytest.raises(Invalid) as caught:
        CheckpointBatcher(objects, prefix=prefix)
    assert caught.value.code == "key.refused"


def test_opens_addresses_paths_and_anything_with_objects(tmp_path: Path, objects: Watched) -> None:
    class Store:
        def __init__(self, inner: Watched) -> None:
            self.objects = inner

    for number, where in enumerate((f"file://{tmp_path}/x", str(tmp_path / "x"), tmp_path / "x"), 1):
        filled(where, ("k", b"d")).flush(number)
        assert (tmp_path / "x" / batch_key("", number)).exists()
    filled(Store(objects), ("k", b"d")).flush(1)
    assert objects.requests == [f"create {batch_key('', 1)}"]
    with pytest.raises(Invalid) as caught:
        CheckpointBatcher(None)  # type: ignore[arg-type]
    assert caught.value.code == "batch.objects"


def test_reading_is_bounded(objects: Watched) -> None:
    stored = filled(objects, ("zeros", bytes(1_000_000))).flush(1)
    assert stored is not None
    assert read_batch(objects.inner, stored.key, limit=1_000_013).keys() == {"zeros"}
    for limit, code in ((1_000_012, "batch.size"), (100, "object.too-large")):
        with pytest.raises(Corrupt) as caught:
            read_batch(objects.inner, stored.key, limit=limit)
        assert caught.value.code == code
    with pytest.raises(NotFound):
        read_batch(objects.inner, "checkpoints/other.lz4")
