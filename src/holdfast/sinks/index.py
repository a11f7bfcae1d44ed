"""The index as a sink: staged as files, committed in one session together with where the sources were."""

from __future__ import annotations

import contextlib
import os
import re
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.addresses import without_secrets
from holdfast.base.arguments import MAX_KEY_BYTES
from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from holdfast.index import Index, config_hash, open_index
from holdfast.index.configuration import UNFINISHED
from holdfast.index.rows import encoded, problems
from holdfast.index.source_checkpoints import MAX_POSITION_BYTES
from holdfast.sinks.durable import disk_errors_explained
from holdfast.sinks.index_keys import look_at_keys
from holdfast.sinks.index_sequences import epoch_of, sequence_of
from holdfast.sinks.places import local_path
from holdfast.sinks.sink import Delivery, Descriptor, RowsRefused, StagedOutputGone, Standing, check_same_delivery
from holdfast.sinks.spark_write import write_rows
from holdfast.sinks.staging import StagingArea

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

BATCH_ROWS = 1 << 14
DONE = "_SUCCESS"
STAGED_AS = {"parquet.enable.dictionary": "false"}
"""Hardly any key or value is there twice."""
PATIENCE = 20.0
"""Seconds to wait for an index that somebody else has open."""


class IndexSink:
    """Rows by key in an index (`holdfast.open_index`), with each epoch's source positions in the same transaction.

    A row replaces the one that has its key, or is new. With `delete`, a row in which that boolean column is true
    removes the row with its key; the column itself is not stored. Two rows of one epoch with the same key are refused
    when staged, and so is a key that is null.

    `index` is an address or an opened index. One that is given by its address is open during a commit only, so that
    others can read it in between. `staging` is a directory that the driver and all executors see; it lies beside an
    index on disk, and has to be given on a cluster otherwise.

    Guarantees: the rows of an epoch, and for every source of the pipeline its position and the epoch as its sequence,
    become visible and durable in one step, once, whoever commits it and how often.
    After a reset of the pipeline the first epoch of the new lineage empties the index first.
    Does not guarantee: anything to readers during that one step.
    """

    def __init__(
        self,
        index: str | Index,
        key: str | Sequence[str],
        *,
        delete: str | None = None,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        self._given = index if isinstance(index, Index) else None
        self.url = "" if isinstance(index, Index) else index
        self.address = index.address if isinstance(index, Index) else _shown(index)
        if self.url.startswith("memory:"):
            self._given = open_index(self.url)
        self.key = [key] if isinstance(key, str) else list(key)
        self.delete = delete
        if not self.key or len(set(self.key)) < len(self.key) or delete in self.key:
            raise _invalid(f"key={key!r}, delete={delete!r} cannot be a key.", self.address, "name each column once")
        beside = self.beside("staging")
        self._has_shared_staging = staging is not None or beside is not None
        self._area = StagingArea(local_path(staging or beside or _of_this_user(self.address), kind="staging"))
        self._seen: int | None = None
        self.guarantee = "exactly-once"

    def describe(self) -> dict[str, Any]:
        return {"kind": "index", "index": self.address, "key": self.key, "delete": self.delete}

    @contextlib.contextmanager
    def opened(self) -> Iterator[Index]:
        """The index, for the length of a block."""
        if self._given is not None:
            yield self._given
            return
        with self._open_when_free() as index:
            yield index

    @contextlib.contextmanager
    def read(self) -> Iterator[Index]:
        """The index to look at, whoever is writing to it meanwhile."""
        if self._given is not None:
            yield self._given
            return
        with open_index(self.url, read_only=True) as index:
            yield index

    @property
    def is_persistent(self) -> bool:
        """Whether it outlives the process."""
        return self._given is None or self._given.checkpoints.is_persistent

    def beside(self, what: str) -> str | None:
        """A directory beside an index on disk; None for one on a server or in memory."""
        found = re.fullmatch(r"(?:sqlite|rocksdb)://(/.*)", self.address)
        return f"{urllib.parse.unquote(found[1])}.{what}" if found else None

    def readable_url(self) -> str:
        """The address for others to look at it, also from other machines; `Invalid` if nobody said."""
        if self.url:
            return self.url
        if self.beside("") is None:
            raise _invalid(
                f"{self.address} was given as an opened index, which does not tell how to log in.",
                self.address,
                "give the query the index's address instead of the index",
            )
        return self.address

    def _open_when_free(self) -> Index:
        """Another driver, or somebody who looks, may have it open for a moment."""
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
        self._check_staging_is_shared()
        self._look_whose_it_is(delivery)
        with disk_errors_explained(self._area.root, "the index"), self._area.new(delivery) as name:
            self._area.remove(name)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        self._check_positions(delivery)
        unchanged = "everything that readers see"
        with disk_errors_explained(self._area.root, unchanged), self._area.new(delivery) as name:
            path = self._area.path(name)
            write_rows(encoded(frame, self.key, self.delete), path, "parquet", options=STAGED_AS)
            with step("index.check-keys"):
                self._check_keys(path, frame)
            self._area.seal(name)
        return {"staged": name, "positions": delivery.positions}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        sequence = sequence_of(delivery.lineage, delivery.epoch)
        with disk_errors_explained(self._area.root, f"{delivery} is still to be committed"):
            with self.opened() as index:
                known = _newest(index)
                self._check_not_set_back(known)
                if known == sequence:
                    self._check_same(index, descriptor, delivery)
                if known is None or known < sequence:
                    files = self._staged_files(name, delivery)
                    self._make_ours(index, known, delivery)
                    self._apply(index, files, sequence, descriptor["positions"])
                    self._seen = sequence
            self._area.remove_leftovers(delivery)

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        name = self._area.name_in(descriptor, delivery)
        with disk_errors_explained(self._area.root, "everything that readers see"):
            self._area.remove(name)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> Standing:
        with self.opened() as index:
            self._check_ours(index, delivery)
            self._seen = known = _newest(index)
        with disk_errors_explained(self._area.root, "everything that readers see"):
            self._area.sweep(delivery, keep)
        if known is None:
            return Standing()
        lineage, epoch = epoch_of(known)
        return Standing(epoch if lineage == delivery.lineage else None, lineage)

    def _apply(self, index: Index, files: list[str], sequence: int, positions: dict[str, str | None]) -> None:
        from pyarrow.parquet import ParquetFile

        with step("index.epoch"), index.session():
            results = index.results
            for path in files:
                with ParquetFile(path) as file:
                    for batch in file.iter_batches(BATCH_ROWS):
                        keys: list[Any] = batch.column(0).to_pylist()
                        for key, value in zip(keys, batch.column(1).to_pylist(), strict=True):
                            if value is None:
                                results.delete(key)
                            else:
                                results.put(key, value)
            for source, position in positions.items():
                index.checkpoints.stage_checkpoint(source, sequence, None if position is None else position.encode())

    def _check_same(self, index: Index, descriptor: Descriptor, delivery: Delivery) -> None:
        """As far as the positions tell: an index does not know which query they are of."""
        there = {source: found.source_position for source, found in index.checkpoints.read_all_checkpoints().items()}
        found = {source: None if position is None else position.decode() for source, position in there.items()}
        marks = [msgspec.structs.replace(delivery, positions=one).mark for one in (descriptor["positions"], found)]
        check_same_delivery(delivery, mine=marks[0], found=marks[1], where=self.address)

    def _make_ours(self, index: Index, known: int | None, delivery: Delivery) -> None:
        """The first epoch of a lineage begins with an empty index; the first one of all takes it."""
        ours = self._hash(delivery)
        if known is not None and epoch_of(known)[0] < delivery.lineage:
            index.reset(ours)
        else:
            self._check_ours(index, delivery)
            index.configure(ours)

    def _look_whose_it_is(self, delivery: Delivery) -> None:
        """Without opening it to write, which would disturb a driver that is at work."""
        try:
            with self.read() as index:
                self._check_ours(index, delivery)
        except NotFound:
            pass  # it will be made
        except Unavailable as error:
            if error.code != UNFINISHED:  # a reset that a crash cut short: `recover` opens to write, and finishes it
                raise

    def _check_positions(self, delivery: Delivery) -> None:
        """An epoch that is decided must be one that can be committed."""
        for source, position in delivery.positions.items():
            if position is not None and len(position.encode()) > MAX_POSITION_BYTES:
                raise RowsRefused(
                    f"The position of source {source!r} has {len(position.encode())} bytes, and an index takes "
                    f"{MAX_POSITION_BYTES}.",
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
                "The index holds the results of another pipeline or sink, or by another key; its sources are "
                f"{sources}.",
                code="index.other",
                about=self.address,
                unchanged="the index",
                next_step="give this sink an index of its own",
            )

    def _check_not_set_back(self, known: int | None) -> None:
        """It was emptied, or put back from a copy, under a driver that is at work: rows are missing in between."""
        if self._seen is not None and (known is None or known < self._seen):
            lineage, epoch = epoch_of(self._seen)
            raise Corrupt(
                f"The index had epoch {epoch} of lineage {lineage} and does not have it any more.",
                code="sink.set-back",
                about=self.address,
                unchanged="the index",
                next_step="restore the index; or start the pipeline again, and see what it says",
            )

    def _hash(self, delivery: Delivery) -> int:
        return config_hash({"pipeline": delivery.pipeline, "sink": delivery.sink, "key": self.key})

    def _staged_files(self, name: str, delivery: Delivery) -> list[str]:
        path = self._area.path(name)
        found = sorted(os.listdir(path)) if os.path.isdir(path) else []
        if DONE not in found:  # Spark writes it last: without it nobody knows whether these are all
            raise StagedOutputGone(
                f"What was staged for {delivery} is gone.",
                about=path,
                unchanged="everything that readers see",
                next_step="stage the epoch again",
            )
        return [os.path.join(path, entry) for entry in found if entry.endswith(".parquet")]

    def _check_keys(self, path: str, frame: DataFrame) -> None:
        """Whatever the index would refuse in a commit is refused now."""
        columns = ", ".join(self.key)
        keys = look_at_keys(path, frame.sparkSession)
        problem = (
            f"there are rows in which {columns} is null"
            if keys.nulls
            else f"there are several rows with the same {columns}"
            if keys.distinct < keys.rows
            else f"a key of {keys.longest} bytes is too long, {MAX_KEY_BYTES} is the limit"
            if keys.longest > MAX_KEY_BYTES
            else None
        )
        if problem:
            raise RowsRefused(
                f"The index does not take these rows: {problem}.",
                about=self.address,
                unchanged="the index",
                next_step="aggregate or deduplicate by the key in the query, and keep it short and without nulls",
            )

    def _check_staging_is_shared(self) -> None:
        from pyspark.sql import SparkSession

        master = SparkSession.active().sparkContext.master or ""
        if not self._has_shared_staging and not re.fullmatch(r"local(\[.*\])?", master):
            raise _invalid(
                "On a cluster the rows wait where the driver and all executors see them; there is no such place by "
                "default.",
                self.address,
                'pass staging="/a/shared/path" to IndexSink',
            )


def _shown(url: str) -> str:
    """The address without secrets, and with the name that an index on a server has there."""
    if url.startswith(("sqlite:", "rocksdb:")):
        return url
    name = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query).get("index")
    return without_secrets(url) + (f"?index={name[0]}" if name else "")


def _newest(index: Index) -> int | None:
    """The highest sequence of any source: each epoch moves all of them."""
    found = index.checkpoints.read_all_checkpoints()
    return max((checkpoint.sequence for checkpoint in found.values()), default=None)


def _of_this_user(address: str) -> str:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    place = re.sub(r"[^A-Za-z0-9._-]+", "-", address.partition("://")[2]).strip("-") or "memory"
    return os.path.join(base, "holdfast", "staging", place[:200])


def _invalid(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.index-arguments", about=about, unchanged="everything", next_step=next_step)
