"""The address of a Delta table: a path, or a prefix on object storage. Pure."""

from __future__ import annotations

import os

from holdfast.base.addresses import CLOUD_SCHEMES, is_local, local_path, remote_parts, without_secrets
from holdfast.errors import Invalid
from holdfast.sinks.delta.table import invalid_arguments

_TAKEN = "a path, s3a:// (or s3://), abfss:// or gs://"


def table_address(given: str | os.PathLike[str]) -> str:
    """The absolute path, or the address in the one spelling that is recorded: `s3a://` and `s3://` are the same.

    `Invalid` for anything else, and for an address with a user and a password in it.
    """
    text = os.fspath(given)
    if is_local(text):
        return _without_percent(local_path(text, code="sink.address"))
    scheme, bucket, path = remote_parts(text, code="sink.address")
    shown = without_secrets(text)
    if scheme == "hdfs":
        raise _refused(f"{shown}: Delta tables on HDFS are not supported.", shown, f"give {_TAKEN}; or mount it")
    if scheme == "az":
        raise _refused(
            f"Spark has no connector for {shown}.", shown, "write abfss://container@account.dfs.core.windows.net/path"
        )
    if scheme not in CLOUD_SCHEMES:
        raise _refused(f"{shown} is not a place for a Delta table.", shown, f"give {_TAKEN}")
    if not bucket or path.startswith("/") or "//" in path:
        raise _refused(f"{shown} is not the address of a prefix.", shown, f"write {scheme}://bucket/prefix")
    return _without_percent(f"{'s3' if scheme == 's3a' else scheme}://{bucket}{'/' if path else ''}{path}")


def _without_percent(address: str) -> str:
    if "%" in address:
        raise invalid_arguments(
            "`deltalake` reads a percent sign in a path as an escape.", address, "rename the directory"
        )
    return address


def _refused(message: str, about: str, next_step: str) -> Invalid:
    return Invalid(message, code="sink.address", about=about, unchanged="everything", next_step=next_step)
