"""Looking into a RocksDB index, beside the process that has it open."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time

from holdfast.errors import HoldfastError, Unavailable
from holdfast.storage.kv.errors import not_there
from holdfast.storage.kv.rocksdb_directory import address_of, is_marked, unusable
from holdfast.storage.kv.rocksdb_reading import Database

PATIENCE = 5.0
"""How many seconds to try while the files change."""
_CURRENT = "CURRENT"  # which manifest counts; without it, there is no database yet
_MANIFEST = "MANIFEST-"  # which tables and logs count
_DATA = (".log", ".sst")


class RocksdbLooker:
    """The index as it is when this is made, with all that was committed before; later commits do not show.

    Nothing is written to its directory, which may be somebody else's. What this has open stays readable when the
    process that writes replaces its files.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self.address = address_of(self._path)
        try:
            if not is_marked(self._path) or not os.path.exists(os.path.join(self._path, _CURRENT)):
                raise not_there("index", self.address)
            database = self._opened()
        except OSError as error:
            raise unusable(error, self._path) from error
        self.read = database.read
        self.scan = database.scan
        self.close = database.close

    def _opened(self) -> Database:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                before = self._state()
                try:
                    database = _linked(self._path)
                except HoldfastError:
                    # A file may have been replaced before it was opened.
                    if before == self._state():
                        raise
                else:
                    if before == self._state():
                        return database
                    # A log may have been turned into a table after the tables were listed, and removed before the logs
                    # were read: its commits would be missing, without a word.
                    database.close()
            if time.monotonic() > deadline:
                raise Unavailable(
                    "The files of the index are replaced faster than they can be looked at.",
                    code="index.busy",
                    about=self.address,
                    unchanged="the index",
                    next_step="try again, when less is written to it",
                )

    def _state(self) -> dict[str, int]:
        """The logs; and the manifest with its size, which grows whenever other tables count."""
        with os.scandir(self._path) as entries:
            return {
                entry.name: entry.stat().st_size if entry.name.startswith(_MANIFEST) else 0
                for entry in entries
                if entry.name.startswith(_MANIFEST) or entry.name.endswith(".log")
            }


def _linked(path: str) -> Database:
    """Opened through links in a directory of their own: rocksdict writes a file of settings wherever it opens.

    Everything is open then, so the links can go at once.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-look-") as folder:
        for name in os.listdir(path):
            if name == _CURRENT or name.startswith(_MANIFEST) or name.endswith(_DATA):
                os.symlink(os.path.join(path, name), os.path.join(folder, name))
        return Database(folder, path, read_only=True)
