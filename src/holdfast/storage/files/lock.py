"""One process at a time: a lock on a file, which the kernel drops when its holder dies, however that happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

from holdfast.base import forks
from holdfast.errors import Conflict
from holdfast.storage.files import disk


class FileLock:
    """Holds the lock of a file from its making to `close`; refused at once if another process holds it.

    A child that this process forks does not hold it, so that the lock ends with this process. The file says who holds
    it, for people; it stays when the lock ends, since removing it would let two hold it.
    """

    def __init__(self, path: str, address: str, kind: str = "index") -> None:
        """`kind` is what it guards: an index or a store."""
        self._path = path
        with _errors(address, kind):
            self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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


def _errors(address: str, kind: str) -> contextlib.AbstractContextManager[None]:
    return disk.disk_errors(
        f"{address} cannot be opened",
        code=f"{kind}.disk",
        about=address,
        unchanged=f"the {kind}",
        then="then open it again",
    )


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}\n"
