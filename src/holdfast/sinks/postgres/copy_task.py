"""Runs on the executors: copies one task's rows into the staging table, Arrow batch by Arrow batch.

COPY's text format is built a whole column at a time; psycopg's row writers are several times slower. A task's rows are
one transaction and carry the number of the task attempt: rows of an attempt that failed or was superseded never count.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.postgres import DURABLE, message_of, trouble_of
from holdfast.errors import Unavailable
from holdfast.sinks.postgres.connection import SERVER_KEEPALIVES, column_in_copy, connected

if TYPE_CHECKING:
    import pyarrow as pa

SLICE = 1 << 22
"""Bytes of a batch that are converted at a time, to bound the memory that long rows need."""
OUTCOME = "attempt long, row_count long, refused string"
"""The Spark schema of the row that a task returns to the driver."""

_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


class Refusal(msgspec.Struct, frozen=True):
    """A value that PostgreSQL refuses."""

    column: str | None
    why: str


class ValueRefused(Exception):
    """Ends a task's copying: PostgreSQL would refuse this value."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


class CopyTask:
    """The function for `mapInArrow`. Holds the DSN with its password: never store or print it."""

    def __init__(self, dsn: str, statement: str, columns: list[str]) -> None:
        self._dsn = dsn
        self._statement = statement
        self._columns = columns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy all rows, durably, and yield one row: the task attempt, and how many rows it copied.

        A refused value ends the copying, not the task: Spark would only run the same task again.
        """
        from pyspark import TaskContext

        pa, _ = _arrow()
        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        first = next(batches, None)
        count, refused = 0, None
        if first is not None:  # an empty partition needs no connection
            count, refusal = self.copy(itertools.chain([first], batches), attempt)
            refused = None if refusal is None else msgspec.json.encode(refusal).decode()
        collections.deque(batches, maxlen=0)  # after a refusal: an executor fails if input is left unread
        outcome = [pa.array([attempt]), pa.array([count]), pa.array([refused], pa.string())]
        yield pa.RecordBatch.from_arrays(outcome, names=["attempt", "row_count", "refused"])

    def copy(self, batches: Iterable[pa.RecordBatch], attempt: int) -> tuple[int, Refusal | None]:
        """Copy the rows in one transaction. Returns their number, or 0 and the value that was refused."""
        import psycopg

        try:
            with connected(self._dsn) as connection:
                connection.execute(DURABLE)
                connection.execute(SERVER_KEEPALIVES)
                cursor = connection.cursor()
                with cursor.copy(self._statement.encode()) as copy:
                    for batch in batches:
                        for piece in slices(batch):
                            copy.write(lines(piece, self._columns, attempt))
                connection.commit()
                return cursor.rowcount, None
        except ValueRefused as error:
            return 0, error.refusal
        except psycopg.Error as error:
            if trouble_of(error) == "data":
                return 0, Refusal(column_in_copy(error, self._columns), message_of(error))
            raise Unavailable(f"An executor could not copy its rows: {message_of(error)}") from None


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces of about `SLICE` bytes, with at least one row each."""
    rows = max(1, batch.num_rows * SLICE // max(SLICE, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def lines(batch: pa.RecordBatch, columns: Sequence[str], attempt: int) -> bytes:
    """The rows in COPY's text format, with the attempt as last column. `ValueRefused` for text with a NUL character."""
    pa, pc = _arrow()
    fields = [_escaped(as_text(array, name), array.type) for name, array in zip(columns, batch.columns, strict=True)]
    rows = _joined(*fields, f"{attempt}\n", "\t", null_handling="replace", null_replacement="\\N")
    joined = pc.binary_join(pa.LargeListArray.from_arrays([0, len(rows)], rows), pa.scalar("", pa.large_string()))
    text: bytes = joined[0].as_buffer().to_pybytes()
    return text


def as_text(array: Any, column: str) -> Any:
    """The values as PostgreSQL's text input, without COPY's escapes; null stays null."""
    pa, pc = _arrow()
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if pc.any(pc.match_substring(array, "\0")).as_py():
            why = "it holds text with a NUL character, which PostgreSQL cannot store."
            raise ValueRefused(Refusal(column, why))
        return array.cast(pa.large_string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        written = [None if value is None else "\\x" + value.hex() for value in array.to_pylist()]
        return pa.array(written, pa.large_string())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _array_text(array, column)
    if pa.types.is_timestamp(kind):
        # Spark labels instants with the session's time zone; the microseconds since 1970 do not depend on it.
        text = array.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.large_string())
        return text if kind.tz is None else _joined(text, "Z", "")
    return array.cast(pa.large_string())


def _array_text(array: Any, column: str) -> Any:
    pa, pc = _arrow()
    elements = as_text(array.flatten(), column)
    if not pa.types.is_list(array.type.value_type) and not pa.types.is_large_list(array.type.value_type):
        elements = pc.replace_substring(pc.replace_substring(elements, "\\", "\\\\"), '"', '\\"')
        elements = _joined('"', elements, '"', "")
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    comma = pa.scalar(",", pa.large_string())
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements.fill_null("NULL")), comma)
    return pc.if_else(array.is_valid(), _joined("{", joined, "}", ""), None)


def _joined(*parts: Any, **options: str) -> Any:
    """Join the parts of each row; the last part is the separator. Arrow needs all of one type."""
    pa, pc = _arrow()
    typed = (pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*typed, **options)


def _escaped(text: Any, kind: pa.DataType) -> Any:
    """Add COPY's escapes, where the type can hold a character that needs one."""
    pa, pc = _arrow()
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return text
    for character, escape in _ESCAPES:
        text = pc.replace_substring(text, character, escape)
    return text


def _arrow() -> tuple[Any, Any]:
    """pyarrow and its compute functions, untyped: their stubs accept less than the functions do."""
    import pyarrow
    import pyarrow.compute

    return pyarrow, pyarrow.compute
