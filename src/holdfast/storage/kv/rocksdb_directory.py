"""The directory of a RocksDB store: one file marks it as ours, and a lock on another keeps other processes out.

RocksDB's own lock is not enough: within a process it compares paths as text, so that one database could be opened twice
through a symbolic link, and each opening would damage the data of the other.

A read-only opening uses links in a temporary directory, and works beside a writing process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.base.addresses import kv_address
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.storage.files.disk import make_directories, sync, write_file
from holdfast.storage.files.lock import FileLock
from holdfast.storage.kv import errors
from holdfast.storage.kv.store import Kind

MARKS: dict[Kind, str] = {"index": "HOLDFAST-INDEX", "store": "HOLDFAST-STORE"}
TEXTS: dict[Kind, bytes] = {
    "index": b"Holdfast index, RocksDB, layout 1\n",
    "store": b"Holdfast store, RocksDB, layout 1\n",
}
LOCK = "HOLDFAST-LOCK"
PATIENCE = 5.0
"""Seconds to keep trying a read-only opening while the files change."""
_CURRENT = "CURRENT"  # names the current manifest; without it, there is no database yet
_MANIFEST = "MANIFEST-"  # lists the current tables and logs
_DATA = (".log", ".sst")
_SETTINGS = "rocksdict-config.json"


class _Closable(Protocol):
    def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closable)


class DirectoryClaim:
    """Exclusive use of a directory, until `release` or the end of the process, however it ends."""

    def __init__(self, path: str, kind: Kind) -> None:
        self.path = os.path.realpath(path)
        self._kind = kind
        address = kv_address("rocksdb", self.path)
        with errors.disk_errors(kind, address):
            make_directories(self.path)
        try:
            self._refuse_foreign_directory()
            self._lock = FileLock(os.path.join(self.path, LOCK), address, kind)
            try:
                self._mark()
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise unusable(error, self.path, kind) from error

    def release(self) -> None:
        self._lock.close()

    def _refuse_foreign_directory(self) -> None:
        if not os.path.isdir(self.path):
            raise not_ours(self.path, self._kind)
        names = os.listdir(self.path)  # before the mark is read: a process that creates a store writes the mark first
        if not is_marked(self.path, self._kind) and set(names) - {MARKS[self._kind], LOCK}:
            raise not_ours(self.path, self._kind)

    def _mark(self) -> None:
        if not is_marked(self.path, self._kind):
            with step("rocksdb.mark"):
                write_file(os.path.join(self.path, MARKS[self._kind]), TEXTS[self._kind], overwrite=True)
        sync(self.path)  # each time: the process that wrote the mark may have died before the sync


def is_marked(path: str, kind: Kind) -> bool:
    """Whether the directory is a store of this kind; `Invalid` if it is something else.

    False if a crash left it without a mark, or with half of one.
    """
    try:
        with open(os.path.join(path, MARKS[kind]), "rb") as file:
            found = file.read(1000)
    except FileNotFoundError:
        return False
    if not TEXTS[kind].startswith(found) or _is_pickled(path):
        raise not_ours(path, kind)
    return found == TEXTS[kind]


def _is_pickled(path: str) -> bool:
    """Whether rocksdict wrote it in pickled mode: it would open in raw mode, with a byte before every key and value."""
    settings = os.path.join(path, _SETTINGS)
    if not os.path.exists(settings):
        return False
    with open(settings, "rb") as file:
        return b'"raw_mode":false' in file.read(10_000).replace(b" ", b"")


class LinkedFiles:
    """Links to the current files of a database, in a temporary directory.

    rocksdict writes a settings file into every directory that it opens, and this one may not be ours to write.
    `opened_with` opens the links and removes them at once, since all files are open by then.
    """

    def __init__(self, path: str, kind: Kind) -> None:
        self.path = os.path.realpath(path)
        self._kind = kind
        self._address = kv_address("rocksdb", self.path)
        try:
            if not is_marked(self.path, kind) or not os.path.exists(os.path.join(self.path, _CURRENT)):
                raise errors.not_there(kind, self._address)
        except OSError as error:
            raise unusable(error, self.path, kind) from error

    def opened_with(self, opening: Callable[[str], _Opened]) -> _Opened:
        """Call `opening` with a directory that has the files of one moment, and return its result."""
        try:
            return self._opened(opening)
        except OSError as error:
            raise unusable(error, self.path, self._kind) from error

    def _opened(self, opening: Callable[[str], _Opened]) -> _Opened:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(FileNotFoundError):  # a file was removed since it was listed
                before = self._state()
                try:
                    opened = self._linked(opening)
                except HoldfastError:
                    # A file may have been replaced before it was opened.
                    if before == self._state():
                        raise
                else:
                    if before == self._state():
                        return opened
                    # A log may have been flushed to a table after the tables were listed, and removed before the logs
                    # were read: its commits would be missing silently.
                    opened.close()
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"The files of the {self._kind} are replaced faster than they can be opened.",
                    code=f"{self._kind}.busy",
                    about=self._address,
                    unchanged=f"the {self._kind}",
                    next_step="try again when less is written to it",
                )

    def _state(self) -> dict[str, int]:
        """The names of the logs, and the manifest with its size, which grows with every change of the tables."""
        with os.scandir(self.path) as entries:
            return {
                entry.name: entry.stat().st_size if entry.name.startswith(_MANIFEST) else 0
                for entry in entries
                if entry.name.startswith(_MANIFEST) or entry.name.endswith(".log")
            }

    def _linked(self, opening: Callable[[str], _Opened]) -> _Opened:
        with tempfile.TemporaryDirectory(prefix="holdfast-look-") as folder:
            for name in os.listdir(self.path):
                if name == _CURRENT or name.startswith(_MANIFEST) or name.endswith(_DATA):
                    os.symlink(os.path.join(self.path, name), os.path.join(folder, name))
            return opening(folder)


def not_ours(path: str, kind: Kind) -> Invalid:
    return Invalid(
        f"{path} does not hold {errors.a(kind)} that this release can read.",
        code=f"{kind}.not-ours",
        about=kv_address("rocksdb", path),
        unchanged="everything in it",
        next_step=f"give the {kind} a directory of its own",
    )


def unusable(error: OSError, path: str, kind: Kind) -> Unavailable:
    return Unavailable(
        f"{path} cannot be used: {error.strerror or error}.",
        code=f"{kind}.unavailable",
        about=kv_address("rocksdb", path),
        unchanged="everything in it",
        next_step="mount it, make room, or allow this user to use it; then open it again",
    )
