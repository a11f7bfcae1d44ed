"""`CloudStaging`: staged output on object storage, in a folder beside the sink's own.

No reader of the sink's path lists it, whatever its glob: the folder is outside. Its name begins with `_`, so that
readers of the folder above skip it, too, and no listing of a prefix takes it for the sink's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import NotFound
from holdfast.sinks.files.layout import EPOCH_FILE, HIDDEN
from holdfast.sinks.files.spark_metadata_format import LoggedFile
from holdfast.sinks.sink import Delivery, Descriptor, RowsRefused
from holdfast.sinks.staged_name import left_over, new_name, over, removed_if_it_fails
from holdfast.storage.objects.cloud import CloudObjects

RECORD_LIMIT = 1 << 30
MOST_TO_COPY = 5 << 30
"""The most bytes that S3 copies in one request."""


class EpochRecord(Delivery, frozen=True):
    """What was staged for a delivery: the file `_epoch`, beside the staged files and later beside the published ones.

    The first one to be created in an epoch's directory says which of several staged outputs is the epoch.
    """

    staged: str = ""
    files: tuple[LoggedFile, ...] = ()


def encode_record(record: EpochRecord) -> bytes:
    return msgspec.json.encode(record)


def read_record(objects: CloudObjects, key: str) -> EpochRecord | None:
    """The record under a key; None if there is none. `msgspec.DecodeError` if it makes no sense."""
    try:
        return json_decoder(EpochRecord).decode(objects.read(key, limit=RECORD_LIMIT))
    except NotFound:
        return None


class CloudStaging:
    """The staged outputs below `prefix`, one folder each. A folder without a record counts as gone."""

    def __init__(self, objects: CloudObjects, prefix: str, *, address: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self.address = address

    def path(self, name: str) -> str:
        """Where Spark writes."""
        return f"{self.address}/{name}"

    def key(self, name: str, file: str) -> str:
        return f"{self._prefix}/{name}/{file}"

    def new(self, delivery: Delivery) -> AbstractContextManager[str]:
        """The name of a new folder for a delivery, removed again if the block raises."""
        return removed_if_it_fails(new_name(delivery), self.remove)

    def seal(self, name: str, delivery: Delivery) -> EpochRecord:
        """Record what Spark has written. `RowsRefused` for a file that could not be published."""
        found = [(info.key.rpartition("/")[2], info) for info in self._objects.list(f"{self._prefix}/{name}/")]
        # Files of no bytes hold no rows, and some readers fail over them. `_temporary` is Spark's.
        data = [(file, info) for file, info in found if info.key == self.key(name, file)]
        files = [
            LoggedFile(file, info.size, int(info.modified * 1000))
            for file, info in data
            if info.size and not file.startswith(HIDDEN)
        ]
        large = [file for file in files if file.size > MOST_TO_COPY]
        if large:
            raise RowsRefused(
                f"{large[0].name} has {large[0].size} bytes, more than object storage copies in one request.",
                about=self.path(name),
                unchanged="everything that readers see",
                next_step="give the epoch more partitions, or FileSink(..., options={'maxRecordsPerFile': ...})",
            )
        record = EpochRecord(**msgspec.structs.asdict(delivery), staged=name, files=tuple(files))
        with step("files.seal", staged=name):
            self._objects.create(self.key(name, EPOCH_FILE), [encode_record(record)])
        return record

    def record(self, name: str) -> EpochRecord | None:
        """What was staged under a name; None if it is gone."""
        return read_record(self._objects, self.key(name, EPOCH_FILE))

    def remove(self, name: str) -> None:
        """Remove staged output that is not published. Fine if it is gone."""
        with step("sink.discard", staged=name):
            keys = [info.key for info in self._objects.list(f"{self._prefix}/{name}/")]
            record = self.key(name, EPOCH_FILE)
            # The record first: a driver that comes to publish this finds all of it or nothing.
            self._objects.delete([key for key in keys if key == record])
            self._objects.delete([key for key in keys if key != record])

    def remove_leftovers(self, delivery: Delivery) -> None:
        """Remove everything that this driver and earlier ones staged for a delivery that has been published."""
        with step("sink.discard", epoch=delivery.epoch):
            keys = self._keys()
            self._objects.delete([key for name in left_over(keys, delivery) for key in keys[name]])

    def over(self, delivery: Delivery, keep: Descriptor | None) -> list[str]:
        """The names of this owner's staged outputs of earlier generations, also of those that are not whole.

        Without `keep`, and without what may still be decided.
        """
        return over(self._keys(), delivery, keep)

    def _keys(self) -> dict[str, list[str]]:
        """The keys in each folder, in the order of their names."""
        found: dict[str, list[str]] = {}
        for info in self._objects.list(f"{self._prefix}/"):
            found.setdefault(info.key.removeprefix(f"{self._prefix}/").partition("/")[0], []).append(info.key)
        return found
