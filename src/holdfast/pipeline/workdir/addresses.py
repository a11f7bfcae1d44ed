"""Absolute addresses inside Spark's files: portable in a checkpoint, local again in a workdir."""

from __future__ import annotations

from holdfast.errors import Corrupt
from holdfast.pipeline.workdir.entries import Part
from holdfast.pipeline.workdir.workdir import Workdir
from holdfast.storage.files.directory import Directory

ROOT_MARK = b"holdfast-workdir:"
"""Stands for the workdir's own address in a checkpoint."""


def read_portable(workdir: Workdir, path: str) -> bytes:
    """A file as it goes into a checkpoint: its bytes, with `ROOT_MARK` for the workdir's address."""
    data = workdir.directory.read(path)
    return workdir.written_addresses.sub(ROOT_MARK, data) if _holds_addresses(path) else data


def read_part(workdir: Workdir, part: Part) -> bytes:
    """One part of a file, as it goes into a checkpoint. `Corrupt` if a file in parts has not the size they say."""
    if part.length == part.whole:
        return read_portable(workdir, part.path)
    data, size = workdir.directory.read_range(part.path, part.offset, part.length)
    if size != part.whole or len(data) != part.length:
        raise Corrupt(f"{part.path} has {size} bytes, not {part.whole}.", code="workdir.state-file", about=part.path)
    return data


def to_local(address: bytes, path: str, data: bytes) -> bytes:
    """The bytes that a file of a checkpoint has in a workdir with this address, as Spark writes it."""
    return data.replace(ROOT_MARK, address) if _holds_addresses(path) else data


def rewrite_addresses(workdir: Workdir) -> None:
    """Replace addresses that the workdir had before by the one it has now, in every file that holds any."""
    directory: Directory = workdir.directory
    for path, _ in directory.files():
        if not _holds_addresses(path):
            continue
        before = directory.read(path)
        now = to_local(workdir.written_address(directory), path, read_portable(workdir, path))
        if now == before:
            continue
        # Hadoop would compare the new bytes with the checksum of the old ones.
        folder, _, name = path.rpartition("/")
        directory.remove(f"{folder}/.{name}.crc")
        directory.write(path, now)


def _holds_addresses(path: str) -> bool:
    return path.startswith("state/") and "/_metadata/" in path
