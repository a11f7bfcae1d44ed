"""Bytes at rest: one small contract, kept on local disk and on object storage."""

from holdfast.storage.objects.cloud import CloudObjects
from holdfast.storage.objects.local import LocalObjects
from holdfast.storage.objects.open import open_objects
from holdfast.storage.objects.store import ObjectInfo, Objects

__all__ = ["CloudObjects", "LocalObjects", "ObjectInfo", "Objects", "open_objects"]
