"""Runs on the executors: copies one task's rows into the staging table, Arrow batch by Arrow batch.

COPY's text format is put together a whole column at a time; psycopg's row writers are several times slower. The rows
of a task are one transaction, and carry the number of the attempt: rows of an attempt that did not win never count.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Unavailable
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    import pyarrow as pa

SLICE = 1 << 22
"""Bytes of a batch that are converted at a time, so that a task's memory does not depend on how long its rows are."""
OUTCOME = "attempt long, row_count long, refused string"
"""What a task tells the driver, in Spark's words."""

_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


class Refusal(msgspec.Struct, frozen=True):
    """A value that PostgreSQL does not take."""

    column: str | None
    why: str


class ValueRefused(Exception):
    """Ends the copying of a task."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal


class CopyTask:
    """What `mapInArrow` runs. Holds the DSN with its password: it must not be kept or shown, only sent."""

    def __init__(self, dsn: str, statement: str, columns: list[str]) -> None:
        self._dsn = dsn
        self._statement = statement
        self._columns = columns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy all rows, durably, and yield one row that says which attempt did, and how many it copied.

        A value that is refused ends the copying, not the task: Spark would only try the same again.
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
        collections.deque(batches, maxlen=0)  # after a refusal: an executor complains of input that nobody read
        outcome = [pa.array([attempt]), pa.array([count]), pa.array([refused], pa.string())]
        yield pa.RecordBatch.from_arrays(outcome, names=["attempt", "row_count", "refused"])

    def copy(self, batches: Iterable[pa.RecordBatch], attempt: int) -> tuple[int, Refusal | None]:
        """Copy the rows in one transaction: all of them are there when this returns, or none and the reason."""
        import psycopg

        from holdfast.sinks.postgres.connecting import DURABLE, NOTICED, column_of, connected, explained, said

        try:
            with connected(self._dsn) as connection:
                connection.execute(DURABLE)
                connection.execute(NOTICED)
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
            if isinstance(explained(error, "", ""), RowsRefused):
                return 0, Refusal(column_of(error, self._columns), said(error))
            raise Unavailable(f"An executor could not copy its rows: {said(error)}") from None


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `SLICE` bytes, and at least one row."""
    rows = max(1, batch.num_rows * SLICE // max(SLICE, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def lines(batch: pa.RecordBatch, columns: Sequence[str], attempt: int) -> bytes:
    """The rows as COPY reads them, each with the attempt at its end. `ValueRefused` for text that cannot be stored."""
    pa, pc = _arrow()
    fields = [_escaped(as_text(array, name), array.type) for name, array in zip(columns, batch.columns, strict=True)]
    rows = _joined(*fields, f"{attempt}\n", "\t", null_handling="replace", null_replacement="\\N")
    joined = pc.binary_join(pa.LargeListArray.from_arrays([0, len(rows)], rows), pa.scalar("", pa.large_string()))
    text: bytes = joined[0].as_buffer().to_pybytes()
    return text


def as_text(array: Any, column: str) -> Any:
    """The values as PostgreSQL reads them, before COPY's own escapes; null stays null."""
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
        # Spark labels instants with the session's time zone; the number below is the same in all of them.
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
    """The parts of each row joined by the last one. Arrow wants all of one type."""
    pa, pc = _arrow()
    typed = (pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts)
    return pc.binary_join_element_wise(*typed, **options)


def _escaped(text: Any, kind: pa.DataType) -> Any:
    """With COPY's escapes, where the type allows for a character that needs one."""
    pa, pc = _arrow()
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return text
    for character, escape in _ESCAPES:
        text = pc.replace_substring(text, character, escape)
    return text


def _arrow() -> tuple[Any, Any]:
    """pyarrow and its compute functions, whose types say less than what they take."""
    import pyarrow
    import pyarrow.compute

    return pyarrow, pyarrow.compute
