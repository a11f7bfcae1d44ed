"""`EpochFiles`: where a file sink's epochs lie. Each kind of storage publishes them in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from holdfast.base.addresses import HDFS_SCHEME, is_local, scheme_of
from holdfast.sinks.files.address import sink_path
from holdfast.sinks.files.cloud import CloudFiles
from holdfast.sinks.files.hdfs_file_system import HdfsFileSystem
from holdfast.sinks.files.layout import CommittedFile, FileLayout
from holdfast.sinks.files.local_file_system import LocalFileSystem
from holdfast.sinks.files.renamed_files import RenamedFiles
from holdfast.sinks.owner_file import DirectoryOwner
from holdfast.sinks.sink import Delivery, Descriptor, SinkProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class EpochFiles(Protocol):
    """The sink's path; the methods are those of `Sink`."""

    path: str

    def prepare(self, schema: StructType, delivery: Delivery) -> None: ...
    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor: ...
    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None: ...
    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None: ...
    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress: ...
    def owner(self) -> DirectoryOwner | None: ...
    def files(self) -> list[CommittedFile]: ...


def epoch_files_at(address: str, layout: FileLayout, storage_options: Mapping[str, str] | None = None) -> EpochFiles:
    """Where the epochs of a sink with this address lie; nothing is read or written yet.

    `Invalid` if a file sink cannot write there. `storage_options` are ignored for a local path.
    """
    if is_local(address):
        return RenamedFiles(LocalFileSystem(sink_path(address)), layout)
    if scheme_of(address) == HDFS_SCHEME:
        return RenamedFiles(HdfsFileSystem(sink_path(address), storage_options), layout)
    return CloudFiles(address, layout, storage_options)
