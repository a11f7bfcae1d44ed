"""Who holds the lock of a file, for the message of a process that waits for it in vain.

The kernel frees a lock when its holder dies. A holder that was stopped (SIGSTOP, a debugger, a paused container) keeps
it, and only a person can decide whether that process goes on or ends.
"""

from __future__ import annotations

import os
import re

import msgspec

from holdfast.base.addresses import without_secrets
from holdfast.base.shortened import shortened

MAX_COMMAND = 120
_LOCK = re.compile(r"\d+: FLOCK +\S+ +WRITE +(\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) ")
_VALUE = re.compile(r"(?<==).+")


class LockHolder(msgspec.Struct, frozen=True):
    """A process on this machine that holds a lock."""

    pid: int
    command: str
    """Its command line, shortened; values of `name=value` and passwords in addresses are left out."""
    is_stopped: bool

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.command})" if self.command else "")

    @property
    def state(self) -> str:
        return "it is stopped" if self.is_stopped else "it may be frozen, or wait for its disk"

    @property
    def next_step(self) -> str:
        first = f"let it go on with: kill -CONT {self.pid}; or" if self.is_stopped else "wait for it, or"
        return (
            f"{first} end it with: kill -9 {self.pid}, which is safe: the lock ends with the process, everything that "
            "it acknowledged is durable, and the next writer finishes or discards the rest"
        )


def holder_of(descriptor: int) -> LockHolder | None:
    """The process that holds the exclusive flock of an open file.

    None where that cannot be found out: no `/proc`, a holder on another machine or in another container, or one that
    took the lock before it forked and has ended since.
    """
    try:
        found = os.fstat(descriptor)
        with open("/proc/locks") as file:
            locks = [match for line in file if (match := _LOCK.match(line))]
    except OSError:
        return None
    wanted = (os.major(found.st_dev), os.minor(found.st_dev))
    for lock in locks:
        pid, device = int(lock[1]), (int(lock[2], 16), int(lock[3], 16))
        # btrfs and overlayfs show one device here and another in a stat, so the holder's open files count as well.
        if int(lock[4]) == found.st_ino and pid != 0 and (device == wanted or _has_open(pid, found)):
            return _described(pid)
    return None


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.path.samestat(os.stat(f"{folder}/{name}"), wanted) for name in os.listdir(folder))
    except OSError:  # not ours to look at, or gone, or a file was closed meanwhile
        return False


def _described(pid: int) -> LockHolder | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            arguments = file.read().split("\0")
    except OSError:
        return None
    command = " ".join(_VALUE.sub("…", without_secrets(part)) for part in arguments if part)
    return LockHolder(pid, shortened(command, MAX_COMMAND), is_stopped=state in ("T", "t"))
