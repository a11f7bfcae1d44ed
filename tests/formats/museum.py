"""What the artefacts hold, and how they are put away and taken out again.

The generator writes these values; the tests compare what they find with them. The artefacts themselves stay as the
release that wrote them left them.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast import CheckpointManifest, ConnectorCheckpoint
from holdfast.projections import Event, Projection, View

HERE = Path(__file__).parent
ARTEFACTS = HERE / "artefacts"
FIXED = Path("/tmp/holdfast-museum")
"""Where artefacts lie that hold their own path: a pipeline's hash has the paths of its sources and sinks in it."""
T0 = 1_767_225_600.0
"""When everything was written: the beginning of 2026."""


def clock() -> float:
    return T0


# Putting away and taking out


def pack(folder: Path, name: str, *, without: Callable[[str], bool] = lambda _: False) -> None:
    """A directory as an archive: empty directories, symbolic links and times of change included, owners not."""

    def plain(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
        found.uid = found.gid = 0
        found.uname = found.gname = ""
        found.mtime = int(found.mtime)
        return None if without(found.name) else found

    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=plain)
    (ARTEFACTS / name).write_bytes(gzip.compress(body.getvalue(), mtime=0))


def unpack(name: str, folder: Path) -> Path:
    """The archive's content in a directory, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARTEFACTS / name) as archive:
        archive.extractall(folder, filter="fully_trusted")
    return folder


def put_json(name: str, value: Any) -> None:
    (ARTEFACTS / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def take_json(name: str) -> Any:
    return json.loads((ARTEFACTS / name).read_text())


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def to_bytes(text: str) -> bytes:
    return base64.b64decode(text)


@contextlib.contextmanager
def fixed_place(place: Path = FIXED) -> Iterator[Path]:
    """A fixed path, empty at first and gone afterwards. One process at a time has it: the others wait."""
    held = _locked(place)
    try:
        _empty(place)
        yield place
        _empty(place)
        place.rmdir()
    finally:
        os.close(held)


def _locked(place: Path) -> int:
    """A descriptor with a lock on the directory that has the name, not on one that somebody has just removed."""
    while True:
        place.mkdir(exist_ok=True)
        held = os.open(place, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held), os.stat(place)):
                return held
        os.close(held)


def _empty(place: Path) -> None:
    for path in place.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


# A checkpoint store


def manifest(number: int, **changes: Any) -> CheckpointManifest:
    """A checkpoint of a small pipeline: two sources, two sinks."""
    plain = CheckpointManifest.new(number, number * 10, timestamp_ms=int(T0 * 1000) + number * 60_000)
    settings: dict[str, Any] = {
        "source_offsets": {
            "orders": ConnectorCheckpoint({"0": str(1000 * number), "1": str(900 * number)}, number * 10),
            "clicks": ConnectorCheckpoint({"file": f"part-{number}"}, number * 10, {"connector": "json"}),
        },
        "source_names": ["clicks", "orders"],
        "sink_names": ["lake", "pg"],
        "sink_epochs": {"lake": number * 10, "pg": number * 10},
        "sink_commit_statuses": {"lake": "Committed", "pg": "Committed"},
        "watermark": int(T0 * 1000) + number,
        "pipeline_hash": 0xFEED,
    }
    return msgspec.structs.replace(plain, **settings | changes)


SIDECAR = bytes(range(256)) * 8
"""The state of checkpoint 1."""


def states(number: int) -> dict[str, bytes]:
    """The operators' states of checkpoints 2 to 4: one changes each time, one never, one is large and changes once."""
    return {"counter": b"%d" % number, "fixed": b"the same in all", "large": bytes(1 << 20) + b"%d" % (number // 4)}


OLD_BATCH = {"partition-0": b"zero" * 50, "partition-1": b"one" * 50}
"""Of checkpoint 5, in version 1 of the format."""
BATCH = {"partition-1": b"newer one" * 20, "schlüssel": bytes(100)}
"""Likewise, in version 2."""
LATER_BATCH = {"partition-2": b"two" * 70}
"""Of checkpoint 6, which inherits the others."""


# An index

CONFIGURATION = 0x1234_5678_9ABC_DEF0
POSITION = b"\x00\x00\x00\x2a binary \xff"
RESULTS = {b"order-1": b"12.50", b"order-2": b"", b"\x00\xff": b"\xff\x00" * 40, "größe".encode(): b"8" * 300}


# Events

FAILS = "poison"


class Turnover(Projection):
    """Cents per stream."""

    name = "turnover"

    def handle(self, event: Event, view: View) -> None:
        if event.type == FAILS:
            raise ValueError("cannot be read")
        key = event.stream.encode()
        view.put(key, b"%d" % (int(view.get(key) or 0) + event.json()["cents"]))


class NetTurnover(Turnover):
    """The same in euros, as another version."""

    version = 2

    def handle(self, event: Event, view: View) -> None:
        if event.type != FAILS:
            key = event.stream.encode()
            view.put(key, b"%.2f" % (float(view.get(key) or 0) + event.json()["cents"] / 100))


class Listed(Projection):
    """Orders as a table, where there is SQL."""

    name = "listed"
    streams = "order-"

    def handle(self, event: Event, view: View) -> None:
        table = view.table("orders")
        view.execute(f"CREATE TABLE IF NOT EXISTS {table} (stream TEXT, position INTEGER)")
        view.execute(f"INSERT INTO {table} VALUES (?, ?)", (event.stream, event.position))


EVENTS: list[tuple[str, str, Any]] = [
    ("order-1", "placed", {"cents": 100}),
    ("order-1", "paid", {"cents": 250}),
    ("order-2", "placed", {"cents": 999}),
    ("order-1", FAILS, b"\x00\xff"),
    ("cart-ä", "filled", {"cents": 5}),
    ("order-2", "paid", {"cents": 1}),
    ("order-3", "placed", {"cents": 30}),
]
"""By position: stream, type, payload."""
SEEN = 6
"""How many of them the projections have handled."""
WORKER = "museum:17"
"""Who had the lease of the first projection, half a minute long."""
REBUILT = 4
"""How far the second version had come beside the first."""


def sums(events: list[tuple[str, str, Any]]) -> Mapping[bytes, int]:
    """Cents per stream."""
    found: dict[bytes, int] = {}
    for stream, kind, payload in events:
        if kind != FAILS:
            found[stream.encode()] = found.get(stream.encode(), 0) + payload["cents"]
    return found


# Servers


def restore_redis(client: Any) -> None:
    """The keys of both indexes, as they were."""
    for key, found in take_json("index-redis.json").items():
        value = found["value"]
        client.delete(key)
        match found["type"]:
            case "hash":
                client.hset(key, mapping={to_bytes(name): to_bytes(item) for name, item in value})
            case "zset":
                client.zadd(key, {to_bytes(member): score for member, score in value})
            case "list":
                client.rpush(key, *map(to_bytes, value))
            case _:
                client.set(key, to_bytes(value))


def restore_postgres(dsn: str, name: str) -> None:
    """The dump of a whole database, into an empty one."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((ARTEFACTS / name).read_bytes())
