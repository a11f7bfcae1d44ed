"""A workdir on a disk that the driver and all executors see under one path."""

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

from holdfast.base.addresses import local_path
from holdfast.base.steps import step
from holdfast.errors import Conflict, Invalid
from holdfast.pipeline.workdir.fence import close_older_paths, fence_path
from holdfast.pipeline.workdir.owner import WorkdirOwner, write_owner
from holdfast.pipeline.workdir.workdir import OWN_NAMES, SPOOL, Check, T, Workdir
from holdfast.storage.files.directory import Directory, LocalDirectory

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LocalWorkdir(Workdir):
    """A directory on a disk. `home` is where it lies, `path` is how it is reached: by the path of one generation, if it
    has one.

    A driver that was taken over does not know it until it checks the lease, and Spark never checks: its tasks and its
    clean-up go on writing, by path. So the path that Spark is given is a symbolic link that belongs to one generation
    (see `fence`).
    """

    vouches_after_failure = True
    has_checksums = True

    def __init__(self, home: str | os.PathLike[str], *, generation_path: Path | None = None) -> None:
        self.home = _local_path(os.fspath(home))
        self.path = generation_path or self.home

    def __repr__(self) -> str:
        return f"LocalWorkdir({str(self.home)!r})"

    @property
    def address(self) -> str:
        return str(self.home)

    @property
    def directory(self) -> LocalDirectory:
        return LocalDirectory(self.path)

    def written_address(self, directory: Directory) -> bytes:
        """Always this generation's: a directory that is built beside it is renamed to its name."""
        return f"file:{self.path}".encode()

    @property
    def written_addresses(self) -> re.Pattern[bytes]:
        """Its own, and the paths of its generations."""
        parent, name = (re.escape(text) for text in os.path.split(self.home))
        return re.compile(rf"file:{parent.rstrip('/')}/(?:{name}|\.{name}\.spark-[0-9a-f-]+)(?=[/\"])".encode())

    def is_named_in(self, text: str) -> bool:
        return f"{self.home}/" in text or f"{self.home.parent}/.{self.home.name}.spark-" in text

    def incarnation(self) -> str:
        """The run of the machine: after a power cut a file may have its size and time, and not its bytes."""
        return _BOOT_ID.read_text().strip()

    def is_empty(self) -> bool:
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

    def fenced(self, generation: int, still_ours: Check) -> LocalWorkdir:
        return LocalWorkdir(self.home, generation_path=fence_path(self.home, generation, still_ours))

    def taken_over(self, generation: int, still_ours: Check) -> LocalWorkdir:
        """The paths of all generations are removed; it is reached by its own."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        close_older_paths(self.home, generation, still_ours)
        return self

    def as_found(self) -> LocalWorkdir:
        return self

    def make(self, owner: WorkdirOwner) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._mark_owner(owner)

    def discard(self, still_ours: Check = lambda: None) -> None:
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

    def publish(self, fresh: Path, still_ours: Check) -> None:
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

    def replace(self, fill: Callable[[Directory], T], owner: WorkdirOwner, still_ours: Check) -> T:
        """Build it beside itself, and publish it by a rename.

        Does not guarantee: that it survives a power cut; the next start compares it and restores it again if need be.
        """
        fresh = self.new_sibling()
        try:
            filled = fill(LocalDirectory(fresh))
            write_owner(LocalDirectory(fresh), owner)
            still_ours()
            self.discard(still_ours)
            self.publish(fresh, still_ours)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return filled

    def sweep(self, still_ours: Check = lambda: None) -> None:
        """What an interrupted restore or removal left beside it, and what is left inside it."""
        for kind in ("discarded", "rebuild"):
            for left in self.home.parent.glob(glob.escape(f".{self.home.name}.{kind}-") + "*"):
                shutil.rmtree(left, ignore_errors=True)
        self.directory.remove_folders(SPOOL)
        self.remove_probes()

    def new_sibling(self) -> Path:
        """A fresh directory beside it to build a replacement in."""
        fresh = self._sibling("rebuild")
        fresh.mkdir(parents=True)
        return fresh

    def _sibling(self, kind: str) -> Path:
        return self.home.parent / f".{self.home.name}.{kind}-{uuid.uuid4().hex[:12]}"


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
        f"A workdir is a directory that the driver and all executors can reach, not {text!r}.",
        code="workdir.address",
        about=text or "workdir",
        unchanged="everything",
        next_step="pass a local or mounted path, or s3a://, abfss://, gs:// or hdfs://",
    )
