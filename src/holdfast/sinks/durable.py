"""Making what others wrote survive a power cut. Neither Spark nor delta-rs syncs anything on a local disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import Unavailable

THREADS = 8


@contextlib.contextmanager
def disk_errors_explained(about: str, unchanged: str) -> Iterator[None]:
    """An `OSError` becomes `Unavailable`, with the file and the reason in its message."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise Unavailable(
            f"{error.strerror or error}{where}.",
            code="sink.disk",
            about=about,
            unchanged=unchanged,
            next_step="make room, mount it, or allow this user to write there; the same call may then be repeated",
        ) from error


def make_directories(path: str) -> None:
    """Make a directory and those above it; each new name is durable on return. Fine if it is there."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):  # made by somebody else meanwhile: still to be synced
            os.mkdir(new)
        sync(os.path.dirname(new))


def write_file(path: str, body: bytes) -> None:
    """Write a new file and sync its content; its name is durable once its directory is synced."""
    with open(path, "xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync(path: str) -> None:
    """Make a file's content or a directory's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[str]) -> None:
    """The same for many paths, several at a time: a journalling file system then does them in one go."""
    paths = list(paths)
    if len(paths) < 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(THREADS, len(paths)), thread_name_prefix="holdfast-sync") as threads:
        for _ in threads.map(sync, paths):
            pass


def sync_tree(root: str) -> None:
    """Every file and directory below `root`, and `root` itself. Its own name is its parent's to sync."""
    sync_all(
        [path for folder, _, names in os.walk(root) for path in (folder, *(os.path.join(folder, n) for n in names))]
    )
