"""Local disks: the only place that syncs.

`Disk` is the few file-system calls that the local object store is made of, each one a named step. It is a Protocol so
that a test can put a disk underneath that forgets what was never synced. The functions below it are for directories
that others write to as well (Spark, delta-rs, SQLite, RocksDB): none of those syncs everything that we rely on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Protocol

import msgspec

from holdfast.base.parallel import in_parallel
from holdfast.base.steps import step
from holdfast.errors import Unavailable
from holdfast.storage.files.lock_holder import holder_of
from holdfast.storage.files.reaper import freed_aside

Bytes = bytes | bytearray | memoryview

Chunks = Sequence[Bytes]
"""A body in pieces, so that it need not be joined in memory."""

PIECE = 1 << 20
SYNC_THREADS = 8
CANNOT_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP)
"""Errors of syncing a directory that no later try will get past."""


_TEMPORARY = re.compile(r"\..+\.[0-9a-z]+-\d+\.tmp")
FOREIGN_TEMPORARY = ("manifest.json.tmp", "state.bin.tmp", "latest.txt.tmp")  # LaminarDB's


def is_temporary(name: str) -> bool:
    """Whether a file of this name can only be what an interrupted write left behind."""
    return _TEMPORARY.fullmatch(name) is not None or name in FOREIGN_TEMPORARY


class Entry(msgspec.Struct, frozen=True):
    """One name in a directory."""

    name: str
    is_directory: bool
    size: int
    modified: float
    identity: tuple[int, int] | None = None
    """The same for every name of one directory, where the file system tells."""


class Disk(Protocol):
    """Paths to bytes. Errors are `OSError`, as the operating system gives them.

    Content and directory entries are durable apart: a synced file whose directory was not synced may be
    gone after a power cut, and so may a removal, a rename or a link.
    """

    def make_directory(self, path: str) -> None:
        """Make one directory; `FileExistsError` if the name is taken."""

    def write_file(self, path: str, chunks: Chunks, *, sync: bool = True) -> None:
        """Write a new file and sync its content. Its directory entry is not durable yet.

        Without `sync` the content may be lost in a power cut even if its name is not.
        """

    def link(self, existing: str, new: str) -> None:
        """Give a file a second name; `FileExistsError` if the name is taken."""

    def rename(self, old: str, new: str) -> None:
        """Move a file over whatever has the new name, atomically for readers."""

    def remove_file(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Make every change of this directory's entries durable."""

    def open_file(self, path: str) -> BinaryIO:
        """Open a file for reading, unbuffered."""

    def entry(self, path: str) -> Entry:
        """What is at this path, links followed."""

    def scan(self, path: str) -> list[Entry]:
        """The entries of a directory, links followed, in no order."""

    def locked(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold the directory's advisory lock; it ends with the process, however that ends."""


class PosixDisk:
    """The disk of this machine, through the system's own calls."""

    def __init__(self, *, lock_timeout: float = 10.0) -> None:
        self._lock_timeout = lock_timeout

    def make_directory(self, path: str) -> None:
        with step("directory.make"):
            os.mkdir(path)

    def write_file(self, path: str, chunks: Chunks, *, sync: bool = True) -> None:
        with step("file.write"):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with step("file.fill"):
                _fill(descriptor, chunks)
            if sync:
                with step("file.sync"):
                    os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, existing: str, new: str) -> None:
        with step("file.link"):
            os.link(existing, new)

    def rename(self, old: str, new: str) -> None:
        with step("file.rename"), freed_aside(new):
            os.rename(old, new)

    def remove_file(self, path: str) -> None:
        # A temporary file has given its content to another name, or never had much.
        aside = contextlib.nullcontext() if is_temporary(os.path.basename(path)) else freed_aside(path)
        with step("file.remove"), aside:
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with step("directory.remove"), freed_aside(path):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with step("directory.sync"):
            _sync(path, os.O_DIRECTORY)

    def open_file(self, path: str) -> BinaryIO:
        # Without blocking: a pipe in a file's place would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.fdopen(descriptor, "rb", buffering=0)

    def entry(self, path: str) -> Entry:
        found = os.stat(path)
        return Entry(os.path.basename(path), stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime)

    def scan(self, path: str) -> list[Entry]:
        entries = []
        with os.scandir(path) as names:
            for name in names:
                try:
                    found = name.stat()
                except OSError:  # removed since, or a link to nowhere, or to itself
                    continue
                is_directory = stat.S_ISDIR(found.st_mode)
                identity = (found.st_dev, found.st_ino)
                entries.append(Entry(name.name, is_directory, found.st_size, found.st_mtime, identity))
        return entries

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._wait_for_lock(descriptor, path)
            yield
        finally:
            os.close(descriptor)  # closing drops the lock

    def _wait_for_lock(self, descriptor: int, path: str) -> None:
        deadline = time.monotonic() + self._lock_timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._locked(descriptor, path) from None
                time.sleep(0.002)

    def _locked(self, descriptor: int, path: str) -> Unavailable:
        holder = holder_of(descriptor)
        who = f"P{str(holder)[1:]}" if holder else "Another process"
        return Unavailable(
            f"{who} holds the lock on {path}, for {self._lock_timeout:g} seconds now; "
            f"{holder.state if holder else 'it may be frozen'}.",
            code="disk.locked",
            about=path,
            unchanged="the store",
            next_step=holder.next_step if holder else f"find it with: lsof {path}",
        )


def sync(path: str) -> None:
    """Make a file's content or a directory's entries durable. Raises `OSError`, as all functions here."""
    _sync(path)


def sync_all(paths: Iterable[str]) -> None:
    """`sync` for many paths, several at a time: a journalling file system then does them in one go."""
    in_parallel(_sync, paths, at_once=SYNC_THREADS, name="sync")


def sync_tree(root: str) -> None:
    """Make every file and directory below `root`, and `root` itself, durable; its own name is in its parent."""
    sync_all(
        [path for folder, _, names in os.walk(root) for path in (folder, *(os.path.join(folder, n) for n in names))]
    )


def write_file(path: str, body: Bytes, *, overwrite: bool = False) -> None:
    """Write a file and sync its content; its name is durable once its directory is synced.

    `FileExistsError` if there is one, unless it may be overwritten: then a crash can leave any part of either content.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if overwrite else os.O_EXCL)
    descriptor = os.open(path, flags, 0o666)
    try:
        _fill(descriptor, [body])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: str) -> None:
    """Make a directory and those above it; each new name is durable on return. Fine if it is there.

    The name of the lowest directory that was there is made durable too: the process that made it may have died before
    it synced. Directories above are not ours: one that is closed to us, or on a file system that cannot sync it, is
    passed over.
    """
    disk = PosixDisk()
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path) or "."
    try:
        disk.sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile: still to be synced
            disk.make_directory(new)
        disk.sync_directory(os.path.dirname(new) or ".")


@contextlib.contextmanager
def disk_errors(
    what: str, *, code: str, about: str, unchanged: str, then: str = "the same call may then be repeated"
) -> Iterator[None]:
    """In this block an `OSError` becomes `Unavailable`, with `what` failed, the reason and the file in its message."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise Unavailable(
            f"{what}{': ' if what else ''}{error.strerror or error}{where}.",
            code=code,
            about=about,
            unchanged=unchanged,
            next_step=f"make room, mount it, or allow this user to write there; {then}",
        ) from error


def _sync(path: str, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, chunks: Chunks) -> None:
    """Write all chunks, and have the system begin to write them out meanwhile, so that little is left for the sync."""
    written = sent = 0
    for chunk in chunks:
        rest = memoryview(chunk).cast("B")
        while rest:
            count = os.write(descriptor, rest[:PIECE])
            rest = rest[count:]
            written += count
            if written - sent >= PIECE:
                _send_off(descriptor, sent, written - sent)
                sent = written


def _send_off(descriptor: int, start: int, length: int) -> None:
    """Start writing out part of a file, without waiting. Where the system has no such call, the sync does it all."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
