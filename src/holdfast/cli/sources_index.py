"""An index as `holdfast sources` sees it: opened by its address, its records read one by one."""

from __future__ import annotations

import contextlib
import functools
import os
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.options import Verb, choose_output, log_as_notes
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.index import Gap, Index, StoredCheckpoint, records
from holdfast.storage.kv.open import open_kv
from holdfast.storage.kv.rocksdb_directory import MARKS
from holdfast.storage.kv.store import Reader, Row, end_of

VERB = "sources"
_Found = TypeVar("_Found")


class OpenedIndex(msgspec.Struct, frozen=True):
    """An index, and direct sight of its records: one that is damaged does not hide the others."""

    index: Index
    store: Reader

    @property
    def address(self) -> str:
        """Without secrets."""
        return self.index.address


class SeenSource(msgspec.Struct, frozen=True):
    """One source's checkpoint, or what is wrong with it."""

    name: str
    stored: StoredCheckpoint | None
    problem: str = ""


class Observed(msgspec.Struct, frozen=True):
    """Everything that an index records beside its results."""

    address: str
    config_hash: int | None
    sources: list[SeenSource]
    gap_count: int
    gaps: list[Gap]
    """Those that can be read, oldest first."""
    problems: list[str]
    """What is damaged beside checkpoints."""

    @property
    def is_damaged(self) -> bool:
        return bool(self.problems) or any(source.problem for source in self.sources)


def is_on_disk(address: str) -> bool:
    return address.startswith(("sqlite://", "rocksdb://"))


def store_of(address: str) -> str:
    """What an envelope names: on disk a path, as for checkpoints."""
    return urllib.parse.unquote(address.partition("://")[2]) if is_on_disk(address) else address


def on_index(verb: Verb) -> Verb:
    """Give a verb the address of an index and the options that both verbs on one share.

    The verb is called with the address, the output, and its own parameters, and returns the exit code.
    """

    @click.argument("url")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
    @click.option("--debug", is_flag=True, help="Log every step, and show a traceback if something unexpected happens.")
    @functools.wraps(verb)
    def with_address(*, url: str, as_json: bool, debug: bool, **parameters: Any) -> int:
        output = choose_output(VERB, as_json)
        with log_as_notes(output, debug):
            return verb(address_of(url), output, **parameters)

    return with_address


def address_of(given: str) -> str:
    """The address that is meant: a plain path is that of an index in SQLite if it is a file, in RocksDB if it is its
    directory."""
    if "://" in given:
        return given
    path = os.path.abspath(os.path.expanduser(given))
    quoted = urllib.parse.quote(os.fsencode(path))
    if os.path.isfile(path):
        return f"sqlite://{quoted}"
    if os.path.isfile(os.path.join(path, MARKS["index"])):
        return f"rocksdb://{quoted}"
    if os.path.isdir(path):
        raise Invalid(
            f"{path} is a directory, and not one of an index.",
            code="index.not-ours",
            about=path,
            unchanged="everything",
            next_step="give the index's file or address; the checkpoints of a pipeline are listed by: holdfast ls URL",
        )
    raise NotFound(
        f"{path} is not there.",
        code="index.none",
        about=path,
        unchanged="everything: looking makes nothing",
        next_step="check the path, or write sqlite:///path, rocksdb:///path, redis://host or postgresql://host/database",
    )


@contextlib.contextmanager
def opened(url: str, *, read_only: bool) -> Iterator[OpenedIndex]:
    """The index for the length of a block. Whoever has it open is not disturbed by one that is only read."""
    store = open_kv(url, records.SCHEMA, "read" if read_only else "exclusive")
    with Index(store) as index:
        yield OpenedIndex(index, store)


def observe(seen: OpenedIndex) -> Observed:
    """Read every record. A damaged one is reported in its place; an index that cannot be read at all is an error."""
    sources = [_source(seen, key, value) for key, value in _scan(seen, records.CHECKPOINTS)]
    gaps = [_gap(seen, key, value) for key, value in _scan(seen, records.GAPS)]
    config_hash, problem = _decoded(seen, lambda _: seen.index.checkpoints.read_config_hash())
    return Observed(
        seen.address,
        config_hash,
        sources,
        len(gaps),
        [gap for gap, _ in gaps if gap is not None],
        [found for found in (problem, *(problem for _, problem in gaps)) if found],
    )


def _scan(seen: OpenedIndex, prefix: bytes) -> Iterator[Row]:
    return seen.store.scan("meta", prefix, end_of(prefix))


def _source(seen: OpenedIndex, key: bytes, value: bytes) -> SeenSource:
    found, problem = _decoded(seen, lambda address: records.decode_checkpoint(key, value, address))
    if found is None:
        return SeenSource(key.removeprefix(records.CHECKPOINTS).decode(errors="backslashreplace"), None, problem)
    return SeenSource(*found)


def _gap(seen: OpenedIndex, key: bytes, value: bytes) -> tuple[Gap | None, str]:
    return _decoded(seen, lambda address: records.decode_gap(key, value, address))


def _decoded(seen: OpenedIndex, decode: Callable[[str], _Found]) -> tuple[_Found | None, str]:
    """What was found, or in words why it cannot be read."""
    try:
        return decode(seen.address), ""
    except Corrupt as error:
        return None, error.message.removeprefix(f"{seen.address}: ")
