"""Things on a disk that are not files, or that may not be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.checkpoints.layout import DirectoryLayout
from holdfast.checkpoints.store import CheckpointStore
from holdfast.errors import HoldfastError, NotFound
from holdfast.storage.files.disk import Entry, PosixDisk
from holdfast.storage.objects import LocalObjects
from holdfast.testing.conformance.checkpoints.subject import manifest
from places import LocalPlace


def test_folder_in_place_of_a_manifest_or_pointer(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    (local.root / local.manifest_key(2)).mkdir(parents=True)
    (local.root / local.manifest_key(2) / "x").write_bytes(b"x")
    (local.root / local.layout.pointer_key).unlink()
    (local.root / local.layout.pointer_key).mkdir()
    assert local.open().list_ids() == [1]
    assert local.open().recover_latest_validated().chosen_id == 1
    local.open().save(manifest(3))
    assert local.open().recover_latest_validated().chosen_id == 3


def test_links_that_go_round_in_circles(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    for name in ("a", "b"):
        (local.root / "checkpoints" / name).symlink_to(".")
    (local.root / "checkpoints" / "up").symlink_to("..")
    (local.root / "checkpoints" / "self").symlink_to("self")
    (local.root / "checkpoints" / "nowhere").symlink_to("gone")
    assert local.open().list_ids() == [1]
    assert local.open().recover_latest_validated().chosen_id == 1
    assert local.open_later().prune(1) == 0
    local.open().save(manifest(2))


def test_manifest_that_is_a_pipe_does_not_hang(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    path = local.root / local.manifest_key(2)
    path.parent.mkdir()
    os.mkfifo(path)
    program = "import sys, holdfast; print(holdfast.open_store(sys.argv[1]).recover_latest_validated().chosen_id)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(local.root)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "1"


def test_folder_that_may_not_be_read_does_not_stop_the_store(local: LocalPlace) -> None:
    """A mount point has a `lost+found` that only root may read."""
    local.open().save(manifest(1))
    local.open().save_state_data(2, [b"orphan"])
    (local.root / "lost+found").mkdir()

    class Guarded(PosixDisk):
        def scan(self, path: str) -> list[Entry]:
            if path.endswith("lost+found"):
                raise PermissionError(13, "Permission denied", path)
            return super().scan(path)

    store = CheckpointStore(LocalObjects(str(local.root), disk=Guarded()), DirectoryLayout(), orphan_grace=0)
    assert store.recover_latest_validated().chosen_id == 1
    assert store.prune(1) == 0
    assert store.load_state_data(2) is None


def test_store_whose_place_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file")
    store = open_store(tmp_path / "store")
    with pytest.raises(HoldfastError) as caught:
        store.save(manifest(1))
    assert not isinstance(caught.value, NotFound), "a writer is not told that something is missing"
    assert (tmp_path / "store").read_bytes() == b"a file"
