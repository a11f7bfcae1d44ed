"""Pipelines that have everything in a bucket, and what readers see there who know nothing of Holdfast."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import holdfast
from holdfast.storage.objects import open_objects
from servers.s3 import S3Server, environment_for, options_for

BUCKET_NAMED = "bucket.json"
"""The file that says in which bucket a pipeline has its checkpoints, its workdir and its sinks."""

Row = dict[str, Any]


class Bucket:
    """The bucket of one pipeline: `store`, `workdir`, `files` and `table`."""

    def __init__(self, name: str, endpoint: str) -> None:
        self.name, self.endpoint = name, endpoint
        self.options = options_for(endpoint)
        self.objects = open_objects(f"s3://{name}", options=self.options)

    def keys(self, prefix: str) -> list[str]:
        return [info.key for info in self.objects.list(prefix)]

    def store(self) -> holdfast.CheckpointStore:
        return holdfast.open_store(f"s3://{self.name}/store", options=self.options)

    def logged(self) -> dict[int, list[Row]]:
        """What Spark's readers of the files see, epoch by epoch: what the log lists."""
        return self._epochs([f"files/{path}" for path in self._logged_files()])

    @property
    def visible(self) -> int:
        """How many epochs they see: the number of the log's newest entry, since the first one is empty."""
        names = [key.rpartition("/")[2].partition(".")[0] for key in self.keys("files/_spark_metadata/")]
        return max((int(name) for name in names if name.isdigit()), default=0)

    def listed(self) -> dict[int, list[Row]]:
        """What readers see that list the files, whatever the log says."""
        return self._epochs([key for key in self.keys("files/") if key.endswith(".parquet")])

    def table_rows(self) -> list[Row]:
        """What readers of the Delta table see; nothing if it is not there yet."""
        if not self.keys("table/_delta_log/"):
            return []
        table = DeltaTable(f"s3://{self.name}/table", storage_options=environment_for(self.endpoint))
        return list(table.to_pyarrow_table().to_pylist())

    def staged(self) -> list[str]:
        """What sinks have staged. Beside that, a Delta sink notes down there that the service keeps its promises."""
        found = [*self.keys("_files.holdfast-staging/"), *self.keys("table/_holdfast_staging/")]
        return [key for key in found if "/conditional-writes-" not in key]

    def places(self) -> set[str]:
        """The places of drivers that the workdir has."""
        return {key.split("/")[1] for key in self.keys("workdir/")}

    def _logged_files(self) -> list[str]:
        from sinks.cloud_files import logged_files

        return logged_files(self.objects, "files/") if self.keys("files/_spark_metadata/") else []

    def _epochs(self, keys: list[str]) -> dict[int, list[Row]]:
        import pyarrow.parquet  # here, since it takes pandas with it, which the pipelines under test can do without

        found: dict[int, list[Row]] = {}
        for key in keys:
            rows = found.setdefault(int(key.partition("epoch=")[2].partition("/")[0]), [])
            body = io.BytesIO(self.objects.read(key, limit=1 << 20))
            rows += pyarrow.parquet.read_table(body, partitioning=None).to_pylist()
        return dict(sorted(found.items()))


def put_bucket(root: Path, server: S3Server) -> Bucket:
    """A new bucket for the pipeline with this root."""
    root.mkdir(exist_ok=True)
    (root / BUCKET_NAMED).write_text(json.dumps({"endpoint": server.endpoint, "bucket": server.new_bucket()}))
    return bucket_of(root)


def bucket_of(root: Path) -> Bucket:
    at = json.loads((root / BUCKET_NAMED).read_text())
    return Bucket(at["bucket"], at["endpoint"])
