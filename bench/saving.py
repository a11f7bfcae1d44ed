"""Saving: against a floor that does the same file-system calls by hand, against LaminarDB, and with a long history."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import laminardb

import holdfast
from bench.measure import Row, in_turns
from holdfast import CheckpointManifest

ROUNDS = 300


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return [
            _against_floor(Path(folder, "a")),
            _against_laminardb(Path(folder, "b")),
            _with_history(Path(folder, "c")),
        ]


def _against_floor(folder: Path) -> Row:
    store = holdfast.open_store(folder / "ours")
    ids = itertools.count(1)
    store.save(CheckpointManifest.new(next(ids), 1))
    body = (folder / "ours/checkpoints/checkpoint_000001/manifest.json").read_bytes()
    floor = _Floor(folder / "floor", body)
    ours, theirs = in_turns(lambda: store.save(CheckpointManifest.new(n := next(ids), n)), floor.save, rounds=ROUNDS)
    ratio = ours / theirs
    return Row(
        "save with pointer, local disk, against the same calls by hand",
        f"{ratio:.2f} x",
        "<= 1.5 x",
        ratio <= 1.5,
        f"{ours * 1e3:.2f} ms against {theirs * 1e3:.2f} ms",
    )


class _Floor:
    """The least that the contract needs: exclusive creation, every file and directory synced, three kept."""

    def __init__(self, folder: Path, body: bytes) -> None:
        self._folder = str(folder / "checkpoints")
        self._body = body
        self._next = 1
        os.makedirs(self._folder)

    def save(self) -> None:
        name = f"checkpoint_{self._next:06}"
        folder = os.path.join(self._folder, name)
        os.mkdir(folder)
        _write(folder + "/manifest.tmp", self._body)
        os.link(folder + "/manifest.tmp", folder + "/manifest.json")
        os.unlink(folder + "/manifest.tmp")
        _sync(folder)
        _sync(self._folder)
        _write(self._folder + "/latest.tmp", name.encode())
        os.rename(self._folder + "/latest.tmp", self._folder + "/latest.txt")
        _sync(self._folder)
        if self._next > 3:
            old = os.path.join(self._folder, f"checkpoint_{self._next - 3:06}")
            os.unlink(old + "/manifest.json")
            os.rmdir(old)
        self._next += 1


def _write(path: str, body: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, body)
    os.fsync(descriptor)
    os.close(descriptor)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _against_laminardb(folder: Path) -> Row:
    config = laminardb.LaminarConfig(storage_dir=str(folder / "theirs"), checkpoint_interval_ms=3_600_000)
    connection = laminardb.open("bench", config=config)
    connection.execute("CREATE SOURCE readings (id BIGINT, value DOUBLE)")
    connection.execute("CREATE STREAM totals AS SELECT id, SUM(value) AS total FROM readings GROUP BY id")
    connection.start()
    store = holdfast.open_store(folder / "ours")
    ids = itertools.count(1)
    ours, theirs = in_turns(
        lambda: store.save(CheckpointManifest.new(n := next(ids), n)), connection.checkpoint, rounds=ROUNDS
    )
    connection.close()
    ratio = ours / theirs
    return Row(
        "save with pointer, local disk, against checkpoint() of an idle LaminarDB",
        f"{ratio:.2f} x",
        "<= 0.95 x",
        ratio <= 0.95,
        f"{ours * 1e3:.2f} ms against {theirs * 1e3:.2f} ms",
    )


def _with_history(folder: Path) -> Row:
    long, short = _filled(folder / "long", 10_000), _filled(folder / "short", 10)
    long_ids, short_ids = itertools.count(10_001), itertools.count(11)  # consecutive, as a pipeline's are
    ours, theirs = in_turns(
        lambda: long.save(CheckpointManifest.new(n := next(long_ids), n)),
        lambda: short.save(CheckpointManifest.new(n := next(short_ids), n)),
        rounds=ROUNDS,
    )
    ratio = ours / theirs
    return Row(
        "save with 10,000 checkpoints in the store, against 10",
        f"{ratio:.2f} x",
        "<= 1.2 x",
        ratio <= 1.2,
        f"{ours * 1e3:.2f} ms against {theirs * 1e3:.2f} ms",
    )


def _filled(folder: Path, count: int) -> holdfast.CheckpointStore:
    """A store with a history, copied rather than saved: syncing ten thousand times proves nothing here."""
    store = holdfast.open_store(folder, max_retained=20_000)
    store.save(CheckpointManifest.new(1, 1))
    first = folder / "checkpoints/checkpoint_000001"
    for number in range(2, count + 1):
        shutil.copytree(first, folder / f"checkpoints/checkpoint_{number:06}")
    return holdfast.open_store(folder, max_retained=20_000)
