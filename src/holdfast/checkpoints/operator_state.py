"""Operator states: encoded inline or into the sidecar, saved incrementally, restored from the chain.

An incremental checkpoint names, for every operator, the checkpoint that holds its bytes, and their SHA-256. So a
restore reads each operator from one place, however long the chain. Regular full checkpoints keep chains short.

The state checksum is one SHA-256 over inline state and sidecar, by LaminarDB's three rules. Only a sidecar: over its
bytes. Only inline state: over the operators' names and base64, sorted. Both: over the hex digits of the inline hash,
then the sidecar's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from holdfast.base.arguments import refused, type_name
from holdfast.checkpoints.catalog import Catalog
from holdfast.checkpoints.manifest import CheckpointManifest, OperatorCheckpoint, StateVersion
from holdfast.errors import Corrupt
from holdfast.storage.objects.store import Bytes

T = TypeVar("T")
INLINE_THRESHOLD = 1 << 20
INLINE_TOTAL = 4 << 20


class EncodedStates(msgspec.Struct, frozen=True):
    """Operator states for a manifest, and the sidecar chunks for those too large for it."""

    operators: dict[str, OperatorCheckpoint]
    chunks: list[bytes]


class Increment(msgspec.Struct, frozen=True):
    """A manifest ready to save, and the sidecar chunks that go with it."""

    manifest: CheckpointManifest
    chunks: list[bytes]


def check_states(states: Any) -> None:
    """Raise `Invalid` unless `states` maps operator names to bytes."""
    if not isinstance(states, Mapping):
        raise refused("states", f"a mapping of operator names to bytes is needed, not {type_name(states)}")
    for name, data in states.items():
        if not isinstance(name, str) or not isinstance(data, bytes):
            raise refused("states", f"operator {name!r} must be text and its state bytes, not {type_name(data)}")


def encode(
    states: Mapping[str, bytes], *, inline_threshold: int = INLINE_THRESHOLD, inline_total: int = INLINE_TOTAL
) -> EncodedStates:
    """Operator states as a manifest holds them: small ones inline, the others as slices of the sidecar. Pure.

    A state goes into the manifest up to `inline_threshold` bytes, as long as all inline states together stay within
    `inline_total`: a manifest is read whole and has a limit of its own.
    """
    operators: dict[str, OperatorCheckpoint] = {}
    chunks: list[bytes] = []
    offset = 0
    room = inline_total
    for name in sorted(states):
        data = states[name]
        operators[name] = OperatorCheckpoint.from_bytes(data, min(inline_threshold, room), offset)
        if operators[name].external:
            chunks.append(data)
            offset += len(data)
        else:
            room -= len(data)
    return EncodedStates(operators, chunks)


def plan_increment(
    manifest: CheckpointManifest,
    states: Mapping[str, bytes],
    parent: CheckpointManifest | None,
    *,
    full_every: int,
) -> Increment:
    """Decide which of `states` have to be written. Pure.

    The checkpoint is full if there is no parent, if the parent does not record the hashes of its states, or if the
    chain would reach `full_every` checkpoints.
    """
    known: Mapping[str, StateVersion] = {}
    if (
        parent is not None
        and parent.own.chain_length + 1 < full_every
        and parent.checkpoint_id < manifest.checkpoint_id
    ):
        known = parent.own.states
    versions: dict[str, StateVersion] = {}
    changed: dict[str, bytes] = {}
    for name in sorted(states):
        data = states[name]
        digest = hashlib.sha256(data).hexdigest()
        before = known.get(name)
        if before is not None and before.sha256 == digest and before.bytes == len(data):
            versions[name] = before
        else:
            versions[name] = StateVersion(manifest.checkpoint_id, len(data), digest)
            changed[name] = data
    encoded = encode(changed)
    is_child = parent is not None and len(changed) < len(states)
    own = msgspec.structs.replace(
        manifest.own, states=versions, chain_length=parent.own.chain_length + 1 if is_child and parent else 0
    )
    planned = msgspec.structs.replace(
        manifest,
        operator_states=encoded.operators,
        is_incremental=is_child,
        parent_id=parent.checkpoint_id if is_child and parent else None,
        holdfast=own,
    )
    return Increment(planned, encoded.chunks)


def restore_states(catalog: Catalog, manifest: CheckpointManifest) -> dict[str, bytes]:
    """Every operator's state as of this checkpoint, unchanged ones fetched from the ancestor that holds them.

    Raises `Corrupt`, naming the operator, if a byte is missing or differs from what was saved.
    """
    if not manifest.own.states:
        return _overlay(catalog, manifest)
    manifests = {manifest.checkpoint_id: manifest}
    states = {}
    for name, version in manifest.own.states.items():
        if version.checkpoint_id not in manifests:
            manifests[version.checkpoint_id] = _load_ancestor(catalog, version.checkpoint_id, manifest.checkpoint_id)
        data = _state_of(catalog, manifests[version.checkpoint_id], name)
        if hashlib.sha256(data).hexdigest() != version.sha256:
            raise _damaged(
                catalog, manifest.checkpoint_id, name, f"its bytes in checkpoint {version.checkpoint_id} have changed"
            )
        states[name] = data
    return states


def _overlay(catalog: Catalog, manifest: CheckpointManifest) -> dict[str, bytes]:
    """Restore from a chain whose writer did not record versions: each child replaces the operators that it names."""
    chain: list[CheckpointManifest] = [manifest]
    while chain[-1].is_incremental and (parent := chain[-1].needed_parent) is not None:
        chain.append(_load_ancestor(catalog, parent, chain[-1].checkpoint_id))
    states: dict[str, bytes] = {}
    for ancestor in reversed(chain):
        states.update({name: _state_of(catalog, ancestor, name) for name in ancestor.operator_states})
    return states


def _load_ancestor(catalog: Catalog, checkpoint_id: int, child_id: int) -> CheckpointManifest:
    manifest = catalog.load(checkpoint_id) if 0 < checkpoint_id < child_id else None
    if manifest is None:
        raise Corrupt(
            f"Checkpoint {child_id} needs checkpoint {checkpoint_id}, which is not there.",
            code="chain.broken",
            about=f"checkpoint {child_id}",
            next_step=f"find one that can be trusted: holdfast recover {catalog.objects.address} --dry-run",
        )
    return manifest


def _state_of(catalog: Catalog, manifest: CheckpointManifest, name: str) -> bytes:
    operator = manifest.operator_states.get(name)
    if operator is None:
        raise _damaged(catalog, manifest.checkpoint_id, name, "that checkpoint does not hold it")
    if not operator.external:
        return operator.try_decode_inline() or b""
    key = catalog.sidecar_key(manifest.checkpoint_id, manifest)
    info = catalog.objects.info(key)
    if info is None:
        raise _damaged(catalog, manifest.checkpoint_id, name, f"{catalog.shown(key)} is not there")
    if operator.external_offset + operator.external_length > info.size:
        raise _damaged(catalog, manifest.checkpoint_id, name, f"{catalog.shown(key)} is too short to hold it")
    pieces: Sequence[bytes] = [
        bytes(piece)
        for piece in catalog.objects.stream(key, start=operator.external_offset, length=operator.external_length)
    ]
    data = b"".join(pieces)
    if len(data) != operator.external_length:
        raise _damaged(catalog, manifest.checkpoint_id, name, f"{catalog.shown(key)} is too short to hold it")
    return data


def _damaged(catalog: Catalog, checkpoint_id: int, name: str, why: str) -> Corrupt:
    return Corrupt(
        f"State of operator {name!r} cannot be restored from checkpoint {checkpoint_id}: {why}.",
        code="state.damaged",
        about=f"checkpoint {checkpoint_id}",
        next_step=f"find one that can be trusted: holdfast recover {catalog.objects.address} --dry-run",
    )


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


def checksum_subject(operators: Mapping[str, OperatorCheckpoint], has_sidecar: bool) -> str:
    """Names what the checksum covers, for a message."""
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
