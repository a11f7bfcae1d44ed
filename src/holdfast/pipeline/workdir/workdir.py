"""`Workdir`: the directory that Spark keeps its own checkpoint in, with an owner and a fence.

A workdir is expendable: it can always be restored from the newest checkpoint. It lies where the driver and the
executors can all get at it: on a disk (`local`), or on object storage or HDFS (`remote`). `holdfast.sparkdir` reads
what Spark writes into it.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.errors import HoldfastError
from holdfast.pipeline.workdir.owner import NEW_OWNER_FILE, OWNER_FILE, WorkdirOwner, read_owner, write_owner
from holdfast.sparkdir.checkpoint import SparkCheckpoint
from holdfast.storage.files.directory import Directory

SPOOL = ".spool"
"""The prefix of directories that hold a frame which must not be computed twice."""

SUSPECT = ".holdfast-suspect"
"""The file with the reason why Spark could not go on from the workdir, and how far Spark was then."""

PROBE = ".holdfast-probe-"
"""The prefix of directories in which executors prove that they see the workdir."""

STAMPS = ".holdfast-stamps"
"""The file with what the workdir was when its query ended."""

OWN_NAMES = {OWNER_FILE, NEW_OWNER_FILE, SUSPECT, STAMPS, f"{STAMPS}.new", f"{SUSPECT}.new"}
"""Files of Holdfast's in a workdir."""

T = TypeVar("T")
Check = Callable[[], None]
"""Raises `Fenced` if another driver has taken the pipeline over."""


class _Suspicion(msgspec.Struct, frozen=True):
    """The content of the file `SUSPECT`."""

    why: str
    committed: int | None = None
    """The newest batch that Spark had committed when it failed; None if that is not known."""


class Workdir(ABC):
    """One workdir. Nothing is made or changed until a method says so."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it lies, for messages, manifests and the next start."""

    @property
    @abstractmethod
    def directory(self) -> Directory:
        """Its files, where this generation's Spark keeps them."""

    @property
    def spark_checkpoint(self) -> SparkCheckpoint:
        """What Spark has written into it, for reading."""
        return SparkCheckpoint(self.directory)

    @abstractmethod
    def written_address(self, directory: Directory) -> bytes:
        """Its address as Spark writes it into files, if its files are in `directory`. Hadoop does not escape it."""

    @property
    @abstractmethod
    def written_addresses(self) -> re.Pattern[bytes]:
        """Every address that it has or had, as Spark writes them."""

    @abstractmethod
    def is_named_in(self, text: str) -> bool:
        """Whether a text, such as an error of Spark's, names a file in it."""

    # Owner and state

    def owner(self) -> WorkdirOwner | None:
        """The pipeline it belongs to; None if it belongs to none, or if that cannot be read."""
        return read_owner(self.directory)

    def mark_suspect(self, why: str) -> None:
        """Leave a note for the next start that Spark could not go on from it. Not guaranteed: the disk may be full."""
        with contextlib.suppress(OSError, HoldfastError):
            logs = self.spark_checkpoint.logs()
            note = _Suspicion(why, committed=None if logs.problem else logs.committed)
            self.directory.write(SUSPECT, msgspec.json.encode(note))

    def suspect_reason(self, committed: int | None = None) -> str | None:
        """The note that `mark_suspect` left; None if there is none, or if Spark has committed a batch since then.

        `committed` is the newest batch that Spark has committed.
        """
        try:
            found = self.directory.read(SUSPECT)
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
        with contextlib.suppress(OSError, HoldfastError):
            self.directory.remove(SUSPECT)

    @abstractmethod
    def incarnation(self) -> str:
        """A text that changes when stamps of files stop meaning anything, as after a power cut. May raise `OSError`."""

    @property
    @abstractmethod
    def vouches_after_failure(self) -> bool:
        """Whether nothing writes into it any more once a query has failed and its successor has fenced it."""

    @property
    @abstractmethod
    def has_checksums(self) -> bool:
        """Whether Spark writes checksums beside its files."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it holds no file but Holdfast's own."""

    absence: str = "it is gone"
    """Why it is empty, where there was one."""

    def left_behind(self) -> Workdir | None:
        """The workdir of the driver before, for reading, if it is not used again; None if there is none."""
        return None

    @abstractmethod
    def check_replaceable(self) -> None:
        """`Invalid` if a rebuilt workdir could not take its place."""

    # Fence

    @abstractmethod
    def fenced(self, generation: int, still_ours: Check) -> Workdir:
        """The same workdir for one generation: from now on no earlier one's Spark reaches it."""

    @abstractmethod
    def taken_over(self, generation: int, still_ours: Check) -> Workdir:
        """As `fenced`, for a generation that replaces the workdir and starts no Spark."""

    @abstractmethod
    def as_found(self) -> Workdir:
        """The workdir as the next start will find it. Changes nothing."""

    # Making and replacing

    @abstractmethod
    def make(self, owner: WorkdirOwner) -> None:
        """Make it, marked as belonging to `owner`. Fine if it is there."""

    @abstractmethod
    def discard(self, still_ours: Check = lambda: None) -> None:
        """Remove all that it holds: a crash half-way leaves no half of a workdir."""

    @abstractmethod
    def replace(self, fill: Callable[[Directory], T], owner: WorkdirOwner, still_ours: Check) -> T:
        """Replace it by what `fill` writes into an empty directory; returns what `fill` returns.

        Guarantees: there is always the old workdir, none, or the whole new one. `still_ours` is called before the old
        one is given up.
        """

    @abstractmethod
    def sweep(self, still_ours: Check = lambda: None) -> None:
        """Remove what interrupted restores and drivers that are gone have left."""

    def remove_probes(self) -> None:
        """Remove what the proof that executors see it has left."""
        self.directory.remove_folders(PROBE)

    def _mark_owner(self, owner: WorkdirOwner) -> None:
        if self.owner() != owner:
            write_owner(self.directory, owner)


def is_own_name(name: str) -> bool:
    """Whether a name in a workdir is one of Holdfast's."""
    return name in OWN_NAMES or name.startswith((SPOOL, PROBE))
