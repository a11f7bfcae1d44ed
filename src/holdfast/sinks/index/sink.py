"""`IndexSink`: rows staged as files, committed to an index in one session with the source positions."""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.addresses import kv_absolute, kv_path, local_path, scheme_of, state_home, without_secrets
from holdfast.base.jvm import active_session, is_one_process
from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from holdfast.index import Index, config_hash, open_index
from holdfast.index.configuration import UNFINISHED
from holdfast.index.rows import columns_of, documents, problems
from holdfast.index.source_checkpoints import MAX_POSITION_BYTES
from holdfast.sinks.index.refused_rows import Room, check_rows, conditions, fits, same_key
from holdfast.sinks.index.staged_rows import count_rows, staged_batches
from holdfast.sinks.sink import (
    EXACTLY_ONCE,
    Delivery,
    Descriptor,
    RowsRefused,
    SinkProgress,
    check_same_delivery,
)
from holdfast.sinks.spark_write import first_reason, write_rows
from holdfast.sinks.staging import StagingArea, sink_disk_errors
from holdfast.storage.kv.open import max_transaction_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

COLUMNS = "_columns.json"
"""The file with the columns of the staged rows, written when all rows are there."""
DONE = {COLUMNS, "_SUCCESS"}
"""With either of these all rows are there. Earlier releases did not write `COLUMNS`, but let Spark write the other."""
STAGED_AS = {
    # A dictionary would not help: keys and values are mostly distinct.
    "parquet.enable.dictionary": "false",
    "compression": "lz4_raw",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
PATIENCE = 20.0
"""Seconds to wait for an index that another process has open."""
_EPOCH_BITS = 40
_LINEAGES = 1 << (64 - _EPOCH_BITS)


def sequence_of(lineage: int, epoch: int) -> int:
    """The sequence that an index stores for an epoch: all epochs of a lineage are above those of earlier lineages.

    In the first lineage it is the epoch itself.
    """
    if not 0 <= epoch < 1 << _EPOCH_BITS or not 0 <= lineage < _LINEAGES:
        raise Invalid(
            f"Epoch {epoch} of lineage {lineage} has no sequence.", code="sink.sequence", unchanged="everything"
        )
    return (lineage << _EPOCH_BITS) | epoch


def epoch_of(sequence: int) -> tuple[int, int]:
    """The lineage and the epoch of a sequence."""
    return sequence >> _EPOCH_BITS, sequence & ((1 << _EPOCH_BITS) - 1)


class IndexSink:
    """Rows by key in an index (`holdfast.open_index`), with each epoch's source positions in the same transaction.

    A row replaces the row that has its key, or is inserted. With `delete`, a row in which that boolean column is true
    removes the row with its key; the column itself is not stored. Two rows with the same key in one epoch are refused
    when staged, and so are null keys.

    `index` is an address or an opened index. With an address, the index is open during a commit only, so that others
    can read it in between. `staging` is a directory that the driver and all executors see. By default it is beside an
    index on disk; for other indexes it must be given on a cluster.

    Guarantees: the rows of an epoch, and for every source of the pipeline its position and the epoch as its sequence,
    become visible and durable in one transaction, once, however often and by however many drivers it is committed.
    After a reset of the pipeline, the first epoch of the new lineage empties the index first.
    Does not guarantee: a consistent view to readers while that emptying runs.
    """

    guarantee = EXACTLY_ONCE

    def __init__(
        self,
        index: str | os.PathLike[str] | Index,
        key: str | Sequence[str],
        *,
        delete: str | None = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        self._given = index if isinstance(index, Index) else None
        self.url = "" if isinstance(index, Index) else kv_absolute(index, code="sink.index-arguments")
        self.address = index.address if isinstance(index, Index) else _shown(self.url)
        if self.url.startswith("memory:"):
            self._given = open_index(self.url)
        self.key = [key] if isinstance(key, str) else list(key)
        self.delete = delete
        if not self.key or len(set(self.key)) < len(self.key) or delete in self.key:
            raise _invalid(f"key={key!r}, delete={delete!r} cannot be a key.", self.address, "name each column once")
        beside = self.beside("staging")
        self._has_shared_staging = staging is not None or beside is not None
        self._area = StagingArea(
            local_path(staging or beside or _staging_of_this_user(self.address), code="sink.address")
        )
        self._seen: int | None = None
        self._documents: dict[tuple[str, ...], tuple[Column, Column]] = {}

    def __repr__(self) -> str:
        return f"IndexSink({self.address!r}, key={self.key!r})"

    @property
    def written_paths(self) -> list[str]:
        """See `WritesToPaths`. The default for an index on a server is this user's own: a cluster refuses that."""
        return [self._area.root] if self._has_shared_staging else []

    def describe(self) -> dict[str, Any]:
        # A path as earlier releases spelled it: it is part of the pipeline's hash.
        spelled = self.address if self.beside("") is None else self.address.replace(":////", ":///", 1)
        return {"kind": "index", "index": spelled, "key": self.key, "delete": self.delete}

    @contextlib.contextmanager
    def opened(self) -> Iterator[Index]:
        """The index, opened for writing, within a block."""
        if self._given is not None:
            yield self._given
            return
        with self._open_when_free() as index:
            yield index

    @contextlib.contextmanager
    def read(self) -> Iterator[Index]:
        """The index, opened read-only, also while others write to it."""
        if self._given is not None:
            yield self._given
            return
        with open_index(self.url, read_only=True) as index:
            yield index

    @property
    def is_persistent(self) -> bool:
        """Whether the index outlives the process."""
        return self._given is None or self._given.checkpoints.is_persistent

    def beside(self, what: str) -> str | None:
        """The path of an index on disk with `.<what>` appended; None for one on a server or in memory."""
        if scheme_of(self.address) not in ("sqlite", "rocksdb"):
            return None
        return f"{kv_path(self.address, code='sink.index-arguments')}.{what}"

    def readable_url(self) -> str:
        """The address for reading it, also from other machines. `Invalid` for an opened index on a server."""
        if self.url:
            return self.url
        if self.beside("") is None:
            raise _invalid(
                f"{self.address} was given as an opened index, which does not reveal its credentials.",
                self.address,
                "give the query the index's address instead of the index",
            )
        return self.address

    def _open_when_free(self) -> Index:
        """Open it for writing; wait while another driver or a reader has it open."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return open_index(self.url)
            except Conflict:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        found = problems(schema, self.key, self.delete)
        if found:
            raise RowsRefused(
                f"The index does not take these rows: {'; '.join(found[:10])}.",
                about=self.address,
                unchanged="the index",
                next_step="correct the query or the key, and start again",
            )
        self._documents.clear()  # they belong to a Spark that may have ended
        self._check_staging_is_shared()
        self._check_owner(delivery)
        with sink_disk_errors(self._area.root, "the index"):
            self._area.check_writable(delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        self._check_positions(delivery)
        unchanged = "everything that readers see"
        with sink_disk_errors(self._area.root, unchanged), self._area.new(delivery) as name:
            path = self._area.path(name)
            write_rows(self._encoded(frame), path, "parquet", options=STAGED_AS)
            columns = columns_of(frame.schema, self.delete).encode()
            self._area.write(name, COLUMNS, columns)
            # Sync in a thread while the keys are counted: one waits for the disk, one for the CPU.
            with ThreadPoolExecutor(1, thread_name_prefix="holdfast-sync") as thread:
                sealed = thread.submit(contextvars.copy_context().run, self._area.seal, name)
                with step("index.check-keys"):
                    rows, room = count_rows(path, frame.sparkSession), self._room(delivery, len(columns))
                    if not fits(rows, room):
                        rows = count_rows(path, frame.sparkSession, exactly=True)
                    check_rows(rows, self.key, self.address, room)
                sealed.result()
        return {"staged": name, "positions": delivery.positions}

    def refused(self, frame: DataFrame) -> Column | None:
        """See `RefusesRows.refused`: null keys, and keys and rows that are too large."""
        return first_reason(conditions(frame.columns, self.key, self.delete))

    def refused_together(self, frame: DataFrame) -> Column:
        """See `RefusesRowsTogether.refused_together`: all rows of a key that occurs more than once."""
        return same_key(self.key)

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        sequence = sequence_of(delivery.lineage, delivery.epoch)
        with sink_disk_errors(self._area.root, f"{delivery} is still to be committed"):
            with self.opened() as index:
                known = _newest(index)
                self._check_not_set_back(known)
                if known == sequence:
                    self._check_same(index, descriptor, delivery)
                if known is None or known < sequence:
                    files = self._staged_files(name, delivery)
                    self._make_ours(index, known, delivery)
                    self._apply(index, files, self._staged_columns(name), sequence, descriptor["positions"])
                    self._seen = sequence
            self._area.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        with sink_disk_errors(self._area.root, "everything that readers see"):
            self._area.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        with self.opened() as index:
            self._check_ours(index, delivery)
            self._seen = known = _newest(index)
        with sink_disk_errors(self._area.root, "everything that readers see"):
            self._area.sweep(delivery, keep)
        if known is None:
            return SinkProgress()
        lineage, epoch = epoch_of(known)
        return SinkProgress(epoch if lineage == delivery.lineage else None, lineage)

    def _encoded(self, frame: DataFrame) -> DataFrame:
        """The rows as key and value documents (`index.rows.encoded`).

        The columns are made once per run: with their many calls of the JVM that takes 25 ms.
        """
        columns = tuple(frame.columns)
        if columns not in self._documents:
            self._documents[columns] = documents(columns, self.key, self.delete)
        return frame.select(*self._documents[columns])

    def _apply(
        self, index: Index, files: list[str], columns: str | None, sequence: int, positions: dict[str, str | None]
    ) -> None:
        with step("index.epoch"), index.session():
            results = index.results
            for path in files:
                for keys, values in staged_batches(path):
                    results.put_many(keys, values)
            if columns is not None:
                results.stage_columns(columns)
            for source, position in positions.items():
                index.checkpoints.stage_checkpoint(source, sequence, None if position is None else position.encode())

    def _check_same(self, index: Index, descriptor: Descriptor, delivery: Delivery) -> None:
        """`Corrupt` if the committed epoch has other source positions. An index does not record the query.

        Sources that were not part of the epoch do not count: the pipeline may have dropped them.
        """
        sequence = sequence_of(delivery.lineage, delivery.epoch)
        stored = index.checkpoints.read_all_checkpoints().items()
        there = {source: known.source_position for source, known in stored if known.sequence == sequence}
        found = {source: None if position is None else position.decode() for source, position in there.items()}
        marks = [msgspec.structs.replace(delivery, positions=one).mark for one in (descriptor["positions"], found)]
        check_same_delivery(delivery, mine=marks[0], found=marks[1], where=self.address)

    def _make_ours(self, index: Index, known: int | None, delivery: Delivery) -> None:
        """Claim the index with the very first epoch; empty it with the first epoch of a new lineage."""
        ours = self._hash(delivery)
        if known is not None and epoch_of(known)[0] < delivery.lineage:
            index.reset(ours)
        else:
            self._check_ours(index, delivery)
            index.configure(ours)

    def _check_owner(self, delivery: Delivery) -> None:
        """`_check_ours` on a read-only opening: one for writing would disturb a driver that is at work."""
        try:
            with self.read() as index:
                self._check_ours(index, delivery)
        except NotFound:
            pass  # it will be created
        except Unavailable as error:
            # A reset that a crash interrupted is finished by `recover`, which opens the index for writing.
            if error.code != UNFINISHED:
                raise

    def _check_positions(self, delivery: Delivery) -> None:
        """`RowsRefused` for a position that the index would refuse in `commit`, after the epoch is decided."""
        for source, position in delivery.positions.items():
            if position is not None and len(position.encode()) > MAX_POSITION_BYTES:
                raise RowsRefused(
                    f"The position of source {source!r} has {len(position.encode())} bytes; an index takes at "
                    f"most {MAX_POSITION_BYTES}.",
                    about=self.address,
                    unchanged="the index",
                    next_step="read fewer partitions or files in one source; or use a sink that keeps no positions",
                )

    def _check_ours(self, index: Index, delivery: Delivery) -> None:
        stored, known = index.checkpoints.read_config_hash(), _newest(index)
        is_ours = stored == self._hash(delivery) or (stored is None and known is None)
        if not is_ours and (known is None or epoch_of(known)[0] >= delivery.lineage):
            sources = ", ".join(sorted(index.checkpoints.read_all_checkpoints())[:5]) or "none"
            raise Invalid(
                "The index holds the results of another pipeline or sink, or has another key; its sources are "
                f"{sources}.",
                code="index.other",
                about=self.address,
                unchanged="the index",
                next_step="give this sink an index of its own",
            )

    def _check_not_set_back(self, known: int | None) -> None:
        """`Corrupt` if the index lost an epoch: it was emptied, or restored from a copy, while the driver ran."""
        if self._seen is not None and (known is None or known < self._seen):
            lineage, epoch = epoch_of(self._seen)
            raise Corrupt(
                f"The index had epoch {epoch} of lineage {lineage}, but no longer has it.",
                code="sink.set-back",
                about=self.address,
                unchanged="the index",
                next_step="restore the index; or start the pipeline again: the start says what is missing",
            )

    def _hash(self, delivery: Delivery) -> int:
        return config_hash({"pipeline": delivery.pipeline, "sink": delivery.sink, "key": self.key})

    def _staged_files(self, name: str, delivery: Delivery) -> list[str]:
        path = self._area.path(name)
        found = sorted(os.listdir(path)) if os.path.isdir(path) else []
        if DONE.isdisjoint(found):  # some files may be missing
            raise self._area.gone(name, delivery)
        return [os.path.join(path, entry) for entry in found if entry.endswith(".parquet")]

    def _staged_columns(self, name: str) -> str | None:
        try:
            return self._area.read(name, COLUMNS).decode()
        except FileNotFoundError:
            return None

    def _room(self, delivery: Delivery, columns: int) -> Room:
        """What an epoch may hold in one session, and what it holds besides its rows."""
        limit = max_transaction_of(self.url) if self._given is None else self._given.max_session
        positions = sum(len(name.encode()) + len((at or "").encode()) for name, at in delivery.positions.items())
        return Room(limit, changes=len(delivery.positions) + 1, payload=positions + columns)

    def _check_staging_is_shared(self) -> None:
        session = active_session()
        if not self._has_shared_staging and session is not None and not is_one_process(session):
            raise _invalid(
                "On a cluster, rows are staged in a directory that the driver and all executors see, and there is "
                "none by default.",
                self.address,
                'pass staging="/a/shared/path" to IndexSink',
            )


def _shown(url: str) -> str:
    """The address without secrets, with the name of an index on a server."""
    if url.startswith(("sqlite:", "rocksdb:")):
        return url
    name = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query).get("index")
    return without_secrets(url) + (f"?index={name[0]}" if name else "")


def _newest(index: Index) -> int | None:
    """The highest sequence of any source, because an epoch advances all its sources."""
    found = index.checkpoints.read_all_checkpoints()
    return max((checkpoint.sequence for checkpoint in found.values()), default=None)


def _staging_of_this_user(address: str) -> str:
    """The default staging directory, on one machine, for an index that is not on its disk."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", address.partition("://")[2]).strip("-") or "memory"
    return str(state_home("staging", name))


def _invalid(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.index-arguments", about=about, unchanged="everything", next_step=next_step)
