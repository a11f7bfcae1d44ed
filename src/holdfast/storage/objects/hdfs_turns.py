"""The order in which updates and removals of files on HDFS take place. `hdfs` says why it is safe."""

from __future__ import annotations

import posixpath
import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hdfs_native import FileStatus

from holdfast.errors import Conflict
from holdfast.storage.objects.hdfs_client import HdfsClient

T = TypeVar("T")
PATIENCE = 2.0
MAX_PATIENCE = 16.0
AT_MOST = 60.0
_CONTENDER = re.compile(r"\.(?P<of>.+)\.u[0-9a-f]{16}-0\.tmp")
_REMOVAL = "removal"  # stands for every file of a folder


class Turns:
    """The contenders for one file, or for the removal of several files of one folder.

    `take` waits for contenders that were there first, but not for ever: one that it has seen for `PATIENCE` seconds is
    removed, be it slow or dead. A writer whose own contender was removed is more patient the next time: else two could
    remove each other's for ever on a slow cluster.
    """

    def __init__(self, client: HdfsClient, paths: Sequence[str], *, about: str, removes: bool = False) -> None:
        self._hdfs = client
        self._about = about
        self._folder = posixpath.dirname(paths[0])
        names = {posixpath.basename(path) for path in paths}
        self._name = _REMOVAL if removes else posixpath.basename(paths[0])
        self._rivals = names if removes else {*names, _REMOVAL}  # two removals do not disturb each other
        self._patience = PATIENCE
        self._seen: dict[str, float] = {}
        self._began = time.monotonic()

    def take(self, register: Callable[[str], T]) -> tuple[str, T]:
        """Make a contender with `register` and remove all others. Returns its path and what `register` returned.

        Guarantees: every contender that was registered before this one is gone when this returns, renamed by its writer
        or removed. `Conflict` if that takes longer than a minute.
        """
        while True:
            self._check_time()
            path = f"{self._folder}/.{self._name}.u{secrets.token_hex(8)}-0.tmp"
            try:
                made = register(path)
            except FileExistsError:
                continue  # ours, by a try whose reply was lost; it is out-waited like any other
            try:
                if self._goes_first(path):
                    return path, made
            except BaseException:
                self._remove(path)
                raise
            self._pause()

    def lost(self) -> None:
        """Another writer came first. Call this before the next `take`."""
        self._patience = min(2 * self._patience, MAX_PATIENCE)
        self._pause()

    def _goes_first(self, mine: str) -> bool:
        found = self._contenders(mine)
        own = found.pop(mine, None)
        if own is None:
            return False  # a rival has removed it already
        earlier = [path for path, status in found.items() if _order(status) < _order(own)]
        if any(self._is_awaited(path) for path in earlier):
            self._remove(mine)
            self._await(earlier)
            return False
        for path in found:
            self._remove(path)
        return True

    def _await(self, awaited: list[str]) -> None:
        """Until they are gone, or one of them has been there too long."""
        while awaited and all(self._is_awaited(path) for path in awaited):
            self._pause()
            there = self._contenders()
            awaited = [path for path in awaited if path in there]

    def _is_awaited(self, path: str) -> bool:
        now = time.monotonic()
        return now - self._seen.setdefault(path, now) < self._patience

    def _contenders(self, mine: str = "") -> dict[str, FileStatus]:
        """The rivals in this folder, and `mine`."""
        found = {}
        try:
            listing = self._hdfs.list(self._folder)
        except FileNotFoundError:
            return {}  # a rival has removed ours, and then the folder
        for status in listing:
            match = _CONTENDER.fullmatch(posixpath.basename(status.path))
            if status.path == mine or (match and match["of"] in self._rivals):
                found[status.path] = status
        return found

    def _remove(self, path: str) -> None:
        self._hdfs.remove(path, recursive=True)

    def _pause(self) -> None:
        time.sleep(random.uniform(0.01, 0.04))

    def _check_time(self) -> None:
        if time.monotonic() - self._began > AT_MOST:
            raise Conflict(
                f"{self._about} kept changing while it was being updated.",
                code="object.contended",
                about=self._about,
                unchanged="nothing of this update was written",
                next_step="find the other writer",
            )


def _order(status: FileStatus) -> tuple[int, str]:
    """By the NameNode's clock, and the same for everybody who looks."""
    return status.modification_time, status.path
