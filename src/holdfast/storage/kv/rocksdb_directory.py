"""The directory of a RocksDB store: a file in it marks it as ours, and the lock of another one says who has it open.

RocksDB has a lock of its own. Within a process it goes by the spelling of the path, so that a symbolic link would open
one database twice, and each would damage what the other writes.

A read-only opening goes through links in a temporary directory, beside the process that writes.
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
"""How many seconds to try a read-only opening while the files change."""
_CURRENT = "CURRENT"  # which manifest counts; without it, there is no database yet
_MANIFEST = "MANIFEST-"  # which tables and logs count
_DATA = (".log", ".sst")
_SETTINGS = "rocksdict-config.json"


class _Closable(Protocol):
    def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closable)


class DirectoryClaim:
    """A directory that is ours for as long as this is not released, or until the process ends, however."""

    def __init__(self, path: str, kind: Kind) -> None:
        self.path = os.path.realpath(path)
        self._kind = kind
        address = kv_address("rocksdb", self.path)
        with errors.disk_errors(kind, address):
            make_directories(self.path)
        try:
            self._refuse_what_is_not_ours()
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

    def _refuse_what_is_not_ours(self) -> None:
        if not os.path.isdir(self.path):
            raise not_ours(self.path, self._kind)
        names = os.listdir(self.path)  # before the mark is read: a process that makes a store writes that first
        if not is_marked(self.path, self._kind) and set(names) - {MARKS[self._kind], LOCK}:
            raise not_ours(self.path, self._kind)

    def _mark(self) -> None:
        if not is_marked(self.path, self._kind):
            with step("rocksdb.mark"):
                write_file(os.path.join(self.path, MARKS[self._kind]), TEXTS[self._kind], overwrite=True)
        sync(self.path)  # each time: the process that wrote the mark may have died before this


def is_marked(path: str, kind: Kind) -> bool:
    """Whether the directory is a store of this kind; `Invalid` if it is something else.

    A crash may have left it with no mark yet, or with half of one.
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
    """rocksdict opens its own pickled databases in raw mode, with a byte before every key and value."""
    settings = os.path.join(path, _SETTINGS)
    if not os.path.exists(settings):
        return False
    with open(settings, "rb") as file:
        return b'"raw_mode":false' in file.read(10_000).replace(b" ", b"")


class LinkedFiles:
    """The files of a database as they are now, under links in a directory of their own.

    rocksdict writes a file of settings wherever it opens, and the directory may not be ours. `opened_with` opens
    them; everything is open then, so the links can go at once.
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
        """What `opening` makes of a directory with the files of one moment; it must be closable."""
        try:
            return self._opened(opening)
        except OSError as error:
            raise unusable(error, self.path, self._kind) from error

    def _opened(self, opening: Callable[[str], _Opened]) -> _Opened:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
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
                    # A log may have been turned into a table after the tables were listed, and removed before the logs
                    # were read: its commits would be missing, without a word.
                    opened.close()
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"The files of the {self._kind} are replaced faster than they can be looked at.",
                    code=f"{self._kind}.busy",
                    about=self._address,
                    unchanged=f"the {self._kind}",
                    next_step="try again, when less is written to it",
                )

    def _state(self) -> dict[str, int]:
        """The logs; and the manifest with its size, which grows whenever other tables count."""
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
        f"{path} holds something else than {errors.a(kind)} that this release can read.",
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
