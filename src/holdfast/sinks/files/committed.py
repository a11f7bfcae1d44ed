"""The committed files of a file sink at an address, for readers without Spark."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import NotFound
from holdfast.sinks.files.address import sink_path
from holdfast.sinks.files.epoch_files import epoch_files_at
from holdfast.sinks.files.layout import CommittedFile, FileLayout
from holdfast.sinks.owner_file import OWNER_FILE, DirectoryOwner


class CommittedFiles(msgspec.Struct, frozen=True):
    """What a file sink has committed, and whose it is."""

    path: str
    owner: DirectoryOwner
    files: list[CommittedFile]


def committed_files(address: str, *, storage_options: Mapping[str, str] | None = None) -> CommittedFiles:
    """Read what is committed at the address of a `FileSink`. Changes nothing.

    `NotFound` if no file sink has written there.
    """

    owner = epoch_files_at(address, FileLayout("", "", {}), storage_options).owner()
    path = sink_path(address)
    if owner is None:
        raise NotFound(
            f"{path} has no {OWNER_FILE}: no FileSink has written there.",
            code="sink.not-found",
            about=path,
            unchanged="everything",
            next_step="give the path of a FileSink; the checkpoints of a pipeline are listed by: holdfast ls URL",
        )
    written = epoch_files_at(address, FileLayout(owner.format, owner.epoch_column, {}), storage_options)
    return CommittedFiles(path, owner, written.files())
