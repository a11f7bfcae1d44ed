"""`SparkMetadataLog`: the log of a file sink on object storage. An epoch that is in it is committed.

Each entry is one conditional create, so that any number of drivers append to it, one at a time.
"""

from __future__ import annotations

import contextlib
import logging

from holdfast.base.parallel import in_parallel
from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, Invalid, NotFound
from holdfast.sinks.files import spark_metadata_format
from holdfast.sinks.files.layout import FileLayout
from holdfast.sinks.files.spark_metadata_format import LoggedEpoch
from holdfast.sinks.sink import Delivery
from holdfast.storage.objects.cloud import CloudObjects

log = logging.getLogger("holdfast.sinks")
FOLDER = "_spark_metadata"
ENTRY_LIMIT = 2 << 30
MOST_BYTES = 1 << 30
"""What the log may have for another epoch to be staged. The other half is for epochs that are decided already."""
LARGE = 64 << 20
"""From where on a warning is given, at each doubling."""
MOST_ATTEMPTS = 100
FIRST = 1000
_LESS = "FileSink(..., keep='30d') leaves older epochs out of it, and fewer files per epoch make it grow more slowly"
READERS = spark_metadata_format.INTERVAL + 1
Epoch = tuple[int, int]
"""Lineage and epoch."""


class SparkMetadataLog:
    """The log below `prefix`, as far as it has been read: entries never change, so that only new ones are asked for.

    Not thread-safe.
    """

    def __init__(self, objects: CloudObjects, prefix: str, *, address: str, layout: FileLayout) -> None:
        """`address` is that of the sink, as Spark's readers see it."""
        self._objects = objects
        self._folder = f"{prefix}/{FOLDER}/"
        self._address = address
        self._layout = layout
        self._newest: int | None = None
        self._marks: dict[Epoch, str | None] = {}
        self._forgotten: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._large = LARGE

    def begin(self) -> None:
        """Make the first, empty entry: from then on Spark's readers look at the log, not at the files.

        `Corrupt` if there is no log, and there are epochs.
        """
        if self._numbers():
            return
        if any(self._layout.epoch_in(name) for name in self._names_beside()):
            raise self._damaged("its entries are gone, and epochs are there")
        with step("files.begin-log"), contextlib.suppress(Conflict):
            self._objects.create(self._key(0), [spark_metadata_format.entry([])])

    def committed(self, *, fresh: bool = False) -> dict[Epoch, str | None]:
        """The committed epochs and their marks: as known here, or read anew."""
        if fresh or self._newest is None:
            self._read()
        return self._marks

    def is_committed(self, epoch: Epoch, *, fresh: bool = False) -> bool:
        """Also for an epoch that has left the log."""
        return epoch in self.committed(fresh=fresh) or epoch[1] <= self._forgotten.get(epoch[0], 0)

    def check_room(self, logged: LoggedEpoch) -> None:
        """`Invalid` if the log has no room for an epoch that is to be decided. A warning if it has grown large."""
        self.committed()
        lines = self._lines(logged)
        try:
            size = sum(self._sizes[number] for number in spark_metadata_format.needed(self._sizes)) + len(lines)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if size > MOST_BYTES and self._layout.keep_ms is not None:
            whole = b"\n".join([*self._lines_before(self._next()), lines])
            size = len(spark_metadata_format.forget(whole, self._layout.keep_ms))
        if size > MOST_BYTES:
            raise Invalid(
                f"The log of committed files has {size >> 20} MiB, and with this epoch no reader could take it.",
                code="sink.files-log-full",
                about=f"{self._address}/{FOLDER}",
                unchanged="everything that readers see",
                next_step=f"{_LESS}; or give the sink a new path",
            )
        if size > self._large:
            self._large = 2 * size
            log.warning(
                "%s/%s: the log of committed files has %d MiB. Every tenth epoch writes it anew, readers read all of "
                "it, and at %d MiB no epoch is taken any more. Next: %s",
                self._address,
                FOLDER,
                size >> 20,
                MOST_BYTES >> 20,
                _LESS,
            )

    def epochs(self) -> list[LoggedEpoch]:
        """The committed epochs with their files, oldest first. Read anew."""
        _, found = self._read()
        return sorted(found, key=lambda logged: (logged.lineage, logged.epoch))

    def append(self, logged: LoggedEpoch) -> str | None:
        """Commit an epoch, unless it is committed already. Returns the mark of the committed one.

        Guarantees: of any number of drivers one commits it. Durable on return, and in what every later reader reads.
        """
        epoch = (logged.lineage, logged.epoch)
        for _ in range(MOST_ATTEMPTS):
            if self.is_committed(epoch):
                return self._marks.get(epoch)
            if self._create(self._next(), logged):
                self._marks[epoch] = logged.mark
                return logged.mark
            self._read()
        raise Conflict(
            f"The log kept growing while epoch {logged.epoch} was being committed.",
            code="object.contended",
            about=f"{self._address}/{FOLDER}",
            unchanged="everything that readers see",
            next_step="find the other writer",
        )

    def _create(self, number: int, logged: LoggedEpoch) -> bool:
        """Create the entry with this number; False if there is one, or there has been one before it was trimmed."""
        lines = [self._lines(logged)]
        with step("files.log", number=number):
            try:
                if spark_metadata_format.is_compact(number):
                    lines = [*self._lines_before(number), *lines]
                    if self._layout.keep_ms is not None:
                        lines = [spark_metadata_format.forget(b"\n".join(lines), self._layout.keep_ms)]
                self._objects.create(self._key(number), [spark_metadata_format.entry(lines)])
            except (Conflict, NotFound):
                return False
        # A driver that was frozen for very long may have created an entry that had been there and was trimmed since.
        numbers = self._numbers()
        if max(numbers, default=number) != number:
            return False
        self._newest = number
        if spark_metadata_format.is_compact(number):
            self._trim(numbers)
        return True

    def _lines_before(self, number: int) -> list[bytes]:
        try:
            bodies = self._bodies(spark_metadata_format.needed(range(number)))
            return [spark_metadata_format.lines_of(body) for body in bodies]
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _lines(self, logged: LoggedEpoch) -> bytes:
        directory = self._layout.directory(Delivery("", "", logged.lineage, logged.epoch))
        return spark_metadata_format.encode(self._address, directory, logged)

    def _trim(self, numbers: list[int]) -> None:
        doomed = spark_metadata_format.removable(numbers)
        if doomed:
            with step("files.trim-log", entries=len(doomed)):
                self._objects.delete([self._key(number) for number in doomed])

    def _next(self) -> int:
        assert self._newest is not None
        return self._newest + 1

    def _read(self) -> tuple[int, list[LoggedEpoch]]:
        for _ in range(MOST_ATTEMPTS):
            numbers = self._numbers()
            try:
                wanted = spark_metadata_format.needed(numbers)
                bodies = self._bodies(wanted)
                found = [logged for body in bodies for logged in spark_metadata_format.decode(body)]
            except NotFound:
                continue  # trimmed after it was listed
            except ValueError as error:
                raise self._damaged(str(error)) from error
            self._newest = wanted[-1]
            self._marks = {(logged.lineage, logged.epoch): logged.mark for logged in found}
            self._forgotten = {logged.lineage: logged.epoch for logged in found if logged.is_forgotten}
            return self._newest, found
        raise self._damaged("entries that were listed could not be read")

    def _bodies(self, numbers: list[int]) -> list[bytes]:
        def read(number: int) -> bytes:
            return self._objects.read(self._key(number), limit=ENTRY_LIMIT)

        return in_parallel(read, numbers, at_once=READERS, name="log")

    def _numbers(self) -> list[int]:
        found = [(info.key.removeprefix(self._folder), info.size) for info in self._objects.list(self._folder)]
        numbered = ((spark_metadata_format.number_in(name), size) for name, size in found)
        self._sizes = {number: size for number, size in numbered if number is not None}
        return sorted(self._sizes)

    def _names_beside(self) -> set[str]:
        sink = self._folder.removesuffix(f"{FOLDER}/")
        return {info.key.removeprefix(sink).partition("/")[0] for info in self._objects.some(sink, FIRST)}

    def _key(self, number: int) -> str:
        return f"{self._folder}{spark_metadata_format.entry_name(number)}"

    def _damaged(self, why: str) -> Corrupt:
        return Corrupt(
            f"The log of committed files makes no sense: {why}.",
            code="sink.files-log",
            about=f"{self._address}/{FOLDER}",
            unchanged="everything",
            next_step="restore the entry from a backup or an older version of the bucket, or give the sink a new path",
        )
