"""Absolute addresses inside Spark's files: portable in a checkpoint, local again in a workdir."""

from __future__ import annotations

import os
import re

from holdfast.pipeline.workdir.workdir import Workdir

ROOT_MARK = b"holdfast-workdir:"
"""Stands for the workdir's own address in a checkpoint."""


def read_portable(workdir: Workdir, path: str) -> bytes:
    """A file as it goes into a checkpoint: its bytes, with `ROOT_MARK` for the workdir's address."""
    data = (workdir.path / path).read_bytes()
    return _any_address(workdir).sub(ROOT_MARK, data) if _names_others(path) else data


def to_local(workdir: Workdir, path: str, data: bytes) -> bytes:
    """The bytes that a file of a checkpoint has in this workdir."""
    return data.replace(ROOT_MARK, _address(workdir)) if _names_others(path) else data


def rewrite_addresses(workdir: Workdir) -> None:
    """Replace addresses that the workdir had before by the one it has now, in every file that holds any."""
    for path, _ in workdir.spark_checkpoint.files():
        if not _names_others(path):
            continue
        there = workdir.path / path
        before = there.read_bytes()
        now = to_local(workdir, path, read_portable(workdir, path))
        if now == before:
            continue
        aside = there.with_name(f".{there.name}.readdressed")
        aside.write_bytes(now)
        # Hadoop would hold the new bytes against the checksum of the old ones.
        there.with_name(f".{there.name}.crc").unlink(missing_ok=True)
        os.rename(aside, there)


def _names_others(path: str) -> bool:
    return path.startswith("state/") and "/_metadata/" in path


def _address(workdir: Workdir) -> bytes:
    """The workdir as Spark writes it into files: Hadoop does not escape what a URI would."""
    return f"file:{workdir.path}".encode()


def _any_address(workdir: Workdir) -> re.Pattern[bytes]:
    """Every address that the workdir has or had: its own, and the paths of its generations."""
    parent, name = (re.escape(text) for text in os.path.split(workdir.home))
    return re.compile(rf"file:{parent.rstrip('/')}/(?:{name}|\.{name}\.spark-[0-9a-f-]+)(?=[/\"])".encode())
