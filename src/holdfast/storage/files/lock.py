"""One process at a time: a lock on a file, which the kernel drops when its holder dies, however that happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

from holdfast.base import forks
from holdfast.errors import Conflict, Unavailable
from holdfast.storage.files.disk import PosixDisk

_disk = PosixDisk()


class FileLock:
    """Holds the lock of a file from its making to `close`; refused at once if somebody else holds it.

    A child that this process forks does not hold it, so that the lock ends with this process. The file says who holds
    it, for people; it stays when the lock ends, since removing it would let two hold it.
    """

    def __init__(self, path: str, address: str, kind: str = "index") -> None:
        """`kind` is what it guards: an index or a store."""
        self._path = path
        try:
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _unavailable(error, address) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _myself().encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.close()
            raise Conflict(
                f"{address} is in use by {holder or 'another process'}.",
                code=f"{kind}.in-use",
                about=address,
                unchanged=f"the {kind}",
                next_step=f"end that process, or close its {kind}; the holder is also shown by: lsof {path}",
            ) from None
        except OSError as error:
            self.close()
            raise _unavailable(error, address) from error
        forks.opened(self)

    def close(self) -> None:
        """Let go of the lock. Fine to call twice."""
        forks.closed(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # an index that nobody has closed and nobody can use any more
            self.close()

    def forget_in_child(self) -> None:
        """Close our copy, which leaves the parent's lock alone."""
        with contextlib.suppress(OSError):
            self.close()


def make_directories(path: str, address: str) -> None:
    """Make a directory and those above it; each new name is durable on return. Fine if it is there."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    try:
        # Whoever made the lowest one that is there may have died before it came to this.
        with contextlib.suppress(PermissionError):  # above what is ours
            _disk.sync_directory(os.path.dirname(path))
        for new in reversed(missing):
            with contextlib.suppress(FileExistsError):  # made by somebody else meanwhile: still to be synced
                _disk.make_directory(new)
            _disk.sync_directory(os.path.dirname(new))
    except OSError as error:
        raise _unavailable(error, address) from error


def sync_directory(path: str, address: str) -> None:
    """Make the names in a directory durable."""
    try:
        _disk.sync_directory(path)
    except OSError as error:
        raise _unavailable(error, address) from error


def _unavailable(error: OSError, address: str) -> Unavailable:
    where = f" ({error.filename})" if error.filename else ""
    return Unavailable(
        f"{address} cannot be opened: {error.strerror or error}{where}.",
        code="index.disk",
        about=address,
        unchanged="the index",
        next_step="make room, mount it, or allow this user to write there; then open it again",
    )


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}\n"
