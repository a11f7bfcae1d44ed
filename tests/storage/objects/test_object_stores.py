"""The media contract, on every medium."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

import pytest
from hdfs_native import Client

from holdfast.errors import Unavailable
from holdfast.storage.objects import LocalObjects, ObjectStore, open_objects
from holdfast.testing.conformance.checkpoints.suite import Abilities, ObjectsConformance
from places import DyingDisk
from servers.clouds import new_address
from servers.hdfs import HdfsServer


class TestLocal(ObjectsConformance):
    abilities = Abilities(leftovers=True)

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "store"

    def open(self) -> ObjectStore:
        return open_objects(self.root)

    def quick_create(self, key: str) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    def plant_leftover(self) -> None:
        dying = LocalObjects(str(self.root), disk=DyingDisk())
        for act in (lambda: dying.create("a/new", [b"x"]), lambda: dying.update("c/new", lambda _: b"x")):
            with contextlib.suppress(Unavailable):
                act()
        (self.root / "c" / "empty").mkdir()


class TestMemory(ObjectsConformance):
    abilities = Abilities(leftovers=False)

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def open(self) -> ObjectStore:
        return open_objects(self.url)


class OnCloud(ObjectsConformance):
    abilities = Abilities(leftovers=False)
    scheme: str

    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest) -> None:
        self.url, self.options = new_address(request, self.scheme, "some/prefix")

    def open(self) -> ObjectStore:
        return open_objects(self.url, options=self.options)


@pytest.mark.s3
class TestS3(OnCloud):
    scheme = "s3"


class TestGoogle(OnCloud):
    """In `make test`, too: it needs nothing but this process, and seconds."""

    scheme = "gs"


@pytest.mark.clouds
class TestAzure(OnCloud):
    scheme = "az"


class TestHdfs(ObjectsConformance):
    abilities = Abilities(leftovers=True)

    @pytest.fixture(autouse=True)
    def place(self, hdfs: HdfsServer) -> None:
        self.url = hdfs.new_folder()
        self.root = self.url.removeprefix(hdfs.address)
        self.client = Client(hdfs.address)

    def open(self) -> ObjectStore:
        return open_objects(self.url)

    def quick_create(self, key: str) -> None:
        self.client.create(f"{self.root}/{key}").close()  # no block, no DataNode

    def plant_leftover(self) -> None:
        for name in ("a/.new.0123456789abcdef-0.tmp", "c/.new.u0123456789abcdef-0.tmp"):
            self.client.create(f"{self.root}/{name}").close()
        self.client.mkdirs(f"{self.root}/c/.removal.u0123456789abcdef-0.tmp")
        self.client.create(f"{self.root}/c/.removal.u0123456789abcdef-0.tmp/0").close()
        self.client.mkdirs(f"{self.root}/c/empty")
