"""Moving state: flushing a batch, and verifying a large sidecar in little memory."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile

import google_crc32c
import lz4.block

import holdfast
from bench.measure import Row, in_turns
from holdfast import CheckpointBatcher, CheckpointManifest

FLUSH_BYTES = 64 << 20
SIDECAR_BYTES = 1 << 30
MEMORY_LIMIT = 100 << 20


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [_flush(folder), *_verify(folder)]


def _flush(folder: str) -> Row:
    entries = [(f"partition-{number}/agg", _state(number)) for number in range(64)]
    frames = b"".join(
        len(key).to_bytes(4, "little") + key.encode() + len(data).to_bytes(4, "little") + data for key, data in entries
    )
    epoch = 0
    batcher = CheckpointBatcher(folder)

    def fill() -> None:
        nonlocal batcher
        if batcher.is_empty:
            batcher = CheckpointBatcher(folder)
            for key, data in entries:
                batcher.add(key, data)

    def ours() -> None:
        nonlocal epoch
        epoch += 1
        batcher.flush(epoch)

    def theirs() -> None:
        google_crc32c.value(lz4.block.compress(frames, store_size=True))

    took, floor = in_turns(ours, theirs, rounds=15, prepare=fill)
    ratio = floor / took
    return Row(
        "batch flush to local disk, 64 MiB of state, against LZ4 + CRC32C alone",
        f"{ratio:.2f} x",
        ">= 0.8 x",
        ratio >= 0.8,
        f"{len(frames) / took / 1e6:.0f} MB/s against {len(frames) / floor / 1e6:.0f} MB/s, "
        f"compressed to {len(lz4.block.compress(frames)) / len(frames):.0%}",
    )


def _state(seed: int) -> bytes:
    """A partition of windowed aggregates, the way a state store would hold them: about a mebibyte of rows."""
    chance = random.Random(seed)
    rows = []
    size = 0
    while size < FLUSH_BYTES // 64:
        row = json.dumps(
            {
                "key": f"shop-{chance.randrange(10_000)}",
                "window": 1_700_000_000 + 60 * chance.randrange(10_000),
                "count": chance.randrange(1000),
                "total": round(chance.random() * 1e4, 2),
            }
        ).encode()
        rows.append(row)
        size += len(row)
    return b"".join(rows)


def _verify(folder: str) -> list[Row]:
    store = holdfast.open_store(folder + "/verify")
    chunk = random.Random(1).randbytes(16 << 20)
    store.save_with_state(CheckpointManifest.new(1, 1), [chunk] * (SIDECAR_BYTES // len(chunk)))

    def theirs() -> None:
        digest = hashlib.sha256()
        for _ in range(SIDECAR_BYTES // len(chunk)):
            digest.update(chunk)
        digest.hexdigest()

    def ours() -> None:
        if not store.validate_checkpoint(1).valid:
            raise AssertionError("the sidecar must verify")

    took, floor = in_turns(ours, theirs, rounds=5)
    ratio = floor / took
    grown = _memory_of_verifying(folder + "/verify")
    return [
        Row(
            "deep verification of a 1 GiB sidecar, against hashlib's SHA-256",
            f"{ratio:.2f} x",
            ">= 0.9 x",
            ratio >= 0.9,
            f"{SIDECAR_BYTES / took / 1e6:.0f} MB/s against {SIDECAR_BYTES / floor / 1e6:.0f} MB/s",
        ),
        Row(
            "memory of a process that verifies it",
            f"{grown / 2**20:.0f} MiB",
            "< 100 MiB",
            grown < MEMORY_LIMIT,
            "peak resident size of the whole process",
        ),
    ]


def _memory_of_verifying(folder: str) -> int:
    script = (
        "import re, sys, holdfast\n"
        "assert holdfast.open_store(sys.argv[1]).validate_checkpoint(1).valid\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]) * 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], check=True, capture_output=True, text=True)
    return int(done.stdout)
