"""An exclusive lock on a file. The kernel releases it when the process that holds it dies, however that happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

from holdfast.base import forks
from holdfast.errors import Conflict
from holdfast.storage.files import disk
from holdfast.storage.files.lock_holder import LockHolder, holder_of


class FileLock:
    """Holds the lock of a file from construction to `close`. `Conflict` at once if another process holds it.

    A forked child does not hold it, so that the lock ends with this process. The file names the process that holds the
    lock, for people. It is not removed when the lock ends: removing it would let two processes hold the lock.
    """

    def __init__(self, path: str, address: str, kind: str = "index") -> None:
        """`kind` is what it guards: an index or a store."""
        self._path = path
        with _errors(address, kind):
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _this_process().encode(), 0)
        except BlockingIOError:
            noted = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            holder = holder_of(self._descriptor)
            self.close()
            raise _in_use(address, kind, path, holder, noted) from None
        except OSError:
            self.close()
            with _errors(address, kind):
                raise
        forks.opened(self)

    def close(self) -> None:
        """Release the lock. Fine to call twice."""
        forks.closed(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # garbage that was never closed
            self.close()

    def forget_in_child(self) -> None:
        """Close our copy, which leaves the parent's lock alone."""
        with contextlib.suppress(OSError):
            self.close()


def _in_use(address: str, kind: str, path: str, holder: LockHolder | None, noted: str) -> Conflict:
    """`noted` is what the holder wrote into the file: all there is to tell if it runs elsewhere."""
    next_step = f"end that process, or close its {kind}; the holder is also shown by: lsof {path}"
    stopped = holder is not None and holder.is_stopped
    return Conflict(
        f"{address} is in use by {holder or noted or 'another process'}{', which is stopped' if stopped else ''}.",
        code=f"{kind}.in-use",
        about=address,
        unchanged=f"the {kind}",
        next_step=holder.next_step if holder and stopped else next_step,
    )


def _errors(address: str, kind: str) -> contextlib.AbstractContextManager[None]:
    return disk.disk_errors(
        f"{address} cannot be opened",
        code=f"{kind}.disk",
        about=address,
        unchanged=f"the {kind}",
        then="then open it again",
    )


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}\n"
