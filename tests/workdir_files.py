"""Workdirs made by hand: what Spark leaves on disk for each batch, without Spark."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.owner import WorkdirOwner

OWNER = WorkdirOwner("orders", "memory://orders")
QUERY_ID = "9f1c0a7e-0000-4000-8000-000000000001"


def offset_log(*ends: str, watermark: int = 0, version: str = "v1", partitions: int = 2) -> str:
    settings = {"spark.sql.shuffle.partitions": str(partitions)}
    head = {"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": settings}
    return "\n".join([version, json.dumps(head), *(ends or ("0",))])


def commit_log(watermark: int = 0) -> str:
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'


def operator_metadata(
    *stores: str, partitions: int = 2, name: str = "stateStoreSave", version: str = "v1", operator: int = 0
) -> str:
    """What Spark writes of one stateful operator."""
    listed = [{"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions} for store in stores]
    body = {"operatorInfo": {"operatorId": operator, "operatorName": name}, "stateStoreInfo": listed}
    return f"{version}\n{json.dumps(body)}"


def archive(*stored: str, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A RocksDB snapshot archive that refers to files of these names in its store's shared folders."""
    ssts = [name for name in stored if name.endswith(".sst")]
    listed = {
        "sstFiles": [{"localFileName": name[:6], "dfsSstFileName": name, "sizeBytes": 1} for name in ssts],
        "logFiles": [
            {"localFileName": name[:6], "dfsLogFileName": name, "sizeBytes": 1} for name in stored if name not in ssts
        ],
        "numKeys": 3,
    }
    return archive_with(f"v1\n{json.dumps(listed)}", compression=compression)


def archive_with(metadata: str | bytes, *, name: str = "metadata", compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The same bytes at any time: entries have a date of their own, not today's."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as opened:
        opened.writestr(zipfile.ZipInfo("MANIFEST-000005"), b"\x00" * 50, compression)
        opened.writestr(zipfile.ZipInfo(name), metadata, compression)
    return body.getvalue()


class HandMade:
    """A workdir that behaves as Spark's does, batch after batch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workdir = LocalWorkdir(root)
        self.partitions = 2
        self._writes = 0

    def begin(self) -> None:
        self.workdir.make(OWNER)
        self.write("metadata", json.dumps({"id": QUERY_ID}))

    def write(self, path: str, data: str | bytes) -> None:
        """Put a file there as Spark does: under a hidden name first. Every write has a time of its own."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{target.name}.tmp")
        data = data.encode() if isinstance(data, str) else data
        hidden.write_bytes(data)
        self._writes += 1
        os.utime(hidden, ns=(self._writes, self._writes))
        hidden.rename(target)
        pieces = [data[start : start + 512] for start in range(0, len(data), 512)]
        sums = b"".join(zlib.crc32(piece).to_bytes(4, "big") for piece in pieces)
        (target.parent / f".{target.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def plan(self, batch_id: int) -> None:
        """What is there when a batch begins."""
        self.write(
            f"offsets/{batch_id}",
            offset_log(f'{{"logOffset":{batch_id}}}', watermark=batch_id, partitions=self.partitions),
        )

    def commit(self, batch_id: int) -> None:
        """What Spark writes once a batch is done."""
        self.write(f"commits/{batch_id}", commit_log(batch_id + 1))

    def files(self) -> dict[str, bytes]:
        """Everything that is not hidden."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(self.root).parts)
        }

    def lose(self) -> None:
        shutil.rmtree(self.root)


class HdfsState:
    """State as the default provider keeps it: a delta per version and partition, now and then a snapshot."""

    def __init__(self, made: HandMade, *, partitions: int = 2, snapshot_every: int = 5, keep: int = 12) -> None:
        self._made = made
        self._partitions = made.partitions = partitions
        self._snapshot_every = snapshot_every
        self._keep = keep

    def plan(self, batch_id: int) -> None:
        if batch_id == 0:
            self._made.write("state/0/_metadata/metadata", operator_metadata("default", partitions=self._partitions))
            self._made.write("state/0/0/_metadata/schema", b"v2\x00schema")

    def run(self, batch_id: int) -> None:
        version = batch_id + 1
        for partition in range(self._partitions):
            folder = f"state/0/{partition}"
            self._made.write(f"{folder}/{version}.delta", f"delta {version} of {partition}".encode() * 9)
            if version % self._snapshot_every == 0:
                self._made.write(f"{folder}/{version}.snapshot", f"snapshot {version} of {partition}".encode() * 20)
            for name in os.listdir(self._made.root / folder):
                number = name.partition(".")[0]
                if number.isdigit() and int(number) <= version - self._keep:
                    self._made.remove(f"{folder}/{name}")


class RocksState:
    """State as RocksDB keeps it: an archive per version that refers to shared files."""

    def __init__(self, made: HandMade, *, keep: int = 3, size: int = 2000) -> None:
        self._made = made
        self._keep = keep
        self._size = size
        self._live: list[str] = []
        made.partitions = 1

    def plan(self, batch_id: int) -> None:
        if batch_id == 0:
            address = f"file:{self._made.workdir.path}"
            described = json.loads(operator_metadata("default", partitions=1, version="v2").partition("\n")[2])
            described["stateStoreInfo"][0]["stateSchemaFilePaths"] = [f"{address}/state/0/schema"]
            self._made.write("state/0/_metadata/v2/0", f"v2\n{json.dumps(described)}")

    def run(self, batch_id: int) -> None:
        version = batch_id + 1
        new = f"{version:06}-uuid.sst"
        self._made.write(f"state/0/0/SSTs/{new}", bytes([version % 256]) * self._size)
        # Every fourth version all but the first file are merged into one, as a compaction does.
        self._live = [*self._live[:1], new] if version % 4 == 0 else [*self._live, new]
        self._made.write(f"state/0/0/{version}.zip", archive(*self._live))
        old = self._made.root / f"state/0/0/{version - self._keep}.zip"
        if old.exists():
            old.unlink()


def states_of(paths: Iterable[str]) -> dict[str, list[int]]:
    """Versions by kind, for tests that look at chains."""
    found: dict[str, list[int]] = {}
    for path in paths:
        number, _, kind = path.rpartition("/")[2].partition(".")
        found.setdefault(kind, []).append(int(number.partition("_")[0]))
    return {kind: sorted(versions) for kind, versions in found.items()}


def without(files: Mapping[str, bytes], *paths: str) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if path not in paths}
