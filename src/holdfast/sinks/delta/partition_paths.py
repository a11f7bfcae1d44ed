"""Paths of partitioned files that need no escaping, wherever they are written down.

Spark escapes values in its paths with percent signs, Delta's log escapes the path once more, and readers differ in how
they undo it. So values are escaped here with a tilde, before Spark sees them.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.sinks.delta.data_files import NULL_PARTITION
from holdfast.sinks.spark_write import column_named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_path_columns(frame: DataFrame, partitioned_by: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """The frame with its partition columns replaced by escaped texts, and the names of these."""
    from pyspark.sql import functions

    taken = {name.lower() for name in frame.columns}
    names: list[str] = []
    texts = []
    for number, column in enumerate(partitioned_by):
        name = f"p{number}"
        while name in taken:
            name += "_"
        text = functions.url_encode(column_named(column).cast("string"))
        for sign, escaped in (("%", "~"), ("+", "~20"), ("*", "~2A")):
            text = functions.replace(text, functions.lit(sign), functions.lit(escaped))
        names.append(name)
        texts.append(text.alias(name))
    kept = [column_named(name) for name in frame.columns if name not in partitioned_by]
    return (frame.select(*kept, *texts) if names else frame), names


def partition_values(path: str, partitioned_by: Sequence[str]) -> dict[str, str | None] | None:
    """The values in a path such as `p0=2026-01-02/p1=a~2Fb/part-0.parquet`; None if it has other directories."""
    folders = path.split("/")[:-1]
    if len(folders) != len(partitioned_by):
        return None
    found: dict[str, str | None] = {}
    for column, folder in zip(partitioned_by, folders, strict=True):
        text = folder.partition("=")[2]
        found[column] = None if text == NULL_PARTITION else urllib.parse.unquote(text.replace("~", "%"))
    return found
