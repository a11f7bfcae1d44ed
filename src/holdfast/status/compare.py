"""The differences between the manifests of two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.checkpoints.manifest import CheckpointManifest, ConnectorCheckpoint
from holdfast.status import format
from holdfast.status.checkpoints import CheckpointDetails, OpenedStore, load_checkpoint

How = Literal["added", "removed", "changed", "unknown"]
MOST_DIGITS = 40


class ManifestChange(msgspec.Struct, frozen=True):
    """One difference. `unknown`: the manifests do not record enough to tell."""

    section: str
    name: str
    how: How
    before: str | None = None
    after: str | None = None
    delta: int | None = None
    """`after - before`, where both are whole numbers."""


class CheckpointDiff(msgspec.Struct, frozen=True):
    """What changed from one checkpoint to another."""

    old: CheckpointDetails
    new: CheckpointDetails
    changes: list[ManifestChange]

    @property
    def size_delta(self) -> int:
        return self.new.size_bytes - self.old.size_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "from": _identity(self.old.manifest),
            "to": _identity(self.new.manifest),
            "size_bytes": {"from": self.old.size_bytes, "to": self.new.size_bytes, "delta": self.size_delta},
            "changes": msgspec.to_builtins(self.changes),
        }


def _identity(manifest: CheckpointManifest) -> dict[str, int]:
    return {
        "checkpoint_id": manifest.checkpoint_id,
        "epoch": manifest.epoch,
        "timestamp_ms": manifest.timestamp_ms,
    }


def diff_checkpoints(opened: OpenedStore, old: int | Literal["latest"], new: int | Literal["latest"]) -> CheckpointDiff:
    """Load two checkpoints and compare them."""
    before, after = load_checkpoint(opened, old), load_checkpoint(opened, new)
    return CheckpointDiff(before, after, compare(before.manifest, after.manifest))


def compare(old: CheckpointManifest, new: CheckpointManifest) -> list[ManifestChange]:
    """All differences except id, epoch, time and size: sources and sinks first, configuration last. Pure.

    Does not guarantee to find a change inside a sidecar that neither manifest has a hash for: that is `unknown`.
    """
    return [
        *_values("sources", _offsets(old.source_offsets), _offsets(new.source_offsets)),
        *_values("sinks", _sinks(old), _sinks(new)),
        *_operators(old, new),
        *_values("watermarks", _watermarks(old), _watermarks(new)),
        *_values("reference tables", _offsets(old.table_offsets), _offsets(new.table_offsets)),
        *_names("topology", "source", old.source_names, new.source_names),
        *_names("topology", "sink", old.sink_names, new.sink_names),
        *_values("configuration", _configuration(old), _configuration(new)),
    ]


def _values(section: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[ManifestChange]:
    for name in sorted(old.keys() | new.keys(), key=format.natural):
        before, after = old.get(name), new.get(name)
        if before is None:
            yield ManifestChange(section, name, "added", None, after)
        elif after is None:
            yield ManifestChange(section, name, "removed", before, None)
        elif before != after:
            yield ManifestChange(section, name, "changed", before, after, _delta(before, after))


def _delta(before: str, after: str) -> int | None:
    if max(len(before), len(after)) > MOST_DIGITS:
        return None
    if not all(text.isascii() and text.removeprefix("-").isdigit() for text in (before, after)):
        return None
    return int(after) - int(before)


def _names(section: str, noun: str, old: list[str], new: list[str]) -> Iterator[ManifestChange]:
    for name in sorted({*old} ^ {*new}):
        yield ManifestChange(section, f"{noun} {name}", "removed" if name in old else "added")


def _offsets(connectors: Mapping[str, ConnectorCheckpoint]) -> dict[str, str]:
    return {
        f"{name} [{partition}]": offset
        for name, connector in connectors.items()
        for partition, offset in connector.offsets.items()
    }


def _sinks(manifest: CheckpointManifest) -> dict[str, str]:
    found = {f"{name} epoch": str(epoch) for name, epoch in manifest.sink_epochs.items()}
    statuses = manifest.sink_commit_statuses.items()
    return found | {f"{name} status": format.sink_status(status) for name, status in statuses}


def _watermarks(manifest: CheckpointManifest) -> dict[str, str]:
    found = {f"source {name}": str(mark) for name, mark in manifest.source_watermarks.items()}
    return found | ({} if manifest.watermark is None else {"pipeline": str(manifest.watermark)})


def _configuration(manifest: CheckpointManifest) -> dict[str, str]:
    found = {
        "pipeline hash": "" if manifest.pipeline_hash is None else f"{manifest.pipeline_hash:016x}",
        "workdir": manifest.table_store_checkpoint_path or "",
        "partitions": str(manifest.vnode_count) if manifest.vnode_count else "",
        "generation": str(manifest.own.generation or ""),
        "lineage": str(manifest.own.lineage or ""),
        "format version": str(manifest.version),
    }
    return {name: value for name, value in found.items() if value}


class _State(msgspec.Struct, frozen=True):
    bytes: int
    identity: str | None
    """Equal for equal state; None if the manifest does not record it."""
    family: str = ""
    """Only identities of the same family can be compared."""


def _states(manifest: CheckpointManifest) -> dict[str, _State]:
    found = {}
    for name, operator in manifest.operator_states.items():
        if operator.external:
            found[name] = _State(operator.external_length, None)
        else:
            found[name] = _State(len(operator.decode_inline() or b""), operator.state_b64 or "", "inline")
    for name, version in manifest.own.states.items():
        found[name] = _State(version.bytes, version.sha256, "sha256")
    return found


def _size(state: _State | None) -> str | None:
    return format.size(state.bytes) if state else None


def _operators(old: CheckpointManifest, new: CheckpointManifest) -> Iterator[ManifestChange]:
    before, after = _states(old), _states(new)
    same_sidecar = old.state_checksum is not None and old.state_checksum == new.state_checksum
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            how: How = "added" if a is None else "removed"
            yield ManifestChange("operators", name, how, _size(a), _size(b))
        elif a.bytes != b.bytes:
            yield ManifestChange(
                "operators", name, "changed", f"{a.bytes} bytes", f"{b.bytes} bytes", delta=b.bytes - a.bytes
            )
        elif a.identity is not None and b.identity is not None and a.family == b.family:
            if a.identity != b.identity:
                yield ManifestChange(
                    "operators", name, "changed", f"{a.bytes} bytes", f"{b.bytes} bytes, other content"
                )
        elif not same_sidecar and a.bytes:
            why = f"{a.bytes} bytes in both; whether the content differs is not recorded"
            yield ManifestChange("operators", name, "unknown", None, why)
