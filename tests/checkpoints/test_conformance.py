"""The conformance suite, on every medium and in both layouts."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client

from holdfast import CheckpointStore, open_store
from holdfast.checkpoints.layout import DirectoryLayout, ObjectLayout
from holdfast.storage.objects import ObjectStore, open_objects
from holdfast.testing.conformance.checkpoints.subject import manifest
from holdfast.testing.conformance.checkpoints.suite import Abilities, CheckpointStoreConformance
from places import interrupt
from servers.clouds import new_address
from servers.hdfs import HdfsServer


class TestLocal(CheckpointStoreConformance):
    layout = DirectoryLayout()
    abilities = Abilities(leftovers=True)

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "store"

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.root, **options)

    def open_beside(self, **options: Any) -> CheckpointStore:
        return open_store(f"file://{self.root}2", **options)

    def open_objects(self) -> ObjectStore:
        return open_objects(self.root)

    def plant_leftovers(self) -> int:
        interrupt(self.root, manifest(2))
        folder = self.root / "checkpoints"
        (folder / "checkpoint_000003").mkdir()
        (folder / "checkpoint_000004").mkdir()
        (folder / "checkpoint_000004" / "state.bin.tmp").write_bytes(b"")
        return 3


class TestLocalObjectLayout(TestLocal):
    layout = ObjectLayout()  # type: ignore[assignment]

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.root, layout="object", **options)

    def open_beside(self, **options: Any) -> CheckpointStore:
        return open_store(f"{self.root}2", layout="object", **options)

    def plant_leftovers(self) -> int:
        interrupt(self.root, manifest(2), ObjectLayout())
        return 1


class TestMemory(CheckpointStoreConformance):
    layout = ObjectLayout()
    abilities = Abilities(leftovers=False)

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.url, **options)

    def open_beside(self, **options: Any) -> CheckpointStore:
        return open_store(f"{self.url}2", **options)

    def open_objects(self) -> ObjectStore:
        return open_objects(self.url)


class OnCloud(CheckpointStoreConformance):
    layout = ObjectLayout()
    abilities = Abilities(leftovers=False)
    scheme: str

    @pytest.fixture(autouse=True)
    def place(self, request: pytest.FixtureRequest) -> None:
        self.url, self.options = new_address(request, self.scheme, "team/pipeline")

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.url, options=self.options, **options)

    def open_beside(self, **options: Any) -> CheckpointStore:
        return open_store(f"{self.url}2", options=self.options, **options)

    def open_objects(self) -> ObjectStore:
        return open_objects(self.url, options=self.options)

    def test_everything_is_below_the_prefix(self) -> None:
        self.open().save_with_state(manifest(1), [b"state"])
        whole = open_objects(self.url.removesuffix("/team/pipeline"), options=self.options)
        assert [info.key for info in whole.list("")] == [
            "team/pipeline/checkpoints/state-000001.bin",
            "team/pipeline/manifests/latest.json",
            "team/pipeline/manifests/manifest-000001.json",
        ]


@pytest.mark.s3
class TestS3(OnCloud):
    scheme = "s3"


@pytest.mark.clouds
class TestGoogle(OnCloud):
    scheme = "gs"


@pytest.mark.clouds
class TestAzure(OnCloud):
    scheme = "az"


class TestHdfs(CheckpointStoreConformance):
    layout = ObjectLayout()
    abilities = Abilities(leftovers=True)

    @pytest.fixture(autouse=True)
    def place(self, hdfs: HdfsServer) -> None:
        self.server = hdfs
        self.url = hdfs.new_folder()

    def open(self, **options: Any) -> CheckpointStore:
        return open_store(self.url, **options)

    def open_beside(self, **options: Any) -> CheckpointStore:
        return open_store(f"{self.url}2", **options)

    def open_objects(self) -> ObjectStore:
        return open_objects(self.url)

    # Seconds each: many checkpoints.
    test_young_ones_stay_and_old_ones_go = pytest.mark.soak(
        CheckpointStoreConformance.test_young_ones_stay_and_old_ones_go
    )
    test_ancestors_of_young_ones_stay = pytest.mark.soak(CheckpointStoreConformance.test_ancestors_of_young_ones_stay)

    def plant_leftovers(self) -> int:
        client, root = Client(self.server.address), self.url.removeprefix(self.server.address)
        client.create(f"{root}/manifests/.manifest-000002.json.0123456789abcdef-0.tmp").close()
        client.create(f"{root}/manifests/.latest.json.u0123456789abcdef-0.tmp").close()
        client.mkdirs(f"{root}/checkpoints/.removal.u0123456789abcdef-0.tmp", create_parent=True)
        client.create(f"{root}/checkpoints/.removal.u0123456789abcdef-0.tmp/0").close()
        return 3
