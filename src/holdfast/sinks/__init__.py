"""Where an epoch's rows go: stage, then commit. One file per sink."""

from holdfast.sinks.delta.sink import DeltaSink
from holdfast.sinks.files import FileSink
from holdfast.sinks.function import FunctionSink
from holdfast.sinks.index import IndexSink
from holdfast.sinks.postgres.sink import PostgresSink
from holdfast.sinks.sink import EXACTLY_ONCE, Delivery, Descriptor, RowsRefused, Sink, StagedOutputGone, Standing

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
    "StagedOutputGone",
    "Standing",
]
