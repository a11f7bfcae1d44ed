"""Describes the parquet files that Spark wrote for Delta's log, from their footers. No row is read."""

from __future__ import annotations

import datetime
import json
import os
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.base.parallel import in_parallel
from holdfast.sinks.delta.table import Json

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
FOOTER_THREADS = 8
INTEGERS = {"byte", "short", "integer", "long"}


class StagedFile(msgspec.Struct, frozen=True):
    """One parquet file: its path below the data directory, and statistics from its footer."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None] = {}
    nulls: dict[str, int] = {}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}

    @property
    def statistics(self) -> str:
        """The statistics as JSON for Delta's log. Bounds only for types that every reader orders alike."""
        bounds = {"minValues": self.lows, "maxValues": self.highs, "nullCount": self.nulls}
        return json.dumps({"numRecords": self.rows} | {name: found for name, found in bounds.items() if found})


def collect(data: str, fields: list[Json], partitioned_by: Sequence[str]) -> list[StagedFile]:
    """The files that have rows. Removes everything else that Spark wrote: success files, checksums, files without rows.

    Directories of partition values are renamed to numbers, so that no path in the log needs escaping. The values
    themselves are in the log.
    """
    for folder, _, names in os.walk(data):
        outside = bool(partitioned_by) and folder == data  # without any rows, Spark writes an empty file there
        for name in names:
            if outside or name.startswith(("_", ".")):
                os.unlink(os.path.join(folder, name))
    leaves = _partition_directories(data, partitioned_by)
    for number, leaf in enumerate(list(leaves)):
        os.rename(os.path.join(data, leaf), os.path.join(data, f"{number:06}"))
        leaves[f"{number:06}"] = leaves.pop(leaf)
    _remove_empty_directories(data)
    found = [
        (os.path.join(folder, name) if folder else name, values)
        for folder, values in (leaves.items() if partitioned_by else [("", dict[str, str | None]())])
        for name in sorted(os.listdir(os.path.join(data, folder)))
    ]
    kinds = {field["name"]: field["type"] for field in fields}
    files = in_parallel(
        lambda one: _read_footer_at(data, one[0], one[1], kinds), found, at_once=FOOTER_THREADS, name="footer"
    )
    for file in files:
        if not file.rows:
            os.unlink(os.path.join(data, file.path))
    return [file for file in files if file.rows]


def _partition_directories(data: str, columns: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """Directories such as `a=1/b=x`, with their values. Spark escapes them, and writes an empty string as null."""
    leaves: dict[str, dict[str, str | None]] = {"": {}} if columns else {}
    for column in columns:
        deeper: dict[str, dict[str, str | None]] = {}
        for leaf, values in leaves.items():
            for name in sorted(os.listdir(os.path.join(data, leaf))):
                given, separator, text = name.partition("=")
                if separator and urllib.parse.unquote(given) == column:
                    value = None if text == NULL_PARTITION else urllib.parse.unquote(text)
                    deeper[os.path.join(leaf, name)] = values | {column: value}
        leaves = deeper
    return leaves


def _remove_empty_directories(data: str) -> None:
    for folder, _, _ in os.walk(data, topdown=False):
        if folder != data and not os.listdir(folder):
            os.rmdir(folder)


def _read_footer_at(data: str, path: str, partition: dict[str, str | None], kinds: dict[str, Json]) -> StagedFile:
    whole = os.path.join(data, path)
    return read_footer(whole, path, os.path.getsize(whole), partition, kinds)


def read_footer(
    source: Any, path: str, size: int, partition: dict[str, str | None], kinds: dict[str, Json]
) -> StagedFile:
    """The description of a parquet file that pyarrow can read, or the path of one. `kinds` are the columns' types."""
    import pyarrow.parquet

    footer = pyarrow.parquet.read_metadata(source)
    nulls: Counter[str] = Counter()
    lows: dict[str, list[Any]] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            name = column.path_in_schema
            if isinstance(kinds.get(name), str):
                _add_column(name, kinds[name], column.statistics, nulls, lows, unknown)
    known = {name: found for name, found in lows.items() if name not in unknown}
    return StagedFile(
        path=path,
        size=size,
        rows=footer.num_rows,
        partition=partition,
        nulls=dict(nulls),
        lows={name: _as_bound(min(found), kinds[name], up=False) for name, found in known.items()},
        highs={name: _as_bound(max(found), kinds[name], up=True) for name, found in known.items()},
    )


def _add_column(
    name: str, kind: str, statistics: Any, nulls: Counter[str], bounds: dict[str, list[Any]], unknown: set[str]
) -> None:
    if statistics is None or not statistics.has_null_count:
        unknown.add(name)
        nulls[name] += 1  # unknown counts as a null: a NOT NULL column is then refused
        return
    nulls[name] += statistics.null_count
    if kind not in INTEGERS | {"date", "timestamp"} or not statistics.has_min_max:
        if statistics.num_values:
            unknown.add(name)
        return
    try:
        bounds.setdefault(name, []).extend((statistics.min, statistics.max))
    except (OverflowError, ValueError):  # a year that Python's dates cannot represent
        unknown.add(name)


def _as_bound(value: Any, kind: str, *, up: bool) -> Any:
    """Timestamps in milliseconds, as Delta's log has them: the lower bound rounded down, the upper one up."""
    if kind == "date":
        return value.isoformat()
    if kind != "timestamp":
        return value
    value = value.replace(tzinfo=value.tzinfo or datetime.UTC)
    short = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if up and short != value:
        short += datetime.timedelta(milliseconds=1)
    return short.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{short.microsecond // 1000:03}Z"
