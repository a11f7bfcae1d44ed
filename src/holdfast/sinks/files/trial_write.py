"""Has Spark write a file without rows: the schema, the options and the place are checked before any data moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.jvm import active_session
from holdfast.errors import Invalid, one_line
from holdfast.sinks.files.layout import FileLayout
from holdfast.sinks.spark_write import write_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def try_out(schema: StructType, path: str, layout: FileLayout, *, about: str) -> None:
    """Write no rows to a path, which the caller removes.

    `Invalid` if Spark does not take the options; else as `write_rows`.
    """
    session = active_session()
    assert session is not None, "a sink is prepared while Spark runs"
    empty = session.createDataFrame([], schema)
    try:
        write_rows(empty, path, layout.format, options=layout.options)
    except Exception as error:
        if not hasattr(error, "getCondition"):
            raise
        raise Invalid(  # without rows, and with a working disk, only the options can be wrong
            f"Spark does not take these options: {one_line(error)}",
            code="sink.options",
            about=about,
            unchanged="what is in the directory",
            next_step="correct FileSink(..., options=...)",
        ) from error
