"""Syncs that were put off and then failed, or were interrupted, are made up for before anything is acknowledged."""

from __future__ import annotations

import errno

import pytest

from holdfast import CheckpointManifest, CheckpointStore
from holdfast.checkpoints.layout import DirectoryLayout, Layout, ObjectLayout
from holdfast.errors import HoldfastError
from holdfast.storage.objects import LocalObjects
from holdfast.storage.objects.store import Chunks
from holdfast.testing.faults.disk import FaultyDisk
from holdfast.testing.faults.powerloss import ForgetfulDisk, lose_everything

ROOT = "/data/deep/store"
FIRST = CheckpointManifest.new(1, 1)
LAYOUTS = [DirectoryLayout(), ObjectLayout()]


def survivors(disk: ForgetfulDisk, layout: Layout) -> list[int]:
    return CheckpointStore(LocalObjects(ROOT, disk=disk.reboot(lose_everything)), layout).list_ids()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("claims", [False, True])
def test_whichever_sync_fails_once_a_retry_that_succeeds_is_durable(layout: Layout, claims: bool) -> None:
    failed = 0
    for unlucky in range(60):
        disk = ForgetfulDisk()
        syncs = 0

        def fail(_: int, name: str, unlucky: int = unlucky) -> OSError | None:
            nonlocal syncs
            syncs += name == "directory.sync"
            return OSError(errno.EIO, "once") if name == "directory.sync" and syncs == unlucky + 1 else None

        store = CheckpointStore(LocalObjects(ROOT, disk=FaultyDisk(disk, fail)), layout)
        for act in (store.claim if claims else None, lambda store=store: store.save(FIRST)):
            try:
                act and act()
            except HoldfastError:
                failed += 1
                act()
        assert survivors(disk, layout) == [1], f"lost after sync {unlucky} had failed once"
        if syncs <= unlucky:
            break
    assert failed > 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupt_while_the_pointer_is_written_puts_nothing_off_for_ever(layout: Layout) -> None:
    class Interrupted(ForgetfulDisk):
        armed = False

        def write_file(self, path: str, chunks: Chunks, *, sync: bool = True) -> None:
            if self.armed and not sync:
                self.armed = False
                raise KeyboardInterrupt
            super().write_file(path, chunks, sync=sync)

    disk = Interrupted()
    store = CheckpointStore(LocalObjects(ROOT, disk=disk), layout)
    store.save(CheckpointManifest.new(1, 1))
    disk.armed = True
    with pytest.raises(KeyboardInterrupt):
        store.save(CheckpointManifest.new(2, 2))
    store.save(CheckpointManifest.new(3, 3))
    assert survivors(disk, layout)[-1] == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_claim_does_not_make_later_saves_sync_more(layout: Layout) -> None:
    def syncs_of_the_third_save(claims: bool) -> int:
        disk = FaultyDisk(ForgetfulDisk(), lambda *_: None)
        store = CheckpointStore(LocalObjects(ROOT, disk=disk), layout)
        if claims:
            store.claim()
        for number in (1, 2):
            store.save(CheckpointManifest.new(number, number))
        before = disk.operations.count("directory.sync")
        store.save(CheckpointManifest.new(3, 3))
        return disk.operations.count("directory.sync") - before

    assert syncs_of_the_third_save(claims=True) == syncs_of_the_third_save(claims=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES, errno.EROFS])
def test_a_reader_that_may_not_sync_reads_all_the_same(layout: Layout, code: int) -> None:
    disk = ForgetfulDisk()
    CheckpointStore(LocalObjects(ROOT, disk=disk), layout).save(FIRST)

    def refuse(_: int, name: str) -> OSError | None:
        return OSError(code, "not here") if name == "directory.sync" else None

    reader = CheckpointStore(LocalObjects(ROOT, disk=FaultyDisk(disk, refuse)), layout)
    assert reader.load_latest() is not None
    assert reader.recover_latest_validated().chosen_id == 1
