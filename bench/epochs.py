"""Epochs on Spark: against a plain `foreachBatch` that writes the same files, with history, and what they write."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import lz4.block

import holdfast
from bench.measure import Row
from holdfast.base.steps import observe
from holdfast.pipeline import epoch as epoch_module
from holdfast.pipeline.workdir.snapshot import Snapshot, SnapshotBeside
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline

WARM_UP = 4
KEYS = 20_000


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, session(Path(folder)) as spark:
        for partitions, rounds in ((4, 15), (50, 8)):
            yield _one_sink(spark, Path(folder, f"one-{partitions}"), partitions, rounds)
        yield _two_sinks(spark, Path(folder, "two"))
        yield _beside(spark, Path(folder, "beside"))
        yield _captured_bytes(spark, Path(folder, "bytes"))
        yield _objects_per_epoch(spark, Path(folder, "objects"))
        yield _with_history(spark, Path(folder, "history"))
    with tempfile.TemporaryDirectory() as folder:
        yield _restore(Path(folder))


@contextmanager
def session(place: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(place / "local"),
        "spark.log.level": "ERROR",
        # An epoch without data after each one with data would only double the time that is needed.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("holdfast-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()


class Epochs:
    """A query over files of its own that runs one epoch when it is given one more file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.input = root / "in"
        self.input.mkdir(parents=True)
        self._fed = 0
        self.feed()

    def lines(self, number: int) -> Iterator[str]:
        """What the file of one epoch holds."""
        raise NotImplementedError

    def follow(self, query: Any, stop: Callable[[], object]) -> None:
        """The query that reads the files, once it has been started."""
        self.query, self.close = query, stop
        self._await(0)

    def feed(self) -> None:
        hidden = self.input / f".{self._fed:06}"
        hidden.write_text("\n".join(self.lines(self._fed)) + "\n")
        os.rename(hidden, self.input / f"{self._fed:06}.json")
        self._fed += 1

    def epoch(self) -> float:
        """Seconds of one more epoch, from its trigger until Spark counts it as done."""
        self.feed()
        return self._await(self._fed - 1)

    def _await(self, batch_id: int) -> float:
        while True:
            last = self.query.lastProgress
            if last is not None and last["batchId"] >= batch_id and last["numInputRows"]:
                return float(last["durationMs"]["triggerExecution"]) / 1000
            failure = self.query.exception()
            if failure is not None:
                raise failure
            time.sleep(0.01)


class Contender(Epochs):
    """Sums by key into files, with Holdfast or with nothing but `foreachBatch`."""

    def __init__(self, spark: Any, root: Path, partitions: int, *, sinks: int, is_ours: bool) -> None:
        from pyspark.sql import functions as f

        super().__init__(root)
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        stream = spark.readStream.schema("key int, amount int").option("maxFilesPerTrigger", 1).json(str(self.input))
        frame = stream.groupBy("key").agg(f.sum("amount").alias("total"))
        trigger = {"processingTime": "0 seconds"}
        if is_ours:
            pipeline = Pipeline(root.name, checkpoints=str(root / "store"))
            for number in range(sinks):
                pipeline.sink(f"files-{number}", FileSink(root / f"out-{number}"))
            run: Any = pipeline.start(frame, output_mode="update", trigger=trigger)
            self.follow(run._query_run.query, run.stop)
        else:
            writer = frame.writeStream.foreachBatch(_plain(root, sinks)).outputMode("update")
            query = writer.option("checkpointLocation", str(root / "workdir")).trigger(**trigger).start()
            self.follow(query, query.stop)

    def lines(self, number: int) -> Iterator[str]:
        return (json.dumps({"key": (n * 7919 + number) % KEYS, "amount": n}) for n in range(4000))


def _plain(root: Path, sinks: int) -> Callable[[Any, int], None]:
    def write(frame: Any, batch_id: int) -> None:
        if sinks > 1:
            frame = frame.persist()
        for number in range(sinks):
            frame.write.mode("append").parquet(str(root / f"out-{number}"))
        if sinks > 1:
            frame.unpersist()

    return write


def _epochs_in_turns(spark: Any, folder: Path, partitions: int, rounds: int, sinks: int) -> tuple[float, float]:
    plain = Contender(spark, folder / "plain", partitions, sinks=sinks, is_ours=False)
    ours = Contender(spark, folder / "ours", partitions, sinks=sinks, is_ours=True)
    return _medians(ours, plain, rounds)


def _medians(one: Contender, other: Contender, rounds: int) -> tuple[float, float]:
    """Seconds of an epoch of each, in turns, when both are warm. Closes them."""
    times: dict[Contender, list[float]] = {one: [], other: []}
    for turn in range(WARM_UP + rounds):
        for contender in (one, other)[:: 1 if turn % 2 else -1]:
            seconds = contender.epoch()
            if turn >= WARM_UP:
                times[contender].append(seconds)
    one.close()
    other.close()
    return statistics.median(times[one]), statistics.median(times[other])


def _compared(what: str, ours: float, plain: float, limit: float) -> Row:
    ratio = ours / plain
    detail = f"{ours:.2f} s against {plain:.2f} s"
    return Row(what, f"{ratio:.2f} x", f"<= {limit:.2f} x", ratio <= limit, detail)


def _one_sink(spark: Any, folder: Path, partitions: int, rounds: int) -> Row:
    ours, plain = _epochs_in_turns(spark, folder, partitions, rounds, sinks=1)
    return _compared(f"epoch with one file sink, {partitions} state partitions, against foreachBatch", ours, plain, 1.1)


def _two_sinks(spark: Any, folder: Path) -> Row:
    ours, plain = _epochs_in_turns(spark, folder, 4, 12, sinks=2)
    return _compared("epoch with two file sinks, against foreachBatch that writes both", ours, plain, 1.1)


class _TakenAfter(SnapshotBeside):
    """As in earlier releases: state is captured when the sinks have staged."""

    def begin(self) -> None:
        pass

    def result(self) -> Snapshot:
        super().begin()
        return super().result()


class CapturesAfter(Contender):
    def epoch(self) -> float:
        usual, epoch_module.SnapshotBeside = epoch_module.SnapshotBeside, _TakenAfter  # type: ignore[misc]
        try:
            return super().epoch()
        finally:
            epoch_module.SnapshotBeside = usual  # type: ignore[misc]


def _beside(spark: Any, folder: Path) -> Row:
    beside = Contender(spark, folder / "beside", 50, sinks=1, is_ours=True)
    after = CapturesAfter(spark, folder / "after", 50, sinks=1, is_ours=True)
    mine, before = _medians(beside, after, rounds=8)
    return _compared("epoch with capture beside the batch, against capture after it", mine, before, 1.0)


def _captured_bytes(spark: Any, folder: Path) -> Row:
    ours = Contender(spark, folder, 50, sinks=1, is_ours=True)
    store = holdfast.open_store(folder / "store")
    captured: dict[int, int] = {}
    for _ in range(12):
        ours.epoch()
        manifests = filter(None, map(store.load_by_id, store.list_ids()))
        captured |= {manifest.checkpoint_id: manifest.size_bytes for manifest in manifests}
    ours.close()
    newest = max(captured)
    # Checkpoint N has captured state up to version N-1.
    deltas = [path for path in (folder / "store" / "workdir" / "state").rglob("[0-9]*.*") if path.suffix != ".crc"]
    state = sum(path.stat().st_size for path in deltas if int(path.name.split(".")[0]) < newest)
    total = sum(captured.values())
    ratio = total / state
    detail = f"{total / newest / 1024:.0f} KiB against {state / newest / 1024:.0f} KiB an epoch, manifests included"
    return Row("bytes captured, against new state files", f"{ratio:.2f} x", "<= 1.10 x", ratio <= 1.1, detail)


def _objects_per_epoch(spark: Any, folder: Path) -> Row:
    ours = Contender(spark, folder, 200, sinks=1, is_ours=True)
    ours.epoch()
    written: list[str] = []
    names = {"batch.create", "manifest.create", "pointer.advance", "manifest.update", "sidecar.create"}
    remove = observe(lambda name, phase, _: written.append(name) if phase == "end" and name in names else None)
    ours.epoch()
    remove()
    ours.close()
    spark_files = len(list((folder / "store" / "workdir" / "state").rglob("2.delta")))
    detail = f"{', '.join(sorted(set(written)))}; Spark wrote {spark_files} state files"
    return Row(
        "objects per epoch, 200 state partitions", str(len(written)), "<= 5", len(written) <= 5 < spark_files, detail
    )


def _with_history(spark: Any, folder: Path) -> Row:
    """In turns, so that neither is measured on a warmer JVM or a busier machine than the other."""
    old = Contender(spark, folder / "old", 2, sinks=1, is_ours=True)
    for _ in range(990):
        old.epoch()
    young = Contender(spark, folder / "young", 2, sinks=1, is_ours=True)
    late, early = _medians(old, young, rounds=20)
    return _compared("epoch 1,000 against epoch 10", late, early, 1.15)


def _restore(folder: Path) -> Row:
    """Against its floor: the same reads, checksums, decompression and writes by hand, in as many threads."""
    from holdfast.pipeline.workdir.local import LocalWorkdir
    from holdfast.pipeline.workdir.owner import WorkdirOwner
    from holdfast.pipeline.workdir.restore import AT_ONCE, restore
    from holdfast.pipeline.workdir.snapshot import WorkdirSnapshotter

    source = LocalWorkdir(folder / "workdir")
    _make_state(source.path, 1 << 30)
    store = holdfast.open_store(folder / "store")
    snapshot = WorkdirSnapshotter(source, store).snapshot(1, 2)
    manifest = _with_position(holdfast.CheckpointManifest.new(1, 2).with_batches(snapshot.batches), 1)
    store.save(manifest)
    target, by_hand, copy = folder / "restored", folder / "by-hand", folder / "copy"
    objects = [folder / "store" / batch.key for batch in manifest.needed_batches]
    seconds = _in_turns(
        7,
        (lambda: restore(LocalWorkdir(target), store.objects, manifest, WorkdirOwner("bench", "bench")), target),
        (lambda: _unpack_by_hand(objects, by_hand, AT_ONCE), by_hand),
        (lambda: shutil.copytree(source.path, copy), copy),
    )
    ours, floor, copied = map(min, seconds)  # other programs only ever add to it
    ratio = ours / floor
    return Row(
        "restoring a workdir with 1 GiB of state, against its reads, CRC-32C, LZ4 and writes by hand",
        f"{ratio:.2f} x",
        "<= 1.25 x",
        ratio <= 1.25,
        f"{ours:.2f} s against {floor:.2f} s; copying the files takes {copied:.2f} s",
    )


def _in_turns(rounds: int, *contenders: tuple[Callable[[], object], Path]) -> list[list[float]]:
    """Seconds per round of each; what one made is removed before the next begins."""
    seconds: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for found, (run, made) in zip(seconds, contenders, strict=True):
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
            shutil.rmtree(made)
    return seconds


def _unpack_by_hand(objects: list[Path], root: Path, threads: int) -> None:
    """With a buffer per thread that is used again: fresh memory for every object takes twice as long."""
    own = threading.local()

    def unpack(path: Path) -> None:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(max(path.stat().st_size for path in objects)))
        _unpack_one_by_hand(path, root, own.buffer)

    with ThreadPoolExecutor(threads) as workers:
        for _ in workers.map(unpack, objects):
            pass


def _unpack_one_by_hand(path: Path, root: Path, buffer: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        _, _, _, size, checksum = struct.unpack("<4sIIII", file.read(20))
        length = file.readinto(buffer)
    body = buffer[:length]
    found = 0
    for start in range(0, length, 1 << 20):  # the library takes nothing but `bytes`
        found = google_crc32c.extend(found, bytes(body[start : start + (1 << 20)]))
    if found != checksum:
        raise ValueError(path)
    raw = memoryview(lz4.block.decompress(body[4:], uncompressed_size=size))
    at = 0
    while at < size:
        parts = []
        for _ in range(2):
            (length,) = struct.unpack_from("<I", raw, at)
            parts.append(raw[at + 4 : at + 4 + length])
            at += 4 + length
        target = root / str(parts[0], "utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb", buffering=0) as out:
            out.write(parts[1])


def _with_position(manifest: holdfast.CheckpointManifest, batch_id: int) -> holdfast.CheckpointManifest:
    import msgspec

    return msgspec.structs.replace(manifest, wal_position=batch_id)


def _make_state(root: Path, size: int) -> None:
    """A workdir with snapshots of 50 partitions that compress as little as Spark's do."""
    (root / "offsets").mkdir(parents=True)
    for number in (0, 1):
        (root / "offsets" / str(number)).write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n1')
    (root / "commits").mkdir()
    (root / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (root / "metadata").write_text('{"id":"bench"}')
    for partition in range(50):
        store = root / "state" / "0" / str(partition)
        store.mkdir(parents=True)
        (store / "1.snapshot").write_bytes(os.urandom(size // 50))
