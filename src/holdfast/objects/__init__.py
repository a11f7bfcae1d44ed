"""Bytes at rest: one small contract, kept on local disk and on object storage."""

from holdfast.objects.address import open_objects
from holdfast.objects.cloud import CloudObjects
from holdfast.objects.local import LocalObjects
from holdfast.objects.medium import ObjectInfo, Objects

__all__ = ["CloudObjects", "LocalObjects", "ObjectInfo", "Objects", "open_objects"]
