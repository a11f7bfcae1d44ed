"""The directory that Spark keeps its own checkpoint in: who owns it, and how it is made, removed and replaced.

A workdir is expendable: it can always be restored from the newest checkpoint. It lies on a disk that the driver and the
executors see under one path. `holdfast.sparkdir` reads what Spark writes into it.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from holdfast.base.addresses import local_path
from holdfast.base.steps import step
from holdfast.errors import Conflict, Invalid
from holdfast.pipeline.workdir.owner import NEW_OWNER_FILE, OWNER_FILE, WorkdirOwner, read_owner, write_owner
from holdfast.sparkdir.checkpoint import SparkCheckpoint
from holdfast.sparkdir.directory import LocalDirectory

SPOOL = ".spool"
"""The prefix of directories that hold a frame which must not be computed twice."""

SUSPECT = ".holdfast-suspect"
"""The file with the reason why Spark could not go on from the workdir; it goes with the workdir."""

OWN_NAMES = {OWNER_FILE, NEW_OWNER_FILE, SUSPECT}
"""Files of Holdfast's in a workdir."""


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

    # Whose it is

    def owner(self) -> WorkdirOwner | None:
        """The pipeline it belongs to; None if it belongs to none, or if that cannot be read."""
        return read_owner(self.path)

    def mark_suspect(self, why: str) -> None:
        """Leave a note for the next start that Spark could not go on from it. Not guaranteed: the disk may be full."""
        with contextlib.suppress(OSError):
            (self.path / SUSPECT).write_text(why)

    def suspect_reason(self) -> str | None:
        """The note that `mark_suspect` left; None if there is none."""
        try:
            return (self.path / SUSPECT).read_text(errors="replace")
        except OSError:
            return None

    def is_empty(self) -> bool:
        """Whether there is nothing of Spark's in it."""
        try:
            return not any(name not in OWN_NAMES for name in os.listdir(self.path))
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            raise _no_directory(str(self.home)) from None

    def make(self, owner: WorkdirOwner) -> None:
        """Make it, marked as belonging to `owner`. Fine if it is there."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self.owner() != owner:
            write_owner(self.home, owner)

    def discard(self, still_ours: Callable[[], None] = lambda: None) -> None:
        """Remove it, out of sight first: a crash half-way leaves no half of a workdir under its name.

        If it turns out not to be ours any more, it is put back: what was moved may be a successor's.
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
        """Give a directory that was built beside it its name, which nothing has. `Conflict` if something does."""
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

    def new_sibling(self) -> Path:
        """A fresh directory beside it to build a replacement in."""
        fresh = self._sibling("rebuild")
        fresh.mkdir(parents=True)
        return fresh

    def _sibling(self, kind: str) -> Path:
        return self.home.parent / f".{self.home.name}.{kind}-{uuid.uuid4().hex[:12]}"


def is_own_name(name: str) -> bool:
    """Whether a name in a workdir is one of Holdfast's."""
    return name in OWN_NAMES or name.startswith(SPOOL)


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
