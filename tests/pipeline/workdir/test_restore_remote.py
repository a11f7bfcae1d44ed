"""Restoring from a store on a server into a workdir on the same one: large files, whole, read once and never kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from holdfast import CheckpointManifest, CheckpointStore, open_store
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.errors import NotFound, Unavailable
from holdfast.pipeline.workdir import entries, large_files, pack
from holdfast.pipeline.workdir.remote import RemoteWorkdir
from holdfast.pipeline.workdir.restore import restore
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from holdfast.storage.files.directory import NewFile
from holdfast.storage.objects.directory import ObjectDirectory
from holdfast.testing.conformance.checkpoints.subject import manifest
from servers.clouds import CLOUDS, new_address
from workdir_files import OWNER, HandMade, HdfsState

PART = 1000
LARGE = {
    "state/0/0/1.delta": bytes(range(256)) * 40,
    "state/0/1/1.delta": b"two parts " * 150,
    "state/0/1/2.delta": b"one part and a bit" * 56,
}


@pytest.fixture(params=["memory", *CLOUDS, "hdfs"])
def address(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    if request.param == "memory":
        return f"memory://{request.node.name}", {}
    if request.param == "hdfs":
        return str(request.getfixturevalue("hdfs").new_folder()), {}
    return new_address(request, request.param, "large")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "PART_BYTES", PART)
    monkeypatch.setattr(pack, "PACKED_TOGETHER", PART // 2)
    monkeypatch.setattr(large_files, "LARGE", PART // 2)


@pytest.fixture
def store(address: tuple[str, dict[str, str]]) -> CheckpointStore:
    url, options = address
    return open_store(f"{url}/store", options=options)


@pytest.fixture
def workdir(address: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> RemoteWorkdir:
    monkeypatch.setattr("holdfast.pipeline.workdir.remote.active_session", lambda: None)
    url, options = address
    return RemoteWorkdir(f"{url}/workdir", options=options).fenced(1, lambda: None)


def captured(store: CheckpointStore, root: Path) -> tuple[HandMade, CheckpointManifest]:
    """A checkpoint of batch 2 with large files and small ones."""
    made = HandMade(root)
    made.begin()
    state = HdfsState(made)
    for batch in range(3):
        made.plan(batch)
        state.plan(batch)
        if batch < 2:
            state.run(batch)
            made.commit(batch)
    for path, data in LARGE.items():
        made.write(path, data)
    taken = WorkdirSnapshotter(made.workdir, store).snapshot(2, 3)
    found = manifest(3, wal_position=2, holdfast=HoldfastSection(batches=taken.batches, inherited=[], live=taken.live))
    store.save(found)
    return made, found


def counted(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each object is read, from now on."""
    reads: Counter[str] = Counter()
    stream: Callable[..., Any] = store.objects.stream

    def counting(key: str, **how: Any) -> Any:
        reads[key] += 1
        return stream(key, **how)

    monkeypatch.setattr(store.objects, "stream", counting)
    return reads


@pytest.mark.parametrize("together", [PART // 2, 1 << 20], ids=["apart", "together"])
def test_large_files_are_restored_and_each_object_is_read_once(
    store: CheckpointStore, workdir: RemoteWorkdir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(pack, "PACKED_TOGETHER", together)
    made, found = captured(store, tmp_path / "work")
    assert (len(found.needed_batches) == 1) == (together > PART)
    reads = counted(store, monkeypatch)
    held = restore(workdir, store.objects, found, OWNER)
    assert {path: workdir.directory.read(path) for path in held} == {path: made.files()[path] for path in held}
    assert set(LARGE) < set(held)
    assert reads == Counter(batch.key for batch in found.needed_batches)


@pytest.mark.parametrize("address", ["memory"], indirect=True)
@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "not recorded"])
def test_parts_in_another_order(
    store: CheckpointStore, workdir: RemoteWorkdir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    """No release packs them so, but nothing in the format forbids it; older ones did not record which entries count."""
    made, found = captured(store, tmp_path / "work")
    section = replace(found.own, batches=found.own.batches[::-1], live={} if is_recorded else UNSET)
    held = restore(workdir, store.objects, replace(found, holdfast=section), OWNER)
    assert {path: workdir.directory.read(path) for path in LARGE} == LARGE
    assert held.keys() == {path for path in made.files() if path not in ("offsets/0", "commits/0")}


@pytest.mark.parametrize("address", ["memory", pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
@pytest.mark.parametrize("lost", range(0, 17, 4))
def test_an_object_that_is_gone(store: CheckpointStore, workdir: RemoteWorkdir, tmp_path: Path, lost: int) -> None:
    """The others do not wait for it, and nothing of the new place is left."""
    _, found = captured(store, tmp_path / "work")
    key = found.needed_batches[lost].key
    store.objects.delete([key])
    with pytest.raises(NotFound, match=re.escape(key)):
        restore(workdir, store.objects, found, OWNER)
    assert [info.key for info in workdir._objects.list("")] == []


@pytest.mark.parametrize("address", ["memory"], indirect=True)
def test_a_place_that_cannot_be_written(
    store: CheckpointStore, workdir: RemoteWorkdir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = captured(store, tmp_path / "work")
    broken = Unavailable("Nobody can write there.", code="cloud.unavailable")
    begun = ObjectDirectory.new_file

    def new_file(directory: ObjectDirectory, path: str) -> NewFile:
        if path == "state/0/1/1.delta":
            raise broken
        return begun(directory, path)

    monkeypatch.setattr(ObjectDirectory, "new_file", new_file)
    with pytest.raises(Unavailable) as refused:
        restore(workdir, store.objects, found, OWNER)
    assert refused.value is broken
