"""Things that are counted, not timed: checkpoints read by a recovery, requests made by a save."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

import holdfast
from bench.measure import Row
from holdfast import CheckpointManifest
from holdfast.testing.faults.proxy import FaultyProxy
from servers.s3 import options_for, seaweedfs_server

HISTORY = 10_000
DAMAGED = 100


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [_recovery(Path(folder)), *_requests()]


def _recovery(folder: Path) -> Row:
    store = holdfast.open_store(folder, max_retained=None)
    store.save(CheckpointManifest.new(1, 1))
    document = folder / "checkpoints/checkpoint_000001"
    for number in range(2, HISTORY - DAMAGED):
        shutil.copytree(document, folder / f"checkpoints/checkpoint_{number:06}")
    good = HISTORY - DAMAGED
    store.save(CheckpointManifest.new(good, good))
    for number in range(good + 1, HISTORY + 1):
        shutil.copytree(document, folder / f"checkpoints/checkpoint_{number:06}")  # says it is checkpoint 1: damaged
    reads: list[str] = []
    objects = store.objects
    read = objects.read

    def counted(key: str, *, limit: int) -> bytes:
        reads.append(key)
        return read(key, limit=limit)

    objects.read = counted  # type: ignore[method-assign]
    report = store.recover_latest_validated()
    right = report.chosen_id == good and report.examined == len(reads) == DAMAGED + 1
    return Row(
        "recovery when the newest 100 of 10,000 are damaged",
        f"{len(reads)} read",
        "101 read",
        right,
        f"chose {report.chosen_id} in {report.elapsed:.2f} s",
    )


def _requests() -> list[Row]:
    with seaweedfs_server() as server, FaultyProxy(server.endpoint) as proxy:
        address = f"s3://{server.new_bucket()}/bench"
        store = holdfast.open_store(address, options=options_for(proxy.endpoint))
        plain = _most_requests(proxy, lambda n: store.save(CheckpointManifest.new(n, n)), range(1, 21))
        state = _most_requests(
            proxy, lambda n: store.save_with_state(CheckpointManifest.new(n, n), [b"state"]), range(21, 41)
        )
        store.claim()
        claimed = _most_requests(proxy, lambda n: store.save(CheckpointManifest.new(n, n)), range(41, 61))
        store.claim(recheck_after=1.0)  # as a pipeline does
        epoch = _most_requests(proxy, lambda n: _epoch(store, n), range(61, 81))
        looks = _most_requests(proxy, lambda n: _epoch(store, n), range(81, 101), only="lease")
    return [
        Row("requests per save on S3, the most of 20, retention included", str(plain), "<= 3", plain <= 3),
        Row("the same with a sidecar", str(state), "<= 4", state <= 4),
        Row("the same on a store that was claimed, without a sidecar", str(claimed), "<= 4", claimed <= 4),
        Row(
            "listings of the lease per epoch on S3, the most of 20",
            str(looks),
            "<= 2",
            looks <= 2,
            f"of {epoch} requests in all",
        ),
    ]


def _epoch(store: holdfast.CheckpointStore, number: int) -> None:
    """What a pipeline without operators asks of its store."""
    store.check_lease()
    batcher = holdfast.CheckpointBatcher(store)
    batcher.add("state/0", b"a file")
    batcher.flush(number)
    manifest = CheckpointManifest.new(number, number, timestamp_ms=1).with_batches(batcher.flushed(number))
    store.save(msgspec.structs.replace(manifest, sink_commit_statuses={"lake": "Pending"}))
    store.check_lease()
    store.update_manifest(msgspec.structs.replace(manifest, sink_commit_statuses={"lake": "Committed"}))


def _most_requests(proxy: FaultyProxy, save: Callable[[int], None], ids: range, *, only: str = "") -> int:
    most = 0
    for number in ids:
        before = len(proxy.requests)
        save(number)
        most = max(most, sum(only in str(request) for request in proxy.requests[before:]))
    return most
