"""The directory that Spark keeps its own checkpoint in: who owns it, and how it is made, removed and replaced.

A workdir is expendable: it can always be restored from the newest checkpoint. It lies on a disk that the driver and the
executors see under one path. `holdfast.sparkdir` reads what Spark writes into it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.base.addresses import local_path
from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Conflict, HoldfastError, Invalid
from holdfast.pipeline.workdir.owner import NEW_OWNER_FILE, OWNER_FILE, WorkdirOwner, read_owner, write_owner
from holdfast.sparkdir.checkpoint import SparkCheckpoint
from holdfast.sparkdir.directory import LocalDirectory

SPOOL = ".spool"
"""The prefix of directories that hold a frame which must not be computed twice."""

SUSPECT = ".holdfast-suspect"
"""The file with the reason why Spark could not go on from the workdir, and how far Spark was then."""

PROBE = ".holdfast-probe-"
"""The prefix of directories in which executors prove that they see the workdir."""

STAMPS = ".holdfast-stamps"
"""The file with what the workdir was when its query ended."""

OWN_NAMES = {OWNER_FILE, NEW_OWNER_FILE, SUSPECT, STAMPS, f"{STAMPS}.new"}
"""Files of Holdfast's in a workdir."""


class _Suspicion(msgspec.Struct, frozen=True):
    """The content of the file `SUSPECT`."""

    why: str
    committed: int | None = None
    """The newest batch that Spark had committed when it failed; None if that is not known."""


class Workdir:
    """One workdir. Nothing is made or changed until a method says so.

    `home` is where it lies, `path` is how it is reached: by the path of one generation (see `fence`), if it has one.
    """

    def __init__(self, home: str | os.PathLike[str], *, generation_path: Path | None = None) -> None:
        self.home = _local_path(os.fspath(home))
        self.path = generation_path or self.home

    def __repr__(self) -> str:
        return f"Workdir({str(self.home)!r})"

    @property
    def spark_checkpoint(self) -> SparkCheckpoint:
        """What Spark has written into it, for reading."""
        return SparkCheckpoint(LocalDirectory(self.path))

    # Owner and state

    def owner(self) -> WorkdirOwner | None:
        """The pipeline it belongs to; None if it belongs to none, or if that cannot be read."""
        return read_owner(self.path)

    def mark_suspect(self, why: str) -> None:
        """Leave a note for the next start that Spark could not go on from it. Not guaranteed: the disk may be full."""
        with contextlib.suppress(OSError, HoldfastError):
            logs = self.spark_checkpoint.logs()
            note = _Suspicion(why, committed=None if logs.problem else logs.committed)
            (self.path / SUSPECT).write_bytes(msgspec.json.encode(note))

    def suspect_reason(self, committed: int | None = None) -> str | None:
        """The note that `mark_suspect` left; None if there is none, or if Spark has committed a batch since then.

        `committed` is the newest batch that Spark has committed.
        """
        try:
            found = (self.path / SUSPECT).read_bytes()
        except OSError:
            return None
        try:
            note = json_decoder(_Suspicion).decode(found)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # 0.1 wrote the reason alone
            note = _Suspicion(found.decode(errors="replace"))
        is_stale = committed is not None and note.committed is not None and committed > note.committed
        return None if is_stale else note.why

    def clear_suspicion(self) -> None:
        """Remove the note: Spark has gone on from the workdir. Fine if there is none."""
        with contextlib.suppress(OSError):
            (self.path / SUSPECT).unlink()

    def is_empty(self) -> bool:
        """Whether it holds no file but Holdfast's own."""
        try:
            return not any(name not in OWN_NAMES for name in os.listdir(self.path))
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            raise _no_directory(str(self.home)) from None

    def check_replaceable(self) -> None:
        """`Invalid` if it could not be renamed, as a restore does: it is a mount point or a symbolic link."""
        if self.home.is_symlink():
            target = os.path.realpath(self.home)
            raise _not_replaceable(
                self.home, f"a symbolic link to {target}", f"pass its target as the workdir: {target}"
            )
        if is_mount_point(self.home):
            inside = str(self.home / "workdir")
            raise _not_replaceable(self.home, "a mount point", f"pass a directory inside it as the workdir: {inside}")

    def make(self, owner: WorkdirOwner) -> None:
        """Make it, marked as belonging to `owner`. Fine if it is there."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self.owner() != owner:
            write_owner(self.home, owner)

    def discard(self, still_ours: Callable[[], None] = lambda: None) -> None:
        """Rename it, then remove it: a crash half-way leaves no half of a workdir under its name.

        If `still_ours` raises, it is renamed back: it may be a successor's workdir.
        """
        with step("workdir.discard"):
            aside = self._sibling("discarded")
            try:
                os.rename(self.home, aside)
            except FileNotFoundError:
                return
            try:
                still_ours()
            except BaseException:
                with contextlib.suppress(OSError):  # the successor has made another one
                    os.rename(aside, self.home)
                raise
            shutil.rmtree(aside, ignore_errors=True)

    def publish(self, fresh: Path, still_ours: Callable[[], None]) -> None:
        """Rename a directory that was built beside it to its name. `Conflict` if something has that name."""
        with step("workdir.publish"):
            try:
                os.rename(fresh, self.home)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                still_ours()
                raise Conflict(
                    f"Something else made the workdir {self.home} while it was being rebuilt.",
                    code="workdir.made-elsewhere",
                    about=str(self.home),
                    unchanged="the store and every sink",
                    next_step="start the pipeline again, once nothing else uses that directory",
                ) from error

    def sweep(self) -> None:
        """Remove what an interrupted restore or removal left beside it."""
        for kind in ("discarded", "rebuild"):
            for left in self.home.parent.glob(glob.escape(f".{self.home.name}.{kind}-") + "*"):
                shutil.rmtree(left, ignore_errors=True)
        for left in self.path.glob(f"{SPOOL}*"):
            shutil.rmtree(left, ignore_errors=True)
        self.remove_probes()

    def remove_probes(self) -> None:
        """Remove what the proof that executors see it has left."""
        for left in self.path.glob(f"{PROBE}*"):
            shutil.rmtree(left, ignore_errors=True)

    def new_sibling(self) -> Path:
        """A fresh directory beside it to build a replacement in."""
        fresh = self._sibling("rebuild")
        fresh.mkdir(parents=True)
        return fresh

    def _sibling(self, kind: str) -> Path:
        return self.home.parent / f".{self.home.name}.{kind}-{uuid.uuid4().hex[:12]}"


def is_own_name(name: str) -> bool:
    """Whether a name in a workdir is one of Holdfast's."""
    return name in OWN_NAMES or name.startswith((SPOOL, PROBE))


def is_mount_point(path: Path) -> bool:
    """Whether a file system is mounted there, also a part of the same one (a bind mount), which `ismount` misses."""
    if os.path.ismount(path):
        return True
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return False  # no Linux
    wanted = os.path.realpath(path).encode()
    return any(_mounted_at(line) == wanted for line in mounts)


def _mounted_at(line: bytes) -> bytes:
    """The place in a line of `mountinfo`, its fifth field; blanks in it are written in octal."""
    return re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split(b" ", 5)[4])


def _not_replaceable(home: Path, what: str, next_step: str) -> Invalid:
    return Invalid(
        f"The workdir {home} is {what}. A rebuilt workdir replaces it by renaming, which is not possible there.",
        code="workdir.not-replaceable",
        about=str(home),
        unchanged="the workdir, the store and every sink",
        next_step=next_step,
    )


def _local_path(address: str) -> Path:
    try:
        return Path(local_path(address))
    except Invalid:
        raise _no_directory(address) from None


def _no_directory(text: str) -> Invalid:
    return Invalid(
        f"A workdir is a directory on a disk that the driver and all executors see, not {text!r}.",
        code="workdir.address",
        about=text or "workdir",
        unchanged="everything",
        next_step="pass a local or mounted path; the checkpoints themselves may be on object storage",
    )
