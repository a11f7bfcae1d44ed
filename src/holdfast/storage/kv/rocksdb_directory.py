"""Whose a directory is: a file in it says that it is an index, and the lock of another says who has it open.

RocksDB has a lock of its own. Within a process it goes by the spelling of the path, so that a symbolic link would open
one database twice, and each would damage what the other writes.
"""

from __future__ import annotations

import os
from urllib.parse import quote

from holdfast.base.steps import step
from holdfast.errors import Invalid, Unavailable
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.files.lock import FileLock, make_directories

MARK = "HOLDFAST-INDEX"
LOCK = "HOLDFAST-LOCK"
TEXT = b"Holdfast index, RocksDB, layout 1\n"
_SETTINGS = "rocksdict-config.json"


class Claim:
    """An index directory that is ours for as long as this is not released, or until the process ends, however."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        address = address_of(self.path)
        make_directories(self.path, address)
        try:
            self._refuse_what_is_not_ours()
            self._lock = FileLock(os.path.join(self.path, LOCK), address)
            try:
                self._mark()
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise unusable(error, self.path) from error

    def release(self) -> None:
        self._lock.close()

    def _refuse_what_is_not_ours(self) -> None:
        if not os.path.isdir(self.path):
            raise not_ours(self.path)
        names = os.listdir(self.path)  # before the mark is looked for: whoever makes an index writes that first
        if not is_marked(self.path) and set(names) - {MARK, LOCK}:
            raise not_ours(self.path)

    def _mark(self) -> None:
        if not is_marked(self.path):
            with step("rocksdb.mark"), open(os.path.join(self.path, MARK), "wb") as file:
                file.write(TEXT)
                file.flush()
                os.fsync(file.fileno())
        PosixDisk().sync_directory(self.path)  # each time: whoever wrote the mark may have died before this


def is_marked(path: str) -> bool:
    """Whether the directory is an index; `Invalid` if it is something else.

    A crash may have left it with no mark yet, or with half of one.
    """
    try:
        with open(os.path.join(path, MARK), "rb") as file:
            found = file.read(1000)
    except FileNotFoundError:
        return False
    if not TEXT.startswith(found) or _is_pickled(path):
        raise not_ours(path)
    return found == TEXT


def _is_pickled(path: str) -> bool:
    """rocksdict opens its own pickled databases in raw mode, with a byte before every key and value."""
    settings = os.path.join(path, _SETTINGS)
    if not os.path.exists(settings):
        return False
    with open(settings, "rb") as file:
        return b'"raw_mode":false' in file.read(10_000).replace(b" ", b"")


def address_of(path: str) -> str:
    return f"rocksdb://{quote(path)}"


def not_ours(path: str) -> Invalid:
    return Invalid(
        f"{path} holds something else than an index that this release can read.",
        code="index.not-ours",
        about=address_of(path),
        unchanged="everything in it",
        next_step="give the index a directory of its own",
    )


def unusable(error: OSError, path: str) -> Unavailable:
    return Unavailable(
        f"{path} cannot be used: {error.strerror or error}.",
        code="index.unavailable",
        about=address_of(path),
        unchanged="everything in it",
        next_step="mount it, make room, or allow this user to use it; then open it again",
    )
