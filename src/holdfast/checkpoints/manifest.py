"""The manifest: the record of one checkpoint of a whole pipeline.

The first 22 fields carry the names and JSON shapes of LaminarDB's manifest, so that either side reads
the other's directories. `vnode_count` came there later; everything of our own is under `holdfast`.
Structs are frozen: derive a changed one with `msgspec.structs.replace`.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.base.codec import converted
from holdfast.errors import Corrupt

FORMAT_VERSION = 1
DEFAULT_VNODE_COUNT = 256
MAX_U64 = 2**64 - 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Unknown = dict[str, Any] | UnsetType
"""Fields of a newer or foreign writer, kept as they came so that writing them back loses nothing."""

UNKNOWN_KEY = "//unknown fields"  # needs some name in JSON; the codec never reads or writes it


class Issue(msgspec.Struct, frozen=True):
    """One finding. A fatal one means the checkpoint cannot be trusted."""

    message: str
    is_fatal: bool = False

    def __str__(self) -> str:
        return self.message


class ConnectorCheckpoint(msgspec.Struct, frozen=True):
    """How far one source or reference table had been read."""

    offsets: dict[str, str]
    epoch: Count = 0
    metadata: dict[str, str] = {}
    unknown: Unknown = msgspec.field(name=UNKNOWN_KEY, default=UNSET)


class OperatorCheckpoint(msgspec.Struct, frozen=True):
    """One operator's state: inside the manifest as base64, or a slice of the sidecar."""

    state_b64: str | None = None
    external: bool = False
    external_offset: Count = 0
    external_length: Count = 0
    unknown: Unknown = msgspec.field(name=UNKNOWN_KEY, default=UNSET)

    def __repr__(self) -> str:
        if self.state_b64 is not None and not self.external:
            return f"OperatorCheckpoint(inline, {len(self.state_b64) * 3 // 4} bytes)"
        return f"OperatorCheckpoint(bytes {self.external_offset} to {self.external_offset + self.external_length})"

    @classmethod
    def inline(cls, data: bytes) -> OperatorCheckpoint:
        """State small enough to live in the manifest."""
        return cls(state_b64=base64.b64encode(data).decode())

    @classmethod
    def external_slice(cls, offset: int, length: int) -> OperatorCheckpoint:
        """State that lies in the sidecar at this place."""
        return cls(external=True, external_offset=offset, external_length=length)

    @classmethod
    def from_bytes(cls, data: bytes, threshold: int, offset: int) -> OperatorCheckpoint:
        """Inline up to and including `threshold` bytes, beyond it the sidecar slice that begins at `offset`."""
        if len(data) <= threshold:
            return cls.inline(data)
        return cls.external_slice(offset, len(data))

    def try_decode_inline(self) -> bytes | None:
        """The inline bytes, None if there are none. Damaged base64 is `Corrupt`."""
        if self.state_b64 is None:
            return None
        try:
            return base64.b64decode(self.state_b64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Corrupt(f"Inline operator state is not base64: {error}.", code="manifest.base64") from None

    def decode_inline(self) -> bytes | None:
        """The inline bytes, None if there are none or they are damaged."""
        try:
            return self.try_decode_inline()
        except Corrupt:
            return None


class InFlightRecord(msgspec.Struct, frozen=True):
    """One record that was under way between operators when the checkpoint was taken."""

    input_id: Count
    data_b64: str
    unknown: Unknown = msgspec.field(name=UNKNOWN_KEY, default=UNSET)


class SinkFailed(msgspec.Struct, frozen=True):
    """A sink that refused its commit, and why."""

    reason: str = msgspec.field(name="Failed")


SinkStatus = Literal["Pending", "Committed"] | SinkFailed


class SinkCommitStatus:
    """The three statuses that a sink can have in an epoch."""

    @staticmethod
    def pending() -> SinkStatus:
        """Staged and decided on, not yet visible in the sink."""
        return "Pending"

    @staticmethod
    def committed() -> SinkStatus:
        """Visible in the sink."""
        return "Committed"

    @staticmethod
    def failed(reason: str) -> SinkStatus:
        """The sink refused, and why. It can still be committed later."""
        return SinkFailed(reason)


class SidecarObject(msgspec.Struct, frozen=True):
    """The sidecar as it was written; `key` is relative to the store. Its checksum is `state_checksum`."""

    key: str
    bytes: Count


class BatchObject(msgspec.Struct, frozen=True):
    """One batch object as it was written; `key` is relative to the store."""

    key: str
    bytes: Count
    sha256: str
    entries: Count


class BatchEntry(msgspec.Struct, frozen=True):
    """One entry of a batch object, by its place in it."""

    batch: BatchObject
    index: Count


class StateVersion(msgspec.Struct, frozen=True):
    """Which checkpoint holds the bytes of one operator's state, and what they hash to."""

    checkpoint_id: Count
    bytes: Count
    sha256: str


class HoldfastSection(msgspec.Struct, frozen=True):
    """What Holdfast records beyond LaminarDB's fields. The store fills it in; callers may add `sinks` and `runtime`."""

    write_id: str = ""
    generation: Count = 0
    lineage: Count = 0
    sidecar: SidecarObject | None = None
    batches: list[BatchObject] = []
    inherited: list[BatchObject] = []
    """Batch objects of earlier checkpoints that this one needs; with them it needs no parent to be restored."""
    live: dict[str, str] | UnsetType = UNSET
    """Which entries of a batch object belong to this checkpoint, by its key: a bitmap in base64, the first entry in the
    lowest bit of the first byte. All of them for an object without one; unset in checkpoints that did not record it."""
    states: dict[str, StateVersion] = {}
    """Every operator's state as of this checkpoint, the unchanged ones in an ancestor."""
    chain_length: Count = 0
    """How many ancestors a restore needs; 0 for a full checkpoint."""
    sinks: dict[str, Any] = {}
    runtime: dict[str, Any] = {}
    unknown: Unknown = msgspec.field(name=UNKNOWN_KEY, default=UNSET)
    checksum: str = ""
    """Over every byte of the document but its own digits, and last in it so that it can be found without parsing."""


class CheckpointManifest(msgspec.Struct, frozen=True):
    """Everything needed to resume a pipeline from one epoch."""

    version: Count
    checkpoint_id: Count
    epoch: Count
    timestamp_ms: Count
    source_offsets: dict[str, ConnectorCheckpoint] = {}
    sink_epochs: dict[str, Count] = {}
    sink_commit_statuses: dict[str, SinkStatus] = {}
    table_offsets: dict[str, ConnectorCheckpoint] = {}
    operator_states: dict[str, OperatorCheckpoint] = {}
    table_store_checkpoint_path: str | None = None
    wal_position: Count = 0
    per_core_wal_positions: list[Count] = []
    watermark: int | None = None
    source_watermarks: dict[str, int] = {}
    source_names: list[str] = []
    sink_names: list[str] = []
    pipeline_hash: Count | None = None
    inflight_data: dict[str, list[InFlightRecord]] = {}
    size_bytes: Count = 0
    is_incremental: bool = False
    parent_id: Count | None = None
    state_checksum: str | None = None
    vnode_count: Count = 0
    """0: written before this field existed."""
    unknown: Unknown = msgspec.field(name=UNKNOWN_KEY, default=UNSET)
    holdfast: HoldfastSection | UnsetType = UNSET

    @classmethod
    def new(cls, checkpoint_id: int, epoch: int, *, timestamp_ms: int | None = None) -> CheckpointManifest:
        """An empty manifest of the current format, created now unless a time is given."""
        now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        return cls(FORMAT_VERSION, checkpoint_id, epoch, now, vnode_count=DEFAULT_VNODE_COUNT)

    def __repr__(self) -> str:
        """Short enough for a notebook; `show` and the document itself have the rest."""
        kind = f"incremental of {self.parent_id}" if self.is_incremental else "full"
        return (
            f"CheckpointManifest({self.checkpoint_id}, epoch {self.epoch}, {kind}, {len(self.source_offsets)} sources, "
            f"{len(self.sink_commit_statuses)} sinks, {len(self.operator_states)} operators, {self.size_bytes} bytes)"
        )

    @property
    def own(self) -> HoldfastSection:
        """Our section, an empty one where a foreign writer left none."""
        return HoldfastSection() if isinstance(self.holdfast, UnsetType) else self.holdfast

    @property
    def is_ours(self) -> bool:
        """True if Holdfast saved it, so that what it owns is recorded; updating a foreign one does not make it ours."""
        return self.own.write_id != ""

    @property
    def needed_batches(self) -> list[BatchObject]:
        """Every batch object that a restore reads, oldest first: entries of a later one replace those of an earlier."""
        return [*self.own.inherited, *self.own.batches]

    @property
    def needed_parent(self) -> int | None:
        """The checkpoint without which this one cannot be restored."""
        return None if self.own.inherited else self.parent_id

    def with_batches(self, batches: list[BatchObject]) -> CheckpointManifest:
        """The same manifest, owning these batch objects as well."""
        own = msgspec.structs.replace(self.own, batches=[*self.own.batches, *batches])
        return msgspec.structs.replace(self, holdfast=own)

    @property
    def owed_sinks(self) -> tuple[str, ...]:
        """The sinks that have not committed this epoch yet, sorted: those still Pending and those that Failed.

        The only place that decides this. A sink without a status has no part in the epoch and owes nothing.
        """
        statuses = self.sink_commit_statuses.items()
        return tuple(sorted(name for name, status in statuses if status != SinkCommitStatus.committed()))

    @property
    def is_settled(self) -> bool:
        """True when no sink owes this epoch."""
        return not self.owed_sinks

    def validate(self, vnode_count: int | None = None) -> list[Issue]:
        """Everything questionable about this manifest on its own. Never raises, reads nothing.

        `vnode_count` is the number the runtime uses; without it only a missing count is reported.
        """
        try:
            msgspec.json.encode(self)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            return [_wrong_type(error)]
        return self.type_issues() or self.content_issues(vnode_count)

    def type_issues(self) -> list[Issue]:
        """A fatal issue if a field holds a value of the wrong type. Does not encode the document."""
        try:
            converted(msgspec.to_builtins(self), CheckpointManifest)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            return [_wrong_type(error)]
        return []

    def content_issues(self, vnode_count: int | None = None) -> list[Issue]:
        """The issues of a manifest whose fields have the right types, as those of a decoded manifest do."""
        return [
            *_identity_issues(self),
            *_topology_issues(self),
            *_state_issues(self),
            *_vnode_issues(self, vnode_count),
        ]


def _wrong_type(error: Exception) -> Issue:
    return Issue(f"a field holds a value of the wrong type: {error}", True)


def _identity_issues(manifest: CheckpointManifest) -> Iterator[Issue]:
    if manifest.version == 0:
        yield Issue("version is 0")
    if manifest.version > FORMAT_VERSION:
        yield Issue(f"format version {manifest.version} is newer than {FORMAT_VERSION}, the newest known here", True)
    for name in ("checkpoint_id", "epoch"):
        if getattr(manifest, name) == 0:
            yield Issue(f"{name} is 0", True)
    for name in ("checkpoint_id", "epoch", "timestamp_ms", "size_bytes", "pipeline_hash"):
        if (getattr(manifest, name) or 0) > MAX_U64:
            yield Issue(f"{name} does not fit 64 bits", True)
    if manifest.timestamp_ms == 0:
        yield Issue("timestamp_ms is 0: the creation time is missing")
    if manifest.is_incremental and manifest.parent_id is None:
        yield Issue("is_incremental without a parent_id")
    if manifest.parent_id is not None and not manifest.is_incremental:
        yield Issue(f"parent_id {manifest.parent_id} on a checkpoint that is not incremental")
    if manifest.parent_id is not None and not 0 < manifest.parent_id < manifest.checkpoint_id:
        yield Issue(f"parent_id {manifest.parent_id} does not come before checkpoint {manifest.checkpoint_id}", True)


def _topology_issues(manifest: CheckpointManifest) -> Iterator[Issue]:
    if manifest.source_names:
        for name in sorted(manifest.source_offsets.keys() - set(manifest.source_names)):
            yield Issue(f"source_offsets names {name!r}, which is not in source_names")
    if manifest.sink_names:
        for name in sorted((manifest.sink_epochs.keys() | manifest.sink_commit_statuses) - set(manifest.sink_names)):
            yield Issue(f"sink {name!r} is not in sink_names")
    if manifest.sink_commit_statuses:
        for name in sorted(manifest.sink_epochs.keys() - manifest.sink_commit_statuses.keys()):
            yield Issue(f"sink {name!r} has an epoch but no commit status")
    for name, epoch in sorted(manifest.sink_epochs.items()):
        if epoch > manifest.epoch:
            yield Issue(f"sink {name!r} is at epoch {epoch}, beyond this checkpoint's epoch {manifest.epoch}")


def _state_issues(manifest: CheckpointManifest) -> Iterator[Issue]:
    for name, operator in sorted(manifest.operator_states.items()):
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            yield Issue(f"operator {name!r} has a name that is not Unicode text", True)
        if operator.external and operator.state_b64 is not None:
            yield Issue(f"operator {name!r} is both inline and external")
        if operator.state_b64 is not None and operator.decode_inline() is None:
            yield Issue(f"operator {name!r} has inline state that is not base64", True)


def _vnode_issues(manifest: CheckpointManifest, expected: int | None) -> Iterator[Issue]:
    if manifest.vnode_count == 0:
        yield Issue("vnode_count is 0: written before partition counts were recorded")
    elif expected is not None and manifest.vnode_count != expected:
        yield Issue(
            f"vnode_count is {manifest.vnode_count}, this runtime uses {expected}: "
            f"open the store with vnode_count={manifest.vnode_count}, or rescale the pipeline"
        )


class _FieldAndConstructor:
    """`OperatorCheckpoint.external` is a field on instances and a constructor on the class; both are public."""

    def __init__(self, field: Any) -> None:
        self._field = field

    def __get__(self, instance: OperatorCheckpoint | None, owner: type[OperatorCheckpoint]) -> Any:
        return owner.external_slice if instance is None else self._field.__get__(instance, owner)


type.__setattr__(OperatorCheckpoint, "external", _FieldAndConstructor(OperatorCheckpoint.__dict__["external"]))
