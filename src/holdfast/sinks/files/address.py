"""The address of a file sink: a path, a prefix on object storage, or a directory on HDFS. Pure."""

from __future__ import annotations

from holdfast.base.addresses import (
    CLOUD_SCHEMES,
    HDFS_SCHEME,
    is_local,
    local_path,
    remote_parts,
    spark_address,
    without_secrets,
)
from holdfast.errors import Invalid

SCHEMES = ({*CLOUD_SCHEMES} - {"az"}) | {HDFS_SCHEME}
UNFIT = "%*[]{}\\^|<>\"'`\n"


def sink_path(address: str) -> str:
    """The absolute path, or the address as Spark writes it, without a slash at its end.

    `Invalid` if a file sink cannot write there.
    """
    if is_local(address):
        return local_path(address, code="sink.address")
    shown = without_secrets(address)
    scheme, host, path = remote_parts(address, code="sink.address")
    if scheme not in SCHEMES or (scheme == HDFS_SCHEME and not host):
        raise _refused(f"{shown} is not a place that a file sink writes to.", shown)
    if unfit := [letter for letter in address if letter in UNFIT]:
        raise _refused(f"{shown} contains the character {unfit[0]!r}, which a file sink's path cannot have.", shown)
    if not host or not path or "" in path.split("/"):
        raise _refused(
            f"{shown} has no path below its bucket, or one with empty parts; staged files are kept beside it.", shown
        )
    if scheme == HDFS_SCHEME and ":" in path:
        raise _refused(f"{shown} has a colon in its path, which HDFS does not take.", shown)
    return spark_address(address)


def _refused(message: str, shown: str) -> Invalid:
    return Invalid(
        message,
        code="sink.address",
        about=shown,
        unchanged="everything",
        next_step="give a local path, or s3a://bucket/path, gs://bucket/path, "
        "abfss://container@account.dfs.core.windows.net/path, hdfs://host:port/path or hdfs://nameservice/path; "
        "anything else can be mounted, or written by a FunctionSink",
    )
