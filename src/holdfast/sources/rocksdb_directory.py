"""Whose a directory is: a file in it says that it is an index, and its lock says who has it open.

RocksDB has a lock of its own. Within a process it goes by the spelling of the path, so that a symbolic link would open
one database twice, and each would damage what the other writes.
"""

from __future__ import annotations

import fcntl
import os

from holdfast.errors import Conflict, Invalid, Unavailable
from holdfast.objects.disk import PosixDisk
from holdfast.steps import step

MARK = "HOLDFAST-INDEX"
TEXT = b"Holdfast index, RocksDB, layout 1\n"
_SETTINGS = "rocksdict-config.json"
_NEXT = "give the index a directory of its own"


class Claim:
    """An index directory that is ours for as long as this is not released, or until the process ends, however."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._file: int | None = None
        try:
            self._make()
            self._take()
        except OSError as error:
            self.release()
            raise Unavailable(
                f"The directory cannot be used: {error.strerror}.",
                code="index.unavailable",
                about=self.path,
                unchanged="everything",
                next_step="see that its parent can be written to and that the disk has room",
            ) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)  # closing drops the lock
            self._file = None

    def _make(self) -> None:
        missing = []
        path = self.path
        while not os.path.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        if not os.path.isdir(path):
            raise Invalid(f"{path} is not a directory.", code="index.not-ours", about=self.path, next_step=_NEXT)
        disk = PosixDisk()
        for path in reversed(missing):
            try:
                disk.make_directory(path)
            except FileExistsError:  # another process had the same idea
                continue
            disk.sync_directory(os.path.dirname(path))

    def _take(self) -> None:
        mark = os.path.join(self.path, MARK)
        if not os.path.lexists(mark) and os.listdir(self.path):
            raise self._not_ours()
        self._file = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use(self.path) from None
        found = os.pread(self._file, 1000, 0)
        if found != TEXT:
            # A crash may have left a new directory with half a mark, and nothing else.
            if not TEXT.startswith(found) or os.listdir(self.path) != [MARK]:
                raise self._not_ours()
            with step("rocksdb.mark"):
                os.pwrite(self._file, TEXT, 0)
                os.fsync(self._file)
            PosixDisk().sync_directory(self.path)
        self._refuse_pickles()

    def _refuse_pickles(self) -> None:
        """rocksdict opens its own pickled databases in raw mode, with a byte before every key and value."""
        settings = os.path.join(self.path, _SETTINGS)
        if os.path.exists(settings):
            with open(settings, "rb") as file:
                if b'"raw_mode":false' in file.read(10_000).replace(b" ", b""):
                    raise self._not_ours()

    def _not_ours(self) -> Invalid:
        return Invalid(
            "The directory holds something else than an index that this version can read.",
            code="index.not-ours",
            about=self.path,
            unchanged="everything in it",
            next_step=_NEXT,
        )


def in_use(path: str) -> Conflict:
    return Conflict(
        "The index is open already, in this process or in another one.",
        code="index.in-use",
        about=path,
        unchanged="the index",
        next_step=f"close it there first; to find the process: lsof {path}/{MARK}",
    )
