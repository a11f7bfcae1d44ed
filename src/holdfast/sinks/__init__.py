"""Sinks: where an epoch's rows go, staged first and then committed. One module or package per sink."""

from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.files import FileSink
from holdfast.sinks.function import FunctionSink
from holdfast.sinks.index import IndexSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import EXACTLY_ONCE, Delivery, Descriptor, RowsRefused, Sink, SinkProgress, StagedOutputGone

Standing = SinkProgress
"""The name of `SinkProgress` up to now."""

__all__ = [
    "EXACTLY_ONCE",
    "Delivery",
    "DeltaSink",
    "Descriptor",
    "FileSink",
    "FunctionSink",
    "IndexSink",
    "PostgresSink",
    "RowsRefused",
    "Sink",
    "SinkProgress",
    "StagedOutputGone",
    "Standing",
]
