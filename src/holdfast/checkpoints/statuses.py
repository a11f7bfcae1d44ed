"""What `update_manifest` may change: sink statuses, forward only. A pure decision."""

from __future__ import annotations

import msgspec

from holdfast.checkpoints.manifest import CheckpointManifest, SinkFailed, SinkStatus
from holdfast.errors import Invalid

MOVABLE = ("sink_commit_statuses", "sink_epochs")


def moved_forward(stored: CheckpointManifest, wanted: CheckpointManifest, *, about: str) -> CheckpointManifest:
    """`stored` with the sink statuses and epochs of `wanted`; `Invalid` if that is not a step forward.

    Forward is: unset, Pending, Failed, Committed. `wanted` may be the manifest as it was handed to `save`,
    without what the store filled in.
    """
    wanted = _with_stamps_of(stored, wanted)
    fields = (field for field in stored.__struct_fields__ if field not in MOVABLE)
    changed = [field for field in fields if getattr(stored, field) != getattr(wanted, field)]
    if changed:
        raise _refused(about, f"only sink statuses may change after a save, not {', '.join(changed)}")
    for sink, status in stored.sink_commit_statuses.items():
        if _rank(wanted.sink_commit_statuses.get(sink)) < _rank(status):
            raise _refused(
                about,
                f"sink {sink!r} is {shown(status)} and cannot go back to "
                f"{shown(wanted.sink_commit_statuses.get(sink))}",
            )
    for sink, epoch in stored.sink_epochs.items():
        if wanted.sink_epochs.get(sink, -1) < epoch:
            raise _refused(about, f"sink {sink!r} is at epoch {epoch} and cannot go back")
    return msgspec.structs.replace(
        stored, sink_commit_statuses=wanted.sink_commit_statuses, sink_epochs=wanted.sink_epochs
    )


def shown(status: SinkStatus | None) -> str:
    """A status in a word or two."""
    if isinstance(status, SinkFailed):
        return f"Failed ({status.reason})"
    return status or "unset"


def _rank(status: SinkStatus | None) -> int:
    if status is None:
        return 0
    return 2 if isinstance(status, SinkFailed) else {"Pending": 1, "Committed": 3}[status]


def _with_stamps_of(stored: CheckpointManifest, wanted: CheckpointManifest) -> CheckpointManifest:
    """`wanted` with what the store filled in on saving, where the caller has left it open."""
    stamped = stored.own
    own = msgspec.structs.replace(wanted.own, checksum=stamped.checksum)  # it covers the statuses and moves with them
    if not own.write_id:
        own = msgspec.structs.replace(
            own, write_id=stamped.write_id, generation=stamped.generation, sidecar=stamped.sidecar
        )
    return msgspec.structs.replace(
        wanted,
        holdfast=stored.holdfast if own == stored.own else own,
        size_bytes=wanted.size_bytes or stored.size_bytes,
        state_checksum=wanted.state_checksum or stored.state_checksum,
        vnode_count=wanted.vnode_count or stored.vnode_count,
        unknown=stored.unknown if wanted.unknown is msgspec.UNSET else wanted.unknown,
    )


def _refused(about: str, why: str) -> Invalid:
    return Invalid(
        f"{about} was not updated: {why}.",
        code="manifest.update-refused",
        about=about,
        unchanged="the stored manifest",
        next_step="load it again and change sink statuses from there",
    )
