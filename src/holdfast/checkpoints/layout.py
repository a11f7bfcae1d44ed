"""The object keys of a store: LaminarDB's two layouts, and the batch keys that both share."""

from __future__ import annotations

import json
import re
from typing import Protocol

from holdfast.checkpoints.manifest import MAX_U64
from holdfast.storage.objects.keys import is_safe

BATCH = re.compile(r"(?P<prefix>(?:.+/)?)checkpoints/batch-(?P<epoch>\d{6,20})(?:-part-\d{4,})?\.lz4")


def batch_key(prefix: str, epoch: int, part: int = 1) -> str:
    """The key of an epoch's batch object; part 1 has the name that LaminarDB gives it."""
    suffix = "" if part == 1 else f"-part-{part:04}"
    return f"{prefix}checkpoints/batch-{epoch:06}{suffix}.lz4"


def is_batch_key(key: str) -> bool:
    """Whether a key can be a batch object's."""
    return BATCH.fullmatch(key) is not None and is_safe(key)


class Layout(Protocol):
    """Keys of one checkpoint's objects, and the way back from a key to the checkpoint's id."""

    pointer_key: str
    folders: tuple[str, ...]
    """Everything the layout keeps is below these; manifests are below the first."""

    def manifest_key(self, checkpoint_id: int) -> str: ...

    def sidecar_key(self, checkpoint_id: int, writer: str = "") -> str:
        """The sidecar's usual key, or one of this writer's own for when the usual one is taken."""

    def manifest_id(self, key: str) -> int | None: ...

    def sidecar_id(self, key: str) -> int | None: ...

    def pointer_body(self, checkpoint_id: int) -> bytes: ...

    def pointer_id(self, body: bytes) -> int | None:
        """The id a pointer names; None if it is torn or garbage."""


class DirectoryLayout:
    """A folder per checkpoint, as on local disk."""

    pointer_key = "checkpoints/latest.txt"
    folders: tuple[str, ...] = ("checkpoints/",)
    _manifest = re.compile(r"checkpoints/checkpoint_(\d{6,20})/manifest\.json")
    _sidecar = re.compile(r"checkpoints/checkpoint_(\d{6,20})/state(?:\.[0-9a-f]+)?\.bin")
    _pointer = re.compile(r"checkpoint_(\d{6,20})")

    def manifest_key(self, checkpoint_id: int) -> str:
        return f"checkpoints/checkpoint_{checkpoint_id:06}/manifest.json"

    def sidecar_key(self, checkpoint_id: int, writer: str = "") -> str:
        return f"checkpoints/checkpoint_{checkpoint_id:06}/state{'.' if writer else ''}{writer}.bin"

    def manifest_id(self, key: str) -> int | None:
        return _number(self._manifest.fullmatch(key))

    def sidecar_id(self, key: str) -> int | None:
        return _number(self._sidecar.fullmatch(key))

    def pointer_body(self, checkpoint_id: int) -> bytes:
        return f"checkpoint_{checkpoint_id:06}".encode()

    def pointer_id(self, body: bytes) -> int | None:
        return _number(self._pointer.fullmatch(body.decode("utf-8", "replace").strip()))


class ObjectLayout:
    """Manifests and state in two flat folders, as in object storage."""

    pointer_key = "manifests/latest.json"
    folders: tuple[str, ...] = ("manifests/", "checkpoints/")
    _manifest = re.compile(r"manifests/manifest-(\d{6,20})\.json")
    _sidecar = re.compile(r"checkpoints/state-(\d{6,20})(?:\.[0-9a-f]+)?\.bin")

    def manifest_key(self, checkpoint_id: int) -> str:
        return f"manifests/manifest-{checkpoint_id:06}.json"

    def sidecar_key(self, checkpoint_id: int, writer: str = "") -> str:
        return f"checkpoints/state-{checkpoint_id:06}{'.' if writer else ''}{writer}.bin"

    def manifest_id(self, key: str) -> int | None:
        return _number(self._manifest.fullmatch(key))

    def sidecar_id(self, key: str) -> int | None:
        return _number(self._sidecar.fullmatch(key))

    def pointer_body(self, checkpoint_id: int) -> bytes:
        return json.dumps({"checkpoint_id": checkpoint_id}).encode()

    def pointer_id(self, body: bytes) -> int | None:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return None
        number = found.get("checkpoint_id") if isinstance(found, dict) else None
        return number if type(number) is int and 0 < number <= MAX_U64 else None


def _number(match: re.Match[str] | None) -> int | None:
    """The id in a name, if the name is the one we would give that id: no second spelling, nothing out of range."""
    if match is None:
        return None
    number = int(match[1])
    return number if 0 < number <= MAX_U64 and f"{number:06}" == match[1] else None
