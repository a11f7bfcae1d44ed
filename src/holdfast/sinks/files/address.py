"""The address of a file sink: a path, a prefix on object storage, or a directory on HDFS. Pure."""

from __future__ import annotations

from holdfast.base.addresses import HDFS_SCHEME, is_local, local_path, scheme_of, spark_address, without_secrets
from holdfast.errors import Invalid

CLOUD = ("s3", "s3a", "gs", "abfs", "abfss")
UNFIT = "%?#*[]{}\\^|<>\"'`\n"


def sink_path(address: str) -> str:
    """The absolute path, or the address as Spark writes it, without a slash at its end.

    `Invalid` if a file sink cannot write there.
    """
    if is_local(address):
        return local_path(address, code="sink.address")
    shown = without_secrets(address)
    scheme, rest = scheme_of(address), address.partition("://")[2]
    host, _, path = rest.rstrip("/").partition("/")
    if scheme not in (*CLOUD, HDFS_SCHEME) or (scheme == HDFS_SCHEME and not host):
        raise _refused(f"{shown} is not a place that a file sink writes to.", shown)
    if any(letter in rest for letter in UNFIT) or ("@" in host and not scheme.startswith("abfs")):
        raise _refused(f"{shown} has more than a bucket and a path, or characters that mean patterns.", shown)
    if not host or not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise _refused(
            f"{shown} has no path below its bucket, or one with empty parts; staged files are kept beside it.", shown
        )
    if scheme == HDFS_SCHEME and ":" in path:
        raise _refused(f"{shown} has a colon in its path, which HDFS does not take.", shown)
    return spark_address(f"{scheme}://{host}/{path}")


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
