"""Sizes and ages of many objects, for few requests."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.storage.objects.store import ObjectInfo, ObjectStore

FEW = 4
"""Up to this many are looked at one by one: a listing shows all there is in their folders, 1000 objects a request."""


def infos(objects: ObjectStore, keys: Collection[str]) -> dict[str, ObjectInfo]:
    """What `info` says of each of these objects, without those that are not there.

    Where a look costs a request, many objects are looked at by a listing of the folders that they are in. As many keys
    are always looked at in the same way: a listing may tell times more exactly than a look at one object.
    """
    if objects.looks_are_free or len(keys) <= FEW:
        looked = [objects.info(key) for key in keys]
    else:
        wanted = set(keys)
        folders = sorted({f"{key.partition('/')[0]}/" if "/" in key else "" for key in wanted})
        looked = [info for folder in folders for info in objects.list(folder) if info.key in wanted]
    return {info.key: info for info in looked if info is not None}
