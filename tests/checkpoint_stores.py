"""Small checkpoint stores, what lies where in one, and ways to damage it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import CheckpointManifest, ConnectorCheckpoint, OperatorCheckpoint

EPOCH_ONE = 1_700_000_000_000


def manifest(number: int, **changes: Any) -> CheckpointManifest:
    """A checkpoint of a small pipeline: two sources, two sinks."""
    plain = CheckpointManifest.new(number, number * 10, timestamp_ms=EPOCH_ONE + number * 60_000)
    settings: dict[str, Any] = {
        "source_offsets": {
            "orders": ConnectorCheckpoint({"0": str(1000 * number), "1": str(900 * number)}, number * 10),
            "clicks": ConnectorCheckpoint({"file": f"part-{number}"}, number * 10),
        },
        "source_names": ["clicks", "orders"],
        "sink_names": ["lake", "pg"],
        "sink_epochs": {"lake": number * 10, "pg": number * 10},
        "sink_commit_statuses": {"lake": "Committed", "pg": "Committed"},
        "watermark": EPOCH_ONE + number,
        "pipeline_hash": 0xFEED,
    }
    return msgspec.structs.replace(plain, **settings | changes)


def fill(address: str, count: int = 3, **options: Any) -> None:
    """Checkpoints 1 to `count`, each with a sidecar."""
    store = holdfast.open_store(address, max_retained=None, **options)
    for number in range(1, count + 1):
        state = bytes([number]) * 5000
        operators = {"agg": OperatorCheckpoint.external_slice(0, len(state)), "tiny": OperatorCheckpoint.inline(b"t")}
        store.save_with_state(manifest(number, operator_states=operators), [state])


def manifest_path(store: Path, number: int) -> Path:
    return store / f"checkpoints/checkpoint_{number:06}/manifest.json"


def sidecar_path(store: Path, number: int) -> Path:
    return store / f"checkpoints/checkpoint_{number:06}/state.bin"


def flip(path: Path, position: int = 7) -> None:
    """Damage one bit."""
    body = bytearray(path.read_bytes())
    body[position] ^= 1
    path.write_bytes(body)


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every entry below a directory, with what must not change when somebody only looks."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [root, *root.rglob("*")]
    }
