"""`open_store`: from an address to its checkpoint store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal

from holdfast.base.addresses import is_local
from holdfast.checkpoints.layout import DirectoryLayout, Layout, ObjectLayout
from holdfast.checkpoints.store import CheckpointStore
from holdfast.errors import Invalid
from holdfast.storage.objects.open import Credentials, open_objects

LayoutName = Literal["directory", "object"]


def open_store(
    url: str | os.PathLike[str],
    *,
    max_retained: int | None = 3,
    keep: str | timedelta | None = None,
    vnode_count: int = 256,
    full_every: int = 10,
    orphan_grace: float = 3600.0,
    layout: LayoutName | None = None,
    options: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    clock: Callable[[], float] = time.time,
) -> CheckpointStore:
    """Open the checkpoint store at an address. Nothing is read, made or changed until it is used.

    A path or `file://` has a folder per checkpoint; `memory://`, `s3://`, `gs://`, `az://` and `hdfs://` have flat
    folders; `layout` overrides that. `max_retained` complete checkpoints are kept (None or 0: all). With `keep` ('30s',
    '15m', '12h', '7d' or a timedelta) younger ones are kept as well, the fewer the older they are: one a second of the
    last five minutes, one a minute of two hours, one an hour of three days, then one a day. `vnode_count` is the number
    of state partitions the runtime uses; manifests with another number get a warning. `save_states` makes at least
    every `full_every`th checkpoint a full one. `orphan_grace` is how long, in seconds, an unfinished write of another
    process is left alone. `options` are the object store's settings, such as `endpoint`, `region`, `access_key_id` and
    `secret_access_key`; by default they come from the environment. For `hdfs://` they have Hadoop's names.
    `credentials` returns keys for S3 that are valid for a while, and is called again in time. `clock` gives the time of
    day, for tests.

        store = open_store("s3://bucket/orders", max_retained=10, options={"region": "eu-central-1"})
    """
    address = os.fspath(url)
    return CheckpointStore(
        open_objects(address, options=options, credentials=credentials),
        _layout(layout or ("directory" if is_local(address) else "object")),
        max_retained=max_retained,
        keep=keep,
        vnode_count=vnode_count,
        full_every=full_every,
        orphan_grace=orphan_grace,
        clock=clock,
    )


def _layout(name: str) -> Layout:
    if name == "directory":
        return DirectoryLayout()
    if name == "object":
        return ObjectLayout()
    raise Invalid(f"{name!r} is not a layout: use 'directory' or 'object'.", code="option.layout", about="layout")
