"""`open_workdir`: from an address to its workdir."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.base.addresses import is_cloud, scheme_of
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.pipeline.workdir.remote import RemoteWorkdir
from holdfast.pipeline.workdir.workdir import Workdir


def open_workdir(address: str | os.PathLike[str], *, options: Mapping[str, str] | None = None) -> Workdir:
    """The workdir at a path, or at `s3a://`, `abfss://`, `gs://` or `hdfs://`. Nothing is read or made yet.

    `options` are those of the object store; by default what Spark's settings say is used, or the environment.
    """
    given = os.fspath(address)
    if is_cloud(given) or scheme_of(given) == "hdfs":
        return RemoteWorkdir(given, options=options)
    return LocalWorkdir(given)
