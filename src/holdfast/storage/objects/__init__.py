"""Object stores: one protocol, `ObjectStore`, on a local disk, on object storage, on HDFS and in memory."""

from holdfast.storage.objects.cloud import CloudObjects
from holdfast.storage.objects.local import LocalObjects
from holdfast.storage.objects.open import open_objects
from holdfast.storage.objects.store import ObjectInfo, ObjectStore

__all__ = ["CloudObjects", "LocalObjects", "ObjectInfo", "ObjectStore", "open_objects"]
