"""A disk in memory that loses unsynced changes when the power is cut.

    disk = ForgetfulDisk()
    disk.cut_after(7)                       # the eighth operation and all after it raise PowerCut
    with suppress(PowerCut):
        LocalObjects("/store", disk=disk).create("a", [b"body"])
    LocalObjects("/store", disk=disk.reboot(seeded(42)))   # one possible disk after the restart

Run the work once without a cut to learn `operations`, then cut after 0, 1, 2 … of them. One disk can be rebooted many
times, with different choices: `reboot` does not change it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

from holdfast.storage.files.disk import Entry
from holdfast.storage.objects.store import Chunks


class PowerCut(BaseException):
    """The machine is off. Not an `Exception`, so that no error handler catches it and goes on."""


class Choose(Protocol):
    """Decides how much of each unsynced change survives the power cut."""

    def changes(self, path: str, pending: int) -> int:
        """The number of `pending` changes of this directory entry that survive, counted from the oldest."""

    def content(self, path: str, body: bytes) -> bytes:
        """The content that survives of an unsynced file."""


class _LoseEverything:
    def changes(self, path: str, pending: int) -> int:
        return 0

    def content(self, path: str, body: bytes) -> bytes:
        return b""


class _KeepEverything:
    def changes(self, path: str, pending: int) -> int:
        return pending

    def content(self, path: str, body: bytes) -> bytes:
        return body


class _Seeded:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def changes(self, path: str, pending: int) -> int:
        return self._random.randint(0, pending)

    def content(self, path: str, body: bytes) -> bytes:
        kept = body[: self._random.randrange(len(body))]
        return self._random.choice([b"", kept, kept + bytes(len(body) - len(kept)), body])


lose_everything: Choose = _LoseEverything()
"""Only synced changes survive."""

keep_everything: Choose = _KeepEverything()
"""Every change survives, synced or not: a crash of the process alone. Also a way to copy a disk."""


def seeded(seed: int) -> Choose:
    """A random choice. Each unsynced entry survives or not, independently of the others; unsynced content becomes
    empty, a prefix, a prefix with zeros to the full length, or stays whole. One seed replays one outcome: make a new
    one for each `reboot`.
    """
    return _Seeded(seed)


class _File:
    __slots__ = ("body", "modified", "synced")

    def __init__(self, body: bytes, modified: float, synced: bool) -> None:
        self.body = body
        self.modified = modified
        self.synced = synced


class _Directory:
    __slots__ = ("durable", "entries", "modified", "pending")

    def __init__(self, modified: float) -> None:
        self.modified = modified
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.pending: dict[str, list[_Node | None]] = {}

    def change(self, name: str, node: _Node | None) -> None:
        if node is None:
            del self.entries[name]
        else:
            self.entries[name] = node
        self.pending.setdefault(name, []).append(node)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()


_Node = _File | _Directory


class ForgetfulDisk:
    """A `Disk` in memory that begins with an empty `/`. Thread-safe.

    As pessimistic as POSIX allows: syncing a file does not make its name durable, syncing a directory does not make the
    directory's own name durable, and the two halves of a rename (the new name appears, the old one disappears) survive
    independently of each other.

    Does not model: links other than hard ones, permissions, moving a directory (`NotImplementedError`),
    a real lock in `locked`, or a file descriptor behind `open_file`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.journal: list[str] = []
        """Every operation performed, named as the steps of `PosixDisk`: `file.rename /store/a`."""
        self._clock = clock
        self._root = _Directory(clock())
        self._lock = threading.RLock()
        self._last: int | None = None
        self._off = False

    @property
    def operations(self) -> int:
        """The number of operations that have changed or synced something so far. A call that failed does not count."""
        return len(self.journal)

    def cut_after(self, operations: int) -> None:
        """Perform this many operations, counted as in `operations`, and cut the power instead of the next one."""
        self._last = operations

    def reboot(self, choose: Choose) -> ForgetfulDisk:
        """A new disk with the surviving files and directories, all of them durable."""
        with self._lock:
            disk = ForgetfulDisk(clock=self._clock)
            disk._root = _surviving_directory("/", self._root, choose, {})
            return disk

    def files(self) -> dict[str, bytes]:
        """Every file by its path, for assertions; works after a power cut too."""
        with self._lock:
            return dict(_walk("/", self._root))

    def make_directory(self, path: str) -> None:
        with self._lock:
            parent, name = self._parent(path)
            if not name or name in parent.entries:
                raise _error(errno.EEXIST, path)
            self._perform("directory.make", path)
            self._change(parent, name, _Directory(self._clock()))

    def write_file(self, path: str, chunks: Chunks, *, sync: bool = True) -> None:
        with self._lock:
            parent, name = self._parent(path)
            if not name or name in parent.entries:
                raise _error(errno.EEXIST, path)
            self._perform("file.write", path)
            file = _File(b"", self._clock(), synced=False)
            self._change(parent, name, file)
        with self._lock:
            self._perform("file.fill", path)
            file.body = b"".join(chunks)
        if sync:
            with self._lock:
                self._perform("file.sync", path)
                file.synced = True

    def link(self, existing: str, new: str) -> None:
        with self._lock:
            node = self._node(existing)
            parent, name = self._parent(new)
            if not name or name in parent.entries:
                raise _error(errno.EEXIST, new)
            if isinstance(node, _Directory):
                raise _error(errno.EPERM, existing)
            self._perform("file.link", new)
            self._change(parent, name, node)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            before, old_name = self._parent(old)
            after, new_name = self._parent(new)
            node = before.entries.get(old_name)
            if node is None:
                raise _error(errno.ENOENT, old)
            if isinstance(node, _Directory):
                raise NotImplementedError(f"ForgetfulDisk does not move directories: {old}")
            if _is_above(new, old):
                raise _error(errno.ENOTEMPTY, new)
            replaced = after.entries.get(new_name)
            if isinstance(replaced, _Directory):
                raise _error(errno.EISDIR, new)
            self._perform("file.rename", new)
            if replaced is not node:  # POSIX: a rename between two names of the same file does nothing
                self._change(after, new_name, node)
                self._change(before, old_name, None)

    def remove_file(self, path: str) -> None:
        with self._lock:
            if isinstance(self._node(path), _Directory):
                raise _error(errno.EISDIR, path)
            parent, name = self._parent(path)
            self._perform("file.remove", path)
            self._change(parent, name, None)

    def remove_directory(self, path: str) -> None:
        with self._lock:
            directory = self._directory(path)
            parent, name = self._parent(path)
            if not name:
                raise _error(errno.EBUSY, path)
            if directory.entries:
                raise _error(errno.ENOTEMPTY, path)
            self._perform("directory.remove", path)
            self._change(parent, name, None)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            directory = self._directory(path)
            self._perform("directory.sync", path)
            directory.sync()

    def open_file(self, path: str) -> BinaryIO:
        with self._lock:
            node = self._node(path)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, path)
            return io.BytesIO(node.body)

    def entry(self, path: str) -> Entry:
        with self._lock:
            return _entry(os.path.basename(path), self._node(path))

    def scan(self, path: str) -> list[Entry]:
        with self._lock:
            return [_entry(name, node) for name, node in self._directory(path).entries.items()]

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        self._directory(path)
        yield

    def _perform(self, operation: str, path: str) -> None:
        """Record an operation before it is performed, or cut the power instead."""
        if self._last is not None and self.operations >= self._last:
            self._off = True
        self._require_power()
        self.journal.append(f"{operation} {path}")

    def _require_power(self) -> None:
        if self._off:
            raise PowerCut(f"after {self.operations} operations")

    def _change(self, directory: _Directory, name: str, node: _Node | None) -> None:
        directory.change(name, node)
        directory.modified = self._clock()

    def _node(self, path: str) -> _Node:
        self._require_power()
        node: _Node = self._root
        for name in _names(path):
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            found = node.entries.get(name)
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        *above, name = _names(path) or [""]
        try:
            return self._directory("/".join(above)), name
        except OSError as error:
            raise _error(error.errno or errno.ENOENT, path) from None


def _names(path: str) -> list[str]:
    return [name for name in os.path.normpath("/" + path).split("/") if name]


def _is_above(path: str, other: str) -> bool:
    names, below = _names(path), _names(other)
    return len(names) < len(below) and below[: len(names)] == names


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)  # Python picks FileNotFoundError and the like by number


def _entry(name: str, node: _Node) -> Entry:
    if isinstance(node, _Directory):
        return Entry(name, True, 0, node.modified)
    return Entry(name, False, len(node.body), node.modified)


def _walk(path: str, directory: _Directory) -> Iterator[tuple[str, bytes]]:
    for name, node in directory.entries.items():
        below = os.path.join(path, name)
        if isinstance(node, _Directory):
            yield from _walk(below, node)
        else:
            yield below, node.body


def _surviving_directory(path: str, before: _Directory, choose: Choose, files: dict[int, _File]) -> _Directory:
    """The surviving copy of a directory. `files` maps `id(old file)` to its copy, so that hard links stay links."""
    after = _Directory(before.modified)
    table = dict(before.durable)
    for name, changes in before.pending.items():
        survived = choose.changes(os.path.join(path, name), len(changes))
        newest = changes[survived - 1] if survived else before.durable.get(name)
        table.pop(name, None)
        if newest is not None:
            table[name] = newest
    for name, node in table.items():
        below = os.path.join(path, name)
        if isinstance(node, _Directory):
            after.entries[name] = _surviving_directory(below, node, choose, files)
        else:
            if id(node) not in files:
                files[id(node)] = _surviving_file(below, node, choose)
            after.entries[name] = files[id(node)]
    after.sync()
    return after


def _surviving_file(path: str, before: _File, choose: Choose) -> _File:
    certain = before.synced or not before.body
    return _File(before.body if certain else choose.content(path, before.body), before.modified, synced=True)
