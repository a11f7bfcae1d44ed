"""Eleven things that LaminarDB's store does and a store must not do: one group of tests for each.

The numbers are those of the list in facts/laminardb.md, section 1, "Do better". Each test fails on the old behaviour.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import CheckpointStore, OperatorCheckpoint, SinkCommitStatus
from holdfast.checkpoints.layout import DirectoryLayout
from holdfast.errors import Fenced, Invalid, Unavailable
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.objects import LocalObjects, ObjectStore
from holdfast.storage.objects.store import Change, Chunks
from holdfast.testing.conformance.checkpoints.subject import (
    StoreUnderTest,
    failed,
    manifest,
    pending,
    settled,
    with_everything,
)
from places import LocalPlace, MemoryPlace, interrupt

EXTERNAL = {"agg": OperatorCheckpoint.external(0, 6)}


class Through:
    """An `ObjectStore` with some of its methods replaced."""

    def __init__(self, inner: ObjectStore, **replaced: Callable[..., Any]) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def unavailable(*_: Any, **__: Any) -> Any:
    raise Unavailable("The service answers 503.", code="cloud.unavailable")


# 1. A taken id was reported as success, and the loser's sidecar had already replaced the winner's.


def test_1_loser_is_told_and_the_winners_checkpoint_is_untouched(place: StoreUnderTest) -> None:
    place.open().save_with_state(manifest(1, operator_states=EXTERNAL, watermark=1), [b"winner"])
    place.overwrite(place.layout.pointer_key, b"")
    before = {key: place.read(key) for key in place.all_keys()}
    loser = place.open()
    with pytest.raises(Fenced):
        loser.save_with_state(manifest(1, operator_states=EXTERNAL, watermark=2), [b"loser!"])
    assert {key: place.read(key) for key in place.all_keys()} == before, "sidecar, manifest or pointer has changed"
    assert place.open().load_states(1) == {"agg": b"winner"}
    assert place.open().validate_checkpoint(1).valid


def test_1_offsets_of_two_writers_are_never_mixed(place: StoreUnderTest) -> None:
    winner, loser = manifest(1, watermark=1), manifest(1, watermark=2)
    place.open().save(winner)
    with pytest.raises(Fenced):
        place.open().save(loser)
    found = place.open().load_by_id(1)
    assert found is not None
    assert found.watermark == 1


def test_1_loser_that_wrote_its_sidecar_first_does_not_harm_the_winner(place: StoreUnderTest) -> None:
    """The order of a real race: both sidecars are out before either manifest is."""
    winner = place.open()
    inner = place.open_objects()

    def create(key: str, chunks: Chunks) -> None:
        if place.layout.manifest_id(key):
            winner.save_with_state(manifest(1, operator_states=EXTERNAL), [b"winner"])
        inner.create(key, chunks)

    loser = CheckpointStore(Through(inner, create=create), place.layout)
    with pytest.raises(Fenced):
        loser.save_with_state(manifest(1, operator_states=EXTERNAL), [b"loser!"])
    assert place.open().load_states(1) == {"agg": b"winner"}
    assert place.open().load_state_data(1) == b"winner"
    assert place.open().validate_checkpoint(1).valid
    place.open_later().cleanup_orphans()
    assert place.open().validate_checkpoint(1).valid


# 2. The pointer was read, compared and written, with no condition on the write; on disk there was no guard at all.


def test_2_late_save_and_late_update_do_not_move_the_pointer_back(place: StoreUnderTest) -> None:
    late = place.open()
    late.save(pending(1))
    place.open().save(manifest(10))
    late.save(manifest(5))
    late.update_manifest(settled(pending(1)))
    assert place.open().latest_pointer() == 10


def test_2_pointer_that_moves_between_look_and_write_does_not_go_back(memory: MemoryPlace) -> None:
    memory.open().save(manifest(1))
    inner = memory.open_objects()

    def update(key: str, change: Change, **named: Any) -> bool:
        def slow(body: bytes | None) -> bytes | None:
            decided = change(body)
            if key == memory.layout.pointer_key and memory.open().latest_pointer() == 1:
                memory.open().save(manifest(9))
            return decided

        return inner.update(key, slow, **named)

    CheckpointStore(Through(inner, update=update), memory.layout).save(manifest(5))
    assert memory.open().latest_pointer() == 9


def test_2_on_disk_the_pointer_is_compared_and_moved_under_one_lock(local: LocalPlace) -> None:
    local.open().save(manifest(9))
    seen: list[str] = []

    class Watched(PosixDisk):
        def locked(self, path: str) -> Any:
            seen.append("lock")
            return super().locked(path)

        def open_file(self, path: str) -> Any:
            seen.append("read " + os.path.basename(path))
            return super().open_file(path)

    store = CheckpointStore(LocalObjects(str(local.root), disk=Watched()), DirectoryLayout())
    store.save(manifest(5))
    assert "read latest.txt" in seen[seen.index("lock") :], "compared before the lock was held"
    assert local.open().latest_pointer() == 9


# 3. Retention counted unfinished, damaged and orphaned checkpoints; prune(0) removed everything.


@pytest.mark.parametrize("make", [pending, failed], ids=["pending", "failed"])
def test_3_epochs_that_fail_after_persisting_do_not_evict_committed_ones(
    place: StoreUnderTest, make: Callable[[int], Any]
) -> None:
    store = place.open(max_retained=3)
    store.save(manifest(1))
    for number in range(2, 8):
        store.save(make(number))
    assert 1 in place.open().list_ids()
    place.open(max_retained=3).save(make(8))
    place.open().prune(1)
    assert 1 in place.open().list_ids(), "the only committed checkpoint is gone"


def test_3_damaged_and_orphaned_ones_do_not_count(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    for number in (1, 2, 3):
        store.save(manifest(number))
    place.damage(place.manifest_key(2))
    place.overwrite(place.manifest_key(3), b"")
    for number in (4, 5, 6):
        place.open().save_state_data(number, [b"orphan"])
    place.open().prune(1)
    assert place.open().recover_latest_validated().chosen_id == 1


@pytest.mark.parametrize("count", [0, -1])
def test_3_prune_of_everything_is_refused(place: StoreUnderTest, count: int) -> None:
    place.open().save(manifest(1))
    with pytest.raises(Invalid):
        place.open().prune(count)
    assert place.open().list_ids() == [1]


def test_3_retention_waits_for_the_sinks(place: StoreUnderTest) -> None:
    store = place.open(max_retained=1)
    store.save(manifest(1))
    store.save(pending(2))
    assert place.open().list_ids() == [1, 2], "removed before the new one was committed"
    store.update_manifest(settled(pending(2)))
    assert place.open().list_ids() == [2]


# 4. Prune ignored parents.


def test_4_prune_keeps_ancestors(place: StoreUnderTest) -> None:
    store = place.open(max_retained=1)
    for number in (1, 2, 3):
        store.save_states(manifest(number), {"same": b"s" * 100, "changing": b"%d" % number})
    assert place.open().prune(1) == 0
    assert place.open().list_ids() == [1, 2, 3]
    assert place.open().load_states(3) == {"same": b"s" * 100, "changing": b"3"}


# 5. Fixed temporary names collided; leftovers and empty folders stayed for ever; the base was never synced.


def test_5_no_two_writes_share_a_temporary_name(local: LocalPlace) -> None:
    written: list[str] = []

    class Watched(PosixDisk):
        def write_file(self, path: str, chunks: Chunks, *, sync: bool = True) -> None:
            written.append(path)
            super().write_file(path, chunks, sync=sync)

    for _ in range(2):
        store = CheckpointStore(LocalObjects(str(local.root), disk=Watched()), DirectoryLayout())
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(PosixDisk, "link", lambda *_: unavailable())
            with pytest.raises(Unavailable):
                store.save_with_state(manifest(1), [b"state"])
    assert len(set(written)) == 2
    assert all(path.endswith(".tmp") for path in written)


def test_5_leftovers_tmp_only_folders_and_empty_folders_are_swept(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    checkpoints = local.root / "checkpoints"
    interrupt(local.root, manifest(2))
    for number, leftover in enumerate(["manifest.json.tmp", "state.bin.tmp", None], 3):
        folder = checkpoints / f"checkpoint_{number:06}"
        folder.mkdir()
        if leftover:
            (folder / leftover).write_bytes(b"half")
    (checkpoints / "latest.txt.tmp").write_bytes(b"check")
    assert local.open().list_ids() == [1]
    assert local.open().cleanup_orphans() == 0, "they are young: somebody may be writing"
    assert local.open_later().cleanup_orphans() == 5
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint_000001", "latest.txt"]


def test_5_every_folder_on_the_way_is_synced(local: LocalPlace) -> None:
    synced: set[str] = set()

    class Watched(PosixDisk):
        def sync_directory(self, path: str) -> None:
            synced.add(path)
            super().sync_directory(path)

    CheckpointStore(LocalObjects(str(local.root), disk=Watched()), DirectoryLayout()).save(manifest(1))
    checkpoints = local.root / "checkpoints"
    expected = {checkpoints / "checkpoint_000001", checkpoints, local.root, local.root.parent}
    assert {str(path) for path in expected} <= synced


# 6. Orphan clean-up had no age guard and deleted checkpoints that were being written.


def test_6_sidecar_in_flight_is_left_alone_and_an_old_one_goes(local: LocalPlace) -> None:
    writer = local.open()
    writer.save_state_data(1, [b"in flight"])
    local.open().save_state_data(2, [b"died an hour ago"])
    old = time.time() - 4000
    os.utime(local.root / local.sidecar_key(2), (old, old))
    assert local.open().cleanup_orphans() == 1
    assert local.open().load_state_data(2) is None
    writer.save(manifest(1))
    assert local.open().validate_checkpoint(1).valid
    assert local.open().load_state_data(1) == b"in flight"


def test_6_save_in_flight_survives_a_clean_up_at_every_step(local: LocalPlace) -> None:
    from holdfast.base import steps

    swept: list[str] = []

    def sweep(name: str, phase: str, _: float) -> None:
        if phase == "begin" and name not in swept and not name.startswith(("orphans", "checkpoints.delete")):
            swept.append(name)
            local.open().prune(1)

    stop = steps.observe(sweep)
    try:
        local.open().save_with_state(manifest(1, operator_states=EXTERNAL), [b"winner"])
    finally:
        stop()
    assert {"sidecar.create", "manifest.create", "file.link", "pointer.advance"} <= set(swept)
    assert local.open().load_states(1) == {"agg": b"winner"}


def test_6_looking_deletes_nothing(place: StoreUnderTest) -> None:
    place.open().save(manifest(1))
    place.open().save_state_data(2, [b"orphan"])
    place.damage(place.manifest_key(1))
    before = place.all_keys()
    store = place.open_later()
    store.recover_latest_validated()
    store.validate_checkpoint(1)
    store.list()
    store.plan_cleanup()
    store.plan_prune(1)
    assert place.all_keys() == before


# 7. Inline operators with a sidecar were stamped as mixed and validated as inline: never valid.


def test_7_inline_operators_with_a_sidecar_validate(place: StoreUnderTest) -> None:
    inline = {"a": OperatorCheckpoint.inline(b"1"), "b": OperatorCheckpoint.inline(b"")}
    place.open().save_with_state(manifest(1, operator_states=inline), [b"chunk", b"chunk"])
    assert place.open().validate_checkpoint(1).issues == []
    assert place.open().recover_latest_validated().chosen_id == 1


def test_7_as_laminardb_wrote_it(place: StoreUnderTest) -> None:
    inline = hashlib.sha256(b"a\0MQ==\0").hexdigest()
    mixed = hashlib.sha256(inline.encode() + b"chunk").hexdigest()
    place.plant(1, operator_states={"a": {"state_b64": "MQ=="}}, state_checksum=mixed, sidecar=b"chunk")
    assert place.open().validate_checkpoint(1).valid
    place.overwrite(place.sidecar_key(1), b"chunK")
    assert not place.open().validate_checkpoint(1).valid


# 8. The checksum left out offsets and epochs, slices without one were believed, and no id was compared with its path.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"p0": "17"', b'"p0": "18"'),
        (b'"epoch": 3', b'"epoch": 4'),
        (b'"watermark": -5', b'"watermark": -6'),
        (b'"lake": 3', b'"lake": 2'),
        (b'"Committed"', b'"Pending"'),
        (b'"checkpoint_id": 3', b'"checkpoint_id":  3'),
        (b"}\n", b"} "),
    ],
)
def test_8_the_checksum_covers_the_whole_manifest(place: StoreUnderTest, old: bytes, new: bytes) -> None:
    place.open().save(with_everything(3))
    body = place.read(place.manifest_key(3))
    assert old in body
    head, _, tail = body.rpartition(old)
    place.overwrite(place.manifest_key(3), head + new + tail)
    assert not place.open().validate_checkpoint(3).valid


@pytest.mark.parametrize("sidecar", [None, b"", b"winne"], ids=["missing", "empty", "short"])
def test_8_slice_without_a_checksum_needs_its_bytes(place: StoreUnderTest, sidecar: bytes | None) -> None:
    slices = {"agg": {"external": True, "external_offset": 0, "external_length": 6}}
    place.plant(1, operator_states=slices, sidecar=sidecar)
    result = place.open().validate_checkpoint(1)
    assert not result.valid
    assert "agg" in result.reason or place.sidecar_key(1) in result.reason


def test_8_manifest_under_another_id_is_not_believed(place: StoreUnderTest) -> None:
    place.open().save(manifest(1))
    place.plant(2, checkpoint_id=7)
    place.overwrite(place.manifest_key(3), place.read(place.manifest_key(1)))
    assert not place.open().validate_checkpoint(2).valid
    assert not place.open().validate_checkpoint(3).valid
    assert place.open().list() == [(1, 1)], "an id that is only inside a manifest was listed"
    assert place.open().recover_latest_validated().chosen_id == 1


# 9. A manifest that was not UTF-8, or one failed read, ended the whole walk.


@pytest.mark.parametrize("body", [b"\xff\xfe\xfa", b'{"version": 1, "x": "\xc3\x28"}', b"\x00" * 100])
def test_9_bytes_that_are_no_text_do_not_end_the_walk(place: StoreUnderTest, body: bytes) -> None:
    place.open().save(manifest(1))
    place.overwrite(place.manifest_key(2), body)
    report = place.open().recover_latest_validated()
    assert report.chosen_id == 1
    assert [number for number, _ in report.skipped] == [2]
    assert place.open().list() == [(1, 1)]


def test_9_one_failed_read_does_not_end_the_walk(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    for number in (1, 2, 3):
        store.save_with_state(manifest(number, operator_states=EXTERNAL), [b"winner"])
    inner = place.open_objects()

    def read(key: str, **named: Any) -> bytes:
        return unavailable() if key == place.manifest_key(3) else inner.read(key, **named)

    def stream(key: str, **named: Any) -> Any:
        return unavailable() if key == place.sidecar_key(2) else inner.stream(key, **named)

    report = CheckpointStore(Through(inner, read=read, stream=stream), place.layout).recover_latest_validated()
    assert report.chosen_id == 1
    assert [number for number, _ in report.skipped] == [3, 2]
    assert report.unreadable == [3, 2], "they are not damaged, and trying again may help"
    assert "503" in report.skipped[0][1]


# 10. A save whose manifest was durable failed because the pointer could not be written.


def test_10_pointer_that_cannot_be_written_does_not_fail_a_durable_save(
    place: StoreUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(Through(place.open_objects(), update=unavailable), place.layout)
    with caplog.at_level(logging.WARNING, "holdfast"):
        store.save_with_state(manifest(1), [b"state"])
    assert "checkpoint 1 is saved" in caplog.text
    assert place.open().latest_pointer() is None
    assert place.open().load_latest() is not None
    assert place.open().recover_latest_validated().chosen_id == 1
    place.open().save(manifest(2))
    assert place.open().latest_pointer() == 2


def test_10_retention_that_fails_does_not_fail_a_durable_save(place: StoreUnderTest) -> None:
    store = CheckpointStore(Through(place.open_objects(), delete=unavailable), place.layout, max_retained=1)
    for number in (1, 2, 3):
        store.save(manifest(number))
    assert place.open().list_ids() == [1, 2, 3]


def test_10_retention_that_cannot_look_does_not_fail_a_durable_save(place: StoreUnderTest) -> None:
    objects = Through(place.open_objects())
    store = CheckpointStore(objects, place.layout, max_retained=1)
    store.save(manifest(1))
    objects.list = unavailable
    store.save(manifest(3))  # passes an id over, so it has to be looked for
    del objects.list
    assert place.open().list_ids() == [1, 3]
    store.save(manifest(4))
    assert place.open().list_ids() == [4], "and the next save makes up for it"


def test_10_save_whose_manifest_failed_is_reported(place: StoreUnderTest) -> None:
    store = CheckpointStore(Through(place.open_objects(), create=unavailable), place.layout)
    with pytest.raises(Unavailable):
        store.save(manifest(1))
    assert place.open().list_ids() == []
    assert place.layout.pointer_key not in place.all_keys()


# 11. A vnode mismatch was called unsafe, then only warned about, and compared with a constant.


def test_11_vnode_count_is_compared_with_the_stores_own_and_says_what_to_do(place: StoreUnderTest) -> None:
    place.open(vnode_count=64).save(manifest(1, vnode_count=64))
    assert place.open(vnode_count=64).validate_checkpoint(1).issues == []
    for runtime in (256, 32):
        result = place.open(vnode_count=runtime).validate_checkpoint(1)
        assert result.valid
        assert len(result.issues) == 1
        assert not result.issues[0].is_fatal
        assert f"this runtime uses {runtime}" in result.issues[0].message
        assert "vnode_count=64" in result.issues[0].message


def test_11_the_walk_uses_the_stores_own_count_too(place: StoreUnderTest) -> None:
    place.open(vnode_count=64).save(manifest(1, vnode_count=64))
    assert place.open(vnode_count=64).recover_latest_validated().chosen_id == 1
    assert place.open(vnode_count=256).recover_latest_validated().chosen_id == 1


def test_failed_status_survives_and_is_forward_of_pending(place: StoreUnderTest) -> None:
    """Not in the list, but LaminarDB neither re-drives nor skips a failed sink."""
    store = place.open()
    store.save(pending(1))
    store.update_manifest(replace(pending(1), sink_commit_statuses={"out": SinkCommitStatus.failed("full")}))
    assert json.loads(place.read(place.manifest_key(1)))["sink_commit_statuses"] == {"out": {"Failed": "full"}}
    store.update_manifest(settled(pending(1)))
    found = place.open().load_by_id(1)
    assert found is not None
    assert found.is_settled
