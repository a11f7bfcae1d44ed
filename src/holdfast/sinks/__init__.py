"""Sinks: targets for the rows of an epoch, staged first and then committed. One module or package per sink."""

from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.files.sink import FileSink
from holdfast.sinks.function import FunctionSink
from holdfast.sinks.index.sink import IndexSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import (
    EXACTLY_ONCE,
    Delivery,
    Descriptor,
    RefusedTogether,
    RefusesRows,
    RefusesRowsTogether,
    RowsRefused,
    Sink,
    SinkProgress,
    StagedOutputGone,
    WritesToPaths,
)

Standing = SinkProgress
"""The former name of `SinkProgress`."""

__all__ = [
    "EXACTLY_ONCE",
    "Delivery",
    "DeltaSink",
    "Descriptor",
    "FileSink",
    "FunctionSink",
    "IndexSink",
    "PostgresSink",
    "RefusedTogether",
    "RefusesRows",
    "RefusesRowsTogether",
    "RowsRefused",
    "Sink",
    "SinkProgress",
    "StagedOutputGone",
    "Standing",
    "WritesToPaths",
]


def __dir__() -> list[str]:
    """The public names alone: what a shell offers for completion."""
    return __all__
