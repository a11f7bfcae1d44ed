"""Fixtures that several folders of tests share."""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("holdfast.testing")

from hypothesis import HealthCheck, settings  # noqa: E402

from holdfast import CheckpointManifest, CheckpointStore, open_store  # noqa: E402
from holdfast.checkpoints.layout import DirectoryLayout, Layout, ObjectLayout  # noqa: E402
from holdfast.errors import Unavailable  # noqa: E402
from holdfast.objects import LocalObjects, Objects, open_objects  # noqa: E402
from holdfast.objects.disk import PosixDisk  # noqa: E402
from holdfast.testing.conformance_subject import Abilities, StoreUnderTest  # noqa: E402
from holdfast.testing.servers import S3Server, moto_server  # noqa: E402

pytest_plugins = ["allowed_skips"]

# What takes long here is the disk or the server, and both have bad moments.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("holdfast")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for all tests of this process; each takes a new bucket."""
    with moto_server() as server:
        yield server


class LocalPlace(StoreUnderTest):
    """A store on local disk."""

    layout = DirectoryLayout()
    abilities = Abilities(leftovers=True)

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.root, **options)

    def open_objects(self) -> Objects:
        return open_objects(self.root)


class MemoryPlace(StoreUnderTest):
    """A store in this process's memory."""

    layout = ObjectLayout()
    abilities = Abilities(leftovers=False)

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.url, **options)

    def open_objects(self) -> Objects:
        return open_objects(self.url)


class DyingDisk(PosixDisk):
    """A disk on which a write never gets as far as its name, nor its clean-up."""

    def link(self, existing: str, new: str) -> None:
        raise OSError(errno.EIO, "the process died here")

    def rename(self, old: str, new: str) -> None:
        self.link(old, new)

    def remove_file(self, path: str) -> None:
        self.link(path, path)


def interrupt(root: Path, manifest: CheckpointManifest, layout: Layout | None = None) -> None:
    """Leave behind what a save leaves when its process dies in the middle of writing the manifest."""
    with contextlib.suppress(Unavailable):
        CheckpointStore(LocalObjects(str(root), disk=DyingDisk()), layout or DirectoryLayout()).save(manifest)


@pytest.fixture
def local(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path / "store")


@pytest.fixture
def memory() -> MemoryPlace:
    return MemoryPlace()


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest) -> StoreUnderTest:
    """A store on each medium that needs no server."""
    found: StoreUnderTest = request.getfixturevalue(request.param)
    return found
