"""Checks of what callers pass in, before anything is tried. Each failure is `Invalid` and names the argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.checkpoints.manifest import CheckpointManifest
from holdfast.errors import Invalid
from holdfast.storage.objects.store import Bytes

BUFFERS = (bytes, bytearray, memoryview)


def check_type(manifest: Any) -> None:
    """Refuse anything but a manifest, such as the None of a checkpoint that is not there."""
    if not isinstance(manifest, CheckpointManifest):
        raise _refused("manifest", f"a CheckpointManifest is needed, not {_named(manifest)}")


def check_well_formed(manifest: CheckpointManifest) -> None:
    """Refuse a manifest whose fields hold what they cannot, such as a status that is none."""
    problems = [issue.message for issue in manifest.validate() if issue.is_fatal]
    if problems:
        raise _refused("manifest", "; ".join(problems))


def as_chunks(chunks: Any) -> list[Bytes]:
    """A sidecar's chunks as a list; one buffer alone is one chunk."""
    if isinstance(chunks, BUFFERS):
        return [chunks]
    if isinstance(chunks, str) or not hasattr(chunks, "__iter__"):
        raise _refused("state_data", f"a list of bytes is needed, not {_named(chunks)}")
    found = list(chunks)
    for chunk in found:
        if not isinstance(chunk, BUFFERS):
            raise _refused("state_data", f"each chunk must be bytes, not {_named(chunk)}")
    return found


def check_states(states: Any) -> None:
    """Operator names to bytes."""
    if not isinstance(states, Mapping):
        raise _refused("states", f"a mapping of operator names to bytes is needed, not {_named(states)}")
    for name, data in states.items():
        if not isinstance(name, str) or not isinstance(data, bytes):
            raise _refused("states", f"operator {name!r} must be text and its state bytes, not {_named(data)}")


def check_retained(max_retained: int | None) -> int | None:
    """How many complete checkpoints to keep; None and 0 mean all."""
    if max_retained is None or max_retained == 0:
        return None
    return check_count("max_retained", max_retained, 2**63)


def check_count(name: str, value: int, most: int) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise _refused(name, f"it must be a whole number from 1 to {most}, not {value!r}")
    return value


def check_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise _refused(name, f"it must be a number of seconds, 0 or more, not {value!r}")
    return float(value)


def _named(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _refused(name: str, why: str) -> Invalid:
    return Invalid(f"{name}: {why}.", code="argument.refused", about=name, unchanged="the store")
