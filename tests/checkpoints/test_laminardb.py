"""Directories that LaminarDB wrote: read field by field, verified, recovered, and left as they are."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus, open_store
from holdfast.checkpoints.manifest import InFlightRecord
from holdfast.testing.conformance.checkpoints.subject import CREATED_MS, StoreUnderTest, manifest, with_everything
from places import LocalPlace, MemoryPlace

WRITE = """
import sys, laminardb, pyarrow, deltalake
root, lake = sys.argv[1:]
deltalake.write_deltalake(lake, pyarrow.table({"id": pyarrow.array([], "int64"), "s": pyarrow.array([], "float64")}))
connection = laminardb.open("x", config=laminardb.LaminarConfig(storage_dir=root, checkpoint_interval_ms=3600_000))
for statement in (
    "CREATE SOURCE sensors (id BIGINT, ts TIMESTAMP, value DOUBLE, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)",
    "CREATE STREAM agg AS SELECT id, SUM(value) AS s FROM sensors GROUP BY id",
    f"CREATE SINK lake FROM agg INTO \\"delta-lake\\" ('table.path'='{lake}')",
):
    connection.execute(statement)
connection.start()
print([connection.checkpoint().checkpoint_id for _ in range(3)])
connection.close()
"""
RESUME = """
import sys, laminardb
config = laminardb.LaminarConfig(storage_dir=sys.argv[1], checkpoint_interval_ms=3600_000)
connection = laminardb.open("x", config=config)
connection.execute("CREATE SOURCE sensors (id BIGINT, value DOUBLE)")
connection.execute("CREATE STREAM agg AS SELECT id, SUM(value) AS s FROM sensors GROUP BY id")
connection.start()
print(connection.checkpoint().checkpoint_id)
connection.close()
"""
# The wheel writes every field but state_checksum, which came in the next release.
FIELDS = [field for field in manifest(1).__struct_fields__ if field not in ("unknown", "holdfast")]
MISSING_IN_THE_WHEEL = {"state_checksum", "vnode_count"}


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory: its bytes and when it was last written."""
    return {
        str(path.relative_to(root)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage directory of the real LaminarDB, with three checkpoints."""
    folder = tmp_path_factory.mktemp("laminardb")
    assert run_laminardb(WRITE, folder / "storage", folder / "lake") == "[1, 2, 3]"
    return folder / "storage"


def run_laminardb(program: str, *arguments: Path) -> str:
    """What the program printed last. In a process of its own: the wheel starts threads that never end."""
    if importlib.util.find_spec("laminardb") is None:
        pytest.skip("there is no laminardb wheel for this machine")
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_wheel_every_field(written: Path) -> None:
    store = open_store(written)
    assert store.list_ids() == [1, 2, 3]
    assert store.list() == [(1, 1), (2, 2), (3, 3)]
    for number in (1, 2, 3):
        raw = json.loads((written / f"checkpoints/checkpoint_{number:06}/manifest.json").read_bytes())
        found = store.load_by_id(number)
        assert found is not None
        assert set(raw) == set(FIELDS) - MISSING_IN_THE_WHEEL
        for field in raw:
            assert getattr(found, field) == raw[field], field
        assert found.sink_epochs == {"lake": number}
        assert found.sink_commit_statuses == {"lake": SinkCommitStatus.committed()}
        assert found.sink_names == ["lake"]
        assert (found.state_checksum, found.vnode_count) == (None, 0)
        assert not found.is_ours
        assert found.is_settled


def test_wheel_verified_and_recovered(written: Path) -> None:
    store = open_store(written)
    for number in store.list_ids():
        result = store.validate_checkpoint(number)
        assert result.valid, result.reason
        assert not any(issue.is_fatal for issue in result.issues)
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.skipped, report.examined) == (3, [], 1)
    assert store.latest_pointer() == 3
    latest = store.load_latest()
    assert latest is not None
    assert latest.checkpoint_id == 3
    assert store.load_state_data(3) is None
    assert store.load_states(3) == {}
    assert store.next_id() == 4


def test_wheel_looking_changes_nothing(written: Path) -> None:
    before = snapshot(written)
    store = open_store(written)
    store.load_latest()
    store.list()
    store.recover_latest_validated()
    store.validate_checkpoint(2)
    store.load_states(1)
    store.load_state_data(1)
    store.plan_prune(1)
    store.plan_cleanup(older_than=0)
    store.cleanup_orphans(older_than=0)
    assert snapshot(written) == before


def test_wheel_directory_goes_on_with_us(written: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name, (body, _) in snapshot(written).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if body:
            (copy / name).write_bytes(body)
    store = open_store(copy, max_retained=2)
    store.save(manifest(4))
    assert open_store(copy).list_ids() == [3, 4]
    assert (copy / "checkpoints/latest.txt").read_bytes() == b"checkpoint_000004"
    assert sorted(os.listdir(copy / "checkpoints")) == ["checkpoint_000003", "checkpoint_000004", "latest.txt"]


def test_wheel_goes_on_from_what_we_wrote(local: LocalPlace) -> None:
    """It takes its next id and epoch from the newest manifest it can read: ours, with everything in it."""
    ours = msgspec.structs.replace(
        with_everything(41),
        epoch=77,
        operator_states={"a": OperatorCheckpoint.inline(b"x"), "b": OperatorCheckpoint.external(0, 7)},
    )
    local.open().save_with_state(ours, [SIDECAR])
    before = snapshot(local.root / "checkpoints" / "checkpoint_000041")
    assert run_laminardb(RESUME, local.root) == "42"
    assert local.open().list() == [(41, 77), (42, 78)]
    assert snapshot(local.root / "checkpoints" / "checkpoint_000041") == before


# Releases that have no wheel, by hand: the shapes in facts/laminardb.md, section 2.

IN_0_18 = {
    "source_offsets": {"kafka": {"offsets": {"p0": "17"}, "epoch": 4, "metadata": {"topic": "t"}}},
    "sink_epochs": {"pg": 4},
    "sink_commit_statuses": {"pg": {"Failed": "timeout"}, "log": "Pending"},
    "table_offsets": {"customers": {"offsets": {"lsn": "0/16B"}, "epoch": 0, "metadata": {}}},
    "table_store_checkpoint_path": "/data/tables",
    "wal_position": 7,
    "per_core_wal_positions": [3, 9],
    "watermark": -1,
    "source_watermarks": {"kafka": 5},
    "source_names": ["kafka"],
    "sink_names": ["log", "pg"],
    "pipeline_hash": 2**64 - 1,
    "inflight_data": {"join": [{"input_id": 1, "data_b64": "AAE="}]},
    "size_bytes": 0,
    "is_incremental": False,
    "parent_id": None,
}
INLINE = {
    "state_b64": base64.b64encode(b"inline").decode(),
    "external": False,
    "external_offset": 0,
    "external_length": 0,
}
SLICE = {"state_b64": None, "external": True, "external_offset": 0, "external_length": 7}
SIDECAR = b"sidecar"
INLINE_SUM = hashlib.sha256(b"a\0" + base64.b64encode(b"inline") + b"\0").hexdigest()
SIDECAR_SUM = hashlib.sha256(SIDECAR).hexdigest()
MIXED_SUM = hashlib.sha256(INLINE_SUM.encode() + SIDECAR).hexdigest()

SHAPES: dict[str, dict[str, Any]] = {
    "only the four mandatory fields": {},
    "0.18: 22 fields, no state": IN_0_18 | {"operator_states": {}, "state_checksum": None},
    "0.18: sidecar": IN_0_18 | {"operator_states": {"b": SLICE}, "state_checksum": SIDECAR_SUM, "sidecar": SIDECAR},
    "0.18: inline and sidecar, checksum of the sidecar alone": IN_0_18
    | {"operator_states": {"a": INLINE, "b": SLICE}, "state_checksum": SIDECAR_SUM, "sidecar": SIDECAR},
    "0.18: inline without checksum": IN_0_18 | {"operator_states": {"a": INLINE}, "state_checksum": None},
    "0.18: incremental without a parent": IN_0_18 | {"operator_states": {"a": INLINE}, "is_incremental": True},
    "0.18: sidecar without checksum": IN_0_18 | {"operator_states": {"b": SLICE}, "sidecar": SIDECAR},
    "HEAD: inline": {"operator_states": {"a": INLINE}, "state_checksum": INLINE_SUM, "vnode_count": 256},
    "HEAD: sidecar": {
        "operator_states": {"b": SLICE},
        "state_checksum": SIDECAR_SUM,
        "vnode_count": 256,
        "sidecar": SIDECAR,
    },
    "HEAD: mixed": {
        "operator_states": {"a": INLINE, "b": SLICE},
        "state_checksum": MIXED_SUM,
        "vnode_count": 256,
        "sidecar": SIDECAR,
    },
    "HEAD: inline stamped as mixed": {
        "operator_states": {"a": INLINE},
        "state_checksum": MIXED_SUM,
        "vnode_count": 256,
        "sidecar": SIDECAR,
    },
    "HEAD: inline with a stray sidecar": {
        "operator_states": {"a": INLINE},
        "state_checksum": INLINE_SUM,
        "vnode_count": 256,
        "sidecar": b"left by another try",
    },
    "a later release with more": {"operator_states": {"a": INLINE}, "shards": {"a": [1]}, "vnode_count": 256},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shape_opens_verifies_and_is_recovered(place: StoreUnderTest, shape: str) -> None:
    fields = dict(SHAPES[shape])
    place.plant(4, **fields)
    sidecar = fields.pop("sidecar", None)
    before = {key: place.read(key) for key in place.all_keys()}
    store = place.open()
    assert store.list() == [(4, 4)]
    result = store.validate_checkpoint(4)
    assert result.valid, result.reason
    assert store.recover_latest_validated().chosen_id == 4
    found = store.load_by_id(4)
    assert found is not None
    assert found.state_checksum == fields.get("state_checksum")
    expected = {"a": b"inline", "b": SIDECAR}
    assert store.load_states(4) == {name: expected[name] for name in fields.get("operator_states", {})}
    assert store.load_state_data(4) == sidecar
    assert place.open_later().cleanup_orphans() == 0
    assert {key: place.read(key) for key in place.all_keys()} == before


@pytest.mark.parametrize("shape", [name for name, fields in SHAPES.items() if "sidecar" in fields])
def test_shape_with_damaged_state_is_noticed(place: StoreUnderTest, shape: str) -> None:
    place.plant(4, **SHAPES[shape])
    body = place.read(place.sidecar_key(4))
    place.overwrite(place.sidecar_key(4), body[:-1])
    stray = "stray" in shape
    assert place.open().validate_checkpoint(4).valid == stray
    place.overwrite(place.sidecar_key(4), body[:-1] + b"R")
    unchecked = stray or "without checksum" in shape
    assert place.open().validate_checkpoint(4).valid == unchecked


def test_0_18_every_field(place: StoreUnderTest) -> None:
    place.plant(4, **IN_0_18, operator_states={"a": INLINE, "b": SLICE})
    found = place.open().load_by_id(4)
    assert found is not None
    assert (found.version, found.checkpoint_id, found.epoch, found.timestamp_ms) == (1, 4, 4, CREATED_MS)
    assert found.source_offsets == {"kafka": ConnectorCheckpoint({"p0": "17"}, 4, {"topic": "t"})}
    assert found.table_offsets == {"customers": ConnectorCheckpoint({"lsn": "0/16B"})}
    assert found.sink_epochs == {"pg": 4}
    assert found.sink_commit_statuses == {"pg": SinkCommitStatus.failed("timeout"), "log": SinkCommitStatus.pending()}
    assert found.operator_states == {
        "a": OperatorCheckpoint.inline(b"inline"),
        "b": OperatorCheckpoint.external(0, 7),
    }
    assert found.inflight_data == {"join": [InFlightRecord(1, "AAE=")]}
    for field in ("wal_position", "per_core_wal_positions", "watermark", "source_watermarks", "pipeline_hash"):
        assert getattr(found, field) == IN_0_18[field]
    assert found.table_store_checkpoint_path == "/data/tables"
    assert (found.source_names, found.sink_names) == (["kafka"], ["log", "pg"])


@pytest.mark.parametrize("name", ["write_id", "checksum", "holdfast"])
def test_foreign_metadata_may_have_our_words(place: StoreUnderTest, name: str) -> None:
    value = "sha256:" + "0" * 64
    place.plant(4, source_offsets={"iceberg": {"offsets": {name: value}, "epoch": 1, "metadata": {name: value}}})
    result = place.open().validate_checkpoint(4)
    assert result.valid, result.reason
    found = place.open().load_by_id(4)
    assert found is not None
    assert found.source_offsets["iceberg"].metadata == {name: value}


def test_temporary_files_of_laminardb_are_left_until_asked(local: LocalPlace) -> None:
    local.plant(1)
    folder = local.root / "checkpoints/checkpoint_000001"
    (folder / "state.bin.tmp").write_bytes(b"half")
    assert local.open().list_ids() == [1]
    assert local.open_later().cleanup_orphans() == 1
    assert sorted(os.listdir(folder)) == ["manifest.json"]


def test_the_older_object_layout_opens_as_a_directory_layout(memory: MemoryPlace) -> None:
    """LaminarDB's first object layout had the folders of its directories."""
    objects = memory.open_objects()
    for number in (1, 2, 3):
        folder = f"checkpoints/checkpoint_{number:06}"
        document = {"version": 1, "checkpoint_id": number, "epoch": number, "timestamp_ms": 1}
        checksum = hashlib.sha256(b"state %d" % number).hexdigest()
        objects.create(f"{folder}/manifest.json", [json.dumps({**document, "state_checksum": checksum}).encode()])
        objects.create(f"{folder}/state.bin", [b"state %d" % number])
    objects.create("checkpoints/latest.txt", [b"checkpoint_000003"])
    store = open_store(memory.url, layout="directory")
    assert store.list() == [(1, 1), (2, 2), (3, 3)]
    assert store.load_state_data(2) == b"state 2"
    assert store.latest_pointer() == 3
    assert all(store.validate_checkpoint(number).valid for number in (1, 2, 3))
    assert store.prune(1) == 2
    assert [info.key for info in objects.list("")] == [
        "checkpoints/checkpoint_000003/manifest.json",
        "checkpoints/checkpoint_000003/state.bin",
        "checkpoints/latest.txt",
    ]
