"""What an index refuses: rows one by one, rows of one key together, and staged rows as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.arguments import MAX_KEY_BYTES, MAX_VALUE_BYTES
from holdfast.index.rows import key_document, value_document
from holdfast.sinks.index.staged_rows import RowCounts
from holdfast.sinks.sink import RefusedTogether, RowsRefused
from holdfast.sinks.spark_write import column_named
from holdfast.storage.kv.transaction import transaction_size

if TYPE_CHECKING:
    from pyspark.sql import Column


def conditions(columns: Sequence[str], key: Sequence[str], delete: str | None) -> Iterator[tuple[Column, str]]:
    """Each reason that a row has by itself: a condition, and its words."""
    from pyspark.sql import functions

    for name in key:
        yield column_named(name).isNull(), f"key column {name!r} is null"
    yield (
        functions.octet_length(key_document(key)) > MAX_KEY_BYTES,
        f"the key, as JSON, is longer than {MAX_KEY_BYTES:,} bytes",
    )
    yield (
        functions.octet_length(value_document(columns, delete)) > MAX_VALUE_BYTES,
        f"the row, as JSON, is larger than {MAX_VALUE_BYTES:,} bytes",
    )


def same_key(key: Sequence[str]) -> Column:
    """The words for a row whose key another row of the epoch has, too; nothing says which one to keep.

    By the stored bytes, as staged rows are counted: under a collation, different texts are equal.
    """
    from pyspark.sql import Window, functions

    document = key_document(key)
    rows = functions.count(functions.lit(1)).over(Window.partitionBy(document))
    return functions.when(
        document.isNotNull() & (rows > 1), functions.lit(f"another row has the same {', '.join(key)}")
    )


class Room(msgspec.Struct, frozen=True):
    """How much an index commits at once, and how much of it is taken by other things than rows."""

    limit: int | None
    """In bytes; None for any size."""
    changes: int = 0
    payload: int = 0


def fits(rows: RowCounts, room: Room) -> bool:
    """Whether the rows are small enough, one by one and together."""
    return rows.largest <= MAX_VALUE_BYTES and (room.limit is None or _size(rows, room) <= room.limit)


def check_rows(rows: RowCounts, key: Sequence[str], address: str, room: Room) -> None:
    """`RowsRefused` for rows that the index would otherwise refuse in `commit`, after the epoch is decided."""
    columns = ", ".join(key)
    next_step = "aggregate or deduplicate by the key in the query, and keep it short and without nulls"
    kind: type[RowsRefused] = RowsRefused
    problem = None
    size = _size(rows, room)
    if rows.nulls:
        problem = f"there are rows in which {columns} is null"
    elif rows.distinct < rows.rows:
        kind, problem = RefusedTogether, f"there are several rows with the same {columns}"
    elif rows.longest > MAX_KEY_BYTES:
        problem = f"a key of {rows.longest} bytes is too long, {MAX_KEY_BYTES} is the limit"
    elif rows.largest > MAX_VALUE_BYTES:
        problem = f"a row of {rows.largest} bytes, as JSON, is too large, {MAX_VALUE_BYTES} is the limit"
        next_step = "keep large values elsewhere, and their names in the index"
    elif room.limit is not None and size > room.limit:
        problem = (
            f"the epoch's {rows.rows} rows have {_mebibytes(size)}, and an index of this kind commits at most "
            f"{_mebibytes(room.limit)} at once"
        )
        next_step = (
            "let an epoch read less (maxOffsetsPerTrigger, maxFilesPerTrigger) and remove the pipeline's workdir, "
            "so that this epoch is planned anew; or use an index on SQLite or PostgreSQL, which take any size"
        )
    if problem:
        raise kind(
            f"The index does not take these rows: {problem}.", about=address, unchanged="the index", next_step=next_step
        )


def _size(rows: RowCounts, room: Room) -> int:
    return transaction_size(rows.rows + room.changes, rows.payload + room.payload)


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
