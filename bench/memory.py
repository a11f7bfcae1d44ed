"""Memory of a driver's Python process while much state is captured, compared and restored.

    make bench ARGS=memory                                         # a gigabyte of state
    PYTHONPATH=tests .venv/bin/python -m bench.memory 5            # five of them

A process of its own does each on a workdir made by hand, and is looked at every 50 ms. State of RocksDB is many files
of 64 MiB, HDFS-backed state a few as large as the state; none of it can be compressed, which is the worst case.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
from msgspec.structs import replace

import holdfast
from bench.measure import Row
from holdfast import CheckpointManifest
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.pipeline.workdir.restore import compare, restore
from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter
from workdir_files import OWNER, HandMade, archive, operator_metadata

STATE_BYTES = 1 << 30
SST_BYTES = 64 << 20
PARTITIONS = 2
LIMIT = 300 << 20
EVERY = 0.05
ACTS = ("capture", "compare", "restore")
BATCH = 1


def rows(state_bytes: int = STATE_BYTES) -> Iterator[Row]:
    for kind in ("rocksdb", "hdfs"):
        with tempfile.TemporaryDirectory() as folder:
            _make(HandMade(Path(folder, "workdir")), kind, state_bytes)
            for act in ACTS:
                idle, peak = _watch(act, folder)
                yield Row(
                    f"memory of a driver: {act}, {state_bytes / 2**30:g} GiB of {kind} state",
                    f"{(peak - idle) / 2**20:.0f} MiB",
                    f"<= {LIMIT >> 20} MiB",
                    peak - idle <= LIMIT,
                    f"above {idle / 2**20:.0f} MiB at rest, looked at every {EVERY * 1000:.0f} ms",
                )


def _make(made: HandMade, kind: str, state_bytes: int) -> None:
    """What Spark has written when batch 1 begins: version 1 of the state."""
    made.begin()
    made.partitions = PARTITIONS
    made.write("state/0/_metadata/metadata", operator_metadata("default", partitions=PARTITIONS))
    for partition in range(PARTITIONS):
        folder = f"state/0/{partition}"
        if kind == "hdfs":
            _write(made.root / folder / "1.delta", state_bytes // PARTITIONS)
            continue
        names = [f"{number:06}-uuid.sst" for number in range(state_bytes // PARTITIONS // SST_BYTES)]
        for name in names:
            _write(made.root / folder / "SSTs" / name, SST_BYTES)
        made.write(f"{folder}/1.zip", archive(*names))
    made.plan(0)
    made.commit(0)
    made.plan(BATCH)


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    piece = random.Random(str(path)).randbytes(1 << 20)  # farther apart than LZ4 looks back
    with open(path, "wb") as file:
        for start in range(0, size, len(piece)):
            file.write(piece[: size - start])


def _watch(act: str, folder: str) -> tuple[int, int]:
    """The resident size of a process before it acts, and the largest one while it does."""
    command = [sys.executable, "-m", "bench.memory", act, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise AssertionError(f"{act} has not come to its start")
        memory = psutil.Process(process.pid).memory_info
        idle = peak = memory().rss
        done = threading.Event()

        def look() -> None:
            nonlocal peak
            while not done.wait(EVERY):
                peak = max(peak, memory().rss)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            process.stdin.write("go\n")
            process.stdin.flush()
            said = process.stdout.readline()
        finally:
            done.set()
            looking.join()
        process.stdin.close()
    if process.returncode != 0 or said != "done\n":
        raise AssertionError(f"{act} failed ({process.returncode})")
    return idle, peak


def _act(act: str, folder: str) -> None:
    """In the process that is watched."""
    store = holdfast.open_store(f"{folder}/store")
    made = HandMade(Path(folder, "workdir" if act != "restore" else "restored"))
    print("ready", flush=True)
    sys.stdin.readline()
    if act == "capture":
        taken = WorkdirSnapshotter(made.workdir, store, is_stateful=True).snapshot(BATCH, BATCH + 1)
        section = HoldfastSection(batches=taken.batches, inherited=taken.inherited, live=taken.live)
        store.save(replace(CheckpointManifest.new(BATCH + 1, BATCH + 1), wal_position=BATCH, holdfast=section))
    else:
        assert store.recover_latest_validated().chosen_id == BATCH + 1
        chosen = store.load_latest()
        assert chosen is not None
        if act == "compare":
            assert compare(made.workdir, store.objects, chosen).difference is None
        else:
            restore(made.workdir, store.objects, chosen, OWNER)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    if sys.argv[1] in ACTS:
        _act(*sys.argv[1:])
    else:
        found = list(rows(int(sys.argv[1]) << 30))
        for row in found:
            print(f"{row.what}: {row.measured} (must reach {row.must_reach}; {row.detail})", flush=True)
        sys.exit(0 if all(row.reached for row in found) else 1)
