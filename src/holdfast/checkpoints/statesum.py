"""The state checksum: one SHA-256 over inline state and sidecar, by LaminarDB's three rules.

Only a sidecar: over its bytes. Only inline state: over the operators' names and base64, sorted. Both:
over the hex digits of the inline hash, then the sidecar's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.checkpoints.manifest import OperatorCheckpoint
from holdfast.storage.objects.store import Bytes

T = TypeVar("T")


def inline_hash(operators: Mapping[str, OperatorCheckpoint]) -> str | None:
    """The hash of all inline state, None if there is none."""
    inline = {name: op.state_b64 for name, op in operators.items() if op.state_b64 is not None}
    if not inline:
        return None
    digest = hashlib.sha256()
    for name in sorted(inline):
        digest.update(name.encode() + b"\0" + inline[name].encode() + b"\0")
    return digest.hexdigest()


def state_checksum(operators: Mapping[str, OperatorCheckpoint], sidecar: Iterable[Bytes] | None) -> str | None:
    """The checksum of a checkpoint's state, None if it has none at all."""
    inline = inline_hash(operators)
    if sidecar is None:
        return inline
    digest = hashlib.sha256(inline.encode() if inline else b"")
    for piece in read_ahead(sidecar):
        digest.update(piece)
    return digest.hexdigest()


def describe(operators: Mapping[str, OperatorCheckpoint], has_sidecar: bool) -> str:
    """What the checksum is over, in words for a message."""
    if not has_sidecar:
        return "inline state"
    return "mixed state" if inline_hash(operators) else "state.bin"


def read_ahead(pieces: Iterable[T]) -> Iterator[T]:
    """The same pieces, the next one being read while the current one is used. At most two are in memory."""
    if isinstance(pieces, (list, tuple)):
        yield from pieces
        return
    source = iter(pieces)
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-read-ahead") as reader:
        pending = reader.submit(next, source, end)
        while (piece := pending.result()) is not end:
            pending = reader.submit(next, source, end)
            yield piece  # type: ignore[misc]
