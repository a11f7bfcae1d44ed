"""An index as a sink: rows staged as files, committed in one transaction with the source positions."""

from holdfast.sinks.index.sink import IndexSink

__all__ = ["IndexSink"]
