"""Absolute addresses inside Spark's files: portable in a checkpoint, local again in a workdir."""

from __future__ import annotations

import os
import re

from holdfast.errors import Corrupt
from holdfast.pipeline.workdir.entries import Part
from holdfast.pipeline.workdir.workdir import Workdir

ROOT_MARK = b"holdfast-workdir:"
"""Stands for the workdir's own address in a checkpoint."""


def read_portable(workdir: Workdir, path: str) -> bytes:
    """A file as it goes into a checkpoint: its bytes, with `ROOT_MARK` for the workdir's address."""
    data = (workdir.path / path).read_bytes()
    return _any_address(workdir).sub(ROOT_MARK, data) if _holds_addresses(path) else data


def read_part(workdir: Workdir, part: Part) -> bytes:
    """One part of a file, as it goes into a checkpoint. `Corrupt` if a file in parts has not the size they say."""
    if part.length == part.whole:
        return read_portable(workdir, part.path)
    with open(workdir.path / part.path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(part.offset)
        data = file.read(part.length)
    if size != part.whole or len(data) != part.length:
        raise Corrupt(f"{part.path} has {size} bytes, not {part.whole}.", code="workdir.state-file", about=part.path)
    return data


def to_local(workdir: Workdir, path: str, data: bytes) -> bytes:
    """The bytes that a file of a checkpoint has in this workdir."""
    return data.replace(ROOT_MARK, _address(workdir)) if _holds_addresses(path) else data


def rewrite_addresses(workdir: Workdir) -> None:
    """Replace addresses that the workdir had before by the one it has now, in every file that holds any."""
    for path, _ in workdir.spark_checkpoint.files():
        if not _holds_addresses(path):
            continue
        there = workdir.path / path
        before = there.read_bytes()
        now = to_local(workdir, path, read_portable(workdir, path))
        if now == before:
            continue
        aside = there.with_name(f".{there.name}.readdressed")
        aside.write_bytes(now)
        # Hadoop would compare the new bytes with the checksum of the old ones.
        there.with_name(f".{there.name}.crc").unlink(missing_ok=True)
        os.rename(aside, there)


def _holds_addresses(path: str) -> bool:
    return path.startswith("state/") and "/_metadata/" in path


def _address(workdir: Workdir) -> bytes:
    """The workdir as Spark writes it into files: Hadoop does not escape what a URI would."""
    return f"file:{workdir.path}".encode()


def _any_address(workdir: Workdir) -> re.Pattern[bytes]:
    """Every address that the workdir has or had: its own, and the paths of its generations."""
    parent, name = (re.escape(text) for text in os.path.split(workdir.home))
    return re.compile(rf"file:{parent.rstrip('/')}/(?:{name}|\.{name}\.spark-[0-9a-f-]+)(?=[/\"])".encode())
