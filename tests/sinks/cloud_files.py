"""File sinks on object storage without Spark: what is staged by hand, and what each kind of reader sees."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet

from holdfast.sinks import Delivery, FileSink
from holdfast.sinks.files import cloud
from holdfast.sinks.files.cloud import CloudFiles, _Opened
from holdfast.storage.objects import CloudObjects, open_objects
from holdfast.testing.conformance.sinks import Row


class CloudPlace:
    """A path of its own in a bucket, for one sink."""

    def __init__(self, bucket: str, options: dict[str, str], folder: str | None = None) -> None:
        self.parent, self.options = f"s3://{bucket}/{folder or uuid.uuid4().hex}", options
        self.root = f"{self.parent}/out"
        objects = open_objects(self.parent, options=options)
        assert isinstance(objects, CloudObjects)
        self.objects = objects

    def sink(self, **options: str) -> FileSink:
        return FileSink(self.root, storage_options=self.options | options)

    def claim(self, delivery: Delivery) -> None:
        sink = self.sink()
        opened_of(sink).owner.claim(layout_of(sink).owner(delivery))
        opened_of(sink).log.begin()

    def stage(self, rows: Sequence[Row], to: Delivery, files: int = 2) -> dict[str, Any]:
        staging = opened_of(self.sink()).staging
        with staging.new(to) as name:
            for number in range(files):
                key = staging.key(name, f"part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet")
                self.objects.create(key, [parquet(rows[number::files])])
            staging.seal(name, to)
        return {"staged": name, "mark": to.mark}

    def deliver(self, rows: Sequence[Row], to: Delivery) -> None:
        self.sink().commit(self.stage(rows, to), to)

    def all_keys(self) -> list[str]:
        return [info.key for info in self.objects.list("")]

    def staged(self) -> list[str]:
        below = "_out.holdfast-staging/"
        return sorted({key.removeprefix(below).partition("/")[0] for key in self.all_keys() if key.startswith(below)})

    def listed(self) -> list[Row]:
        """The rows that a reader sees that takes every parquet file below the path, however deep."""
        return rows_of(
            self.objects, [key for key in self.all_keys() if key.startswith("out/") and key.endswith("parquet")]
        )

    def logged(self) -> list[Row]:
        """The rows that Spark's readers see."""
        return rows_of(self.objects, [f"out/{path}" for path in logged_files(self.objects, "out/")])


class HandFrame:
    """Rows that are written without Spark, as two files."""

    sparkSession = None  # noqa: N815 - as in Spark
    schema = SimpleNamespace(names=["id", "name"])

    def __init__(self, rows: Sequence[Row], failure: Exception | None = None) -> None:
        self.rows, self.failure = rows, failure


def use_hands(patch: Callable[[object, str, object], None], options: dict[str, str]) -> None:
    """File sinks on object storage stage `HandFrame`s."""

    def write(frame: HandFrame, path: str, *_: object, **__: object) -> None:
        objects = open_objects(path, options=options)
        for number in (0, 1):
            objects.create(f"part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet", [parquet(frame.rows[number::2])])
        if frame.failure is not None:
            raise frame.failure

    patch(cloud, "write_rows", write)
    patch(cloud, "try_out", lambda _, path, *__, **___: write(HandFrame([]), path))


def opened_of(sink: FileSink) -> _Opened:
    assert isinstance(sink._epoch_files, CloudFiles)
    return sink._epoch_files._open()


def layout_of(sink: FileSink) -> Any:
    return sink._epoch_files._layout  # type: ignore[attr-defined]


def parquet(rows: Sequence[Row]) -> bytes:
    body = io.BytesIO()
    names = pyarrow.array([name for _, name in rows], pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"id": [id for id, _ in rows], "name": names}), body)
    return body.getvalue()


def rows_of(objects: CloudObjects, keys: Iterable[str]) -> list[Row]:
    found: list[Row] = []
    for key in keys:
        table = pyarrow.parquet.read_table(io.BytesIO(objects.read(key, limit=1 << 20)), partitioning=None)
        found += [(row["id"], row["name"]) for row in table.to_pylist()]
    return sorted(found)


def logged_files(objects: CloudObjects, root: str) -> list[str]:
    """What the log lists, `epoch=.../part-...`, read as Spark reads it: without Holdfast's code."""
    folder = f"{root}_spark_metadata/"
    names = [info.key.removeprefix(folder) for info in objects.list(folder)]
    newest = max(int(name.partition(".")[0]) for name in names)
    begin = max((newest + 1) // 10 * 10 - 1, 0)
    found = []
    for number in range(begin, newest + 1):
        body = objects.read(f"{folder}{number}{'.compact' if number % 10 == 9 else ''}", limit=1 << 20).decode()
        version, *lines = body.split("\n")
        assert version == "v1"
        found += [json.loads(line) for line in lines if line]
    return ["/".join(line["path"].split("/")[-2:]) for line in found if not line["isDir"] and line["action"] == "add"]
