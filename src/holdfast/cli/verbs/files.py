"""`holdfast files`: list the committed files of a file sink, for programs that read lists of files."""

from __future__ import annotations

import click

from holdfast.cli.options import on_files
from holdfast.cli.output import Output
from holdfast.sinks.files.committed import committed_files
from holdfast.status import format


@click.command("files")
@on_files
def command(url: str, settings: dict[str, str], output: Output) -> int:
    """List the committed files of a FileSink, one address per line, oldest epoch first.

    URL is what FileSink was given: a path, s3://, s3a://, gs://, abfss:// or hdfs://. A list that is read at once holds
    whole epochs only, also on object storage. Needs no Spark; changes nothing.

    \b
    Example: holdfast files s3://bucket/lake/orders
    """
    found = committed_files(url, storage_options=settings or None)
    for file in found.files:
        output.line(file.address)
    epochs = {(file.lineage, file.epoch) for file in found.files}
    if output.is_terminal or not found.files:
        total = format.size(sum(file.size for file in found.files))
        output.note(f"{format.count(len(found.files), 'file')} of {format.count(len(epochs), 'epoch')}, {total}")
    data = {
        "pipeline": found.owner.pipeline,
        "sink": found.owner.sink,
        "format": found.owner.format,
        "epoch_column": found.owner.epoch_column,
        "files": [
            {"address": file.address, "size_bytes": file.size, "lineage": file.lineage, "epoch": file.epoch}
            for file in found.files
        ],
    }
    output.finish(found.path, data)
    return 0
