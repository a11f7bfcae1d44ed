"""The file sink: an epoch is a directory of files."""

from holdfast.sinks.files.sink import FileSink

__all__ = ["FileSink"]
