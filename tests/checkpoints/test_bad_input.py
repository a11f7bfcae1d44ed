"""Bad input: a clear error that names the object, bounded memory, and the recovery walk goes on."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import BatchObject, CheckpointBatcher, CheckpointManifest, OperatorCheckpoint, open_store
from holdfast.checkpoints import manifest_json, read_batch
from holdfast.checkpoints.layout import DirectoryLayout
from holdfast.checkpoints.manifest import HoldfastSection, SidecarObject
from holdfast.checkpoints.store import CheckpointStore
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.storage.files.disk import Entry, PosixDisk
from holdfast.storage.objects import LocalObjects
from holdfast.testing.conformance.checkpoints.subject import (
    CREATED_MS,
    StoreUnderTest,
    manifest,
    pending,
    settled,
    with_everything,
)
from places import LocalPlace, MemoryPlace

MIB = 1 << 20
MANDATORY = {"version": 1, "checkpoint_id": 2, "epoch": 2, "timestamp_ms": CREATED_MS}


@contextmanager
def at_most(peak: int) -> Iterator[None]:
    """Fail if the block has more than so many bytes of memory at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()


def with_(**fields: Any) -> bytes:
    return json.dumps(MANDATORY | fields).encode()


def without(field: str) -> bytes:
    return json.dumps({name: value for name, value in MANDATORY.items() if name != field}).encode()


BAD_MANIFESTS: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n ",
    "cut": with_()[:-1],
    "cut in a string": with_(source_names=["orders"])[:-4],
    "trailing garbage": with_() + b"x",
    "two documents": with_() + with_(),
    "list": b"[1, 2]",
    "string": b'"manifest"',
    "null": b"null",
    "number": b"1",
    "NUL bytes": b"\x00" * 512,
    "latin-1": '{"version": 1, "x": "ä"}'.encode("latin-1"),
    "UTF-16": with_().decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + with_(),
    "lone surrogate": with_()[:-1] + b', "source_names": ["\\ud800"]}',
    "not a number": b'{"version": NaN}',
    "deep lists": b"[" * 200_000,
    "deep lists, closed": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep in an unknown field": with_()[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "version missing": without("version"),
    "checkpoint_id missing": without("checkpoint_id"),
    "epoch missing": without("epoch"),
    "timestamp_ms missing": without("timestamp_ms"),
    "version a string": with_(version="1"),
    "newer version": with_(version=2),
    "id a string": with_(checkpoint_id="2"),
    "id a float": with_(checkpoint_id=2.5),
    "id true": with_(checkpoint_id=True),
    "id null": with_(checkpoint_id=None),
    "id negative": with_(checkpoint_id=-2),
    "id of another": with_(checkpoint_id=3),
    "epoch 0": with_(epoch=0),
    "epoch negative": with_(epoch=-1),
    "epoch beyond 64 bits": with_(epoch=2**64),
    "epoch of 10,000 digits": b'{"version": 1, "checkpoint_id": 2, "timestamp_ms": 1, "epoch": ' + b"9" * 10_000 + b"}",
    "timestamp beyond 64 bits": with_(timestamp_ms=2**70),
    "offsets a list": with_(source_offsets=[]),
    "offsets of a string": with_(source_offsets={"a": "b"}),
    "offsets that are numbers": with_(source_offsets={"a": {"offsets": {"p0": 1}}}),
    "offsets missing": with_(source_offsets={"a": {"epoch": 1}}),
    "status unknown": with_(sink_commit_statuses={"a": "Done"}),
    "status a number": with_(sink_commit_statuses={"a": 1}),
    "operator a string": with_(operator_states={"a": "b"}),
    "operator null": with_(operator_states={"a": None}),
    "inline not base64": with_(operator_states={"a": {"state_b64": "%%%"}}),
    "inline cut base64": with_(operator_states={"a": {"state_b64": "AAA"}}),
    "slice negative": with_(operator_states={"a": {"external": True, "external_offset": -1, "external_length": 1}}),
    "slice beyond everything": with_(
        operator_states={"a": {"external": True, "external_offset": 2**63, "external_length": 2**63}}
    ),
    "slice of 10**30": with_(
        operator_states={"a": {"external": True, "external_offset": 10**30, "external_length": 10**30}}
    ),
    "positions negative": with_(per_core_wal_positions=[-1]),
    "hash a float": with_(pipeline_hash=0.5),
    "parent itself": with_(is_incremental=True, parent_id=2),
    "parent newer": with_(is_incremental=True, parent_id=9),
    "parent 0": with_(is_incremental=True, parent_id=0),
    "parent missing": with_(is_incremental=True, parent_id=1_000),
    "inflight not records": with_(inflight_data={"a": [1]}),
    "holdfast a string": with_(holdfast="x"),
    "holdfast without checksum": with_(holdfast={"write_id": "x"}),
    "holdfast with another checksum": with_(holdfast={"write_id": "x", "checksum": "sha256:" + "0" * 64}),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_bad_manifest(place: StoreUnderTest, name: str) -> None:
    place.open().save(manifest(1))
    key = place.manifest_key(2)
    place.overwrite(key, BAD_MANIFESTS[name])
    store = place.open()
    result = store.validate_checkpoint(2)
    assert not result.valid
    assert result.reason
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.examined, report.unreadable) == (1, 2, [])
    assert report.skipped == [(2, result.reason)]
    assert store.list_ids() == [1, 2]
    assert (1, 1) in store.list()
    for act in (store.load_latest, lambda: store.load_by_id(2), lambda: store.load_states(2)):
        with_our_error(act, key)
    assert place.open().prune(1) == 0
    assert place.open_later().cleanup_orphans() == 0
    place.open().save(manifest(3))
    assert place.open().recover_latest_validated().chosen_id == 3


def with_our_error(act: Callable[[], object], key: str) -> None:
    """Either it works, or the error is ours, short, and names the object."""
    shown = key
    try:
        act()
    except (Corrupt, NotFound) as error:
        shown = str(error)
    assert len(shown) < 2000
    assert key in shown or "operator" in shown or "Checkpoint 2 needs" in shown


@pytest.mark.parametrize(
    "field", [name for name in manifest(1).__struct_fields__ if name not in ("unknown", "holdfast")]
)
@pytest.mark.parametrize("value", [-1, 1.5, "x", [[]], {"a": 1}, True, {"a": {"b": {"c": []}}}], ids=repr)
def test_any_field_of_a_wrong_type_is_ours_to_report(memory: MemoryPlace, field: str, value: Any) -> None:
    memory.open().save(manifest(1))
    memory.overwrite(memory.manifest_key(2), with_(**{field: value}))
    memory.open().validate_checkpoint(2)
    assert memory.open().recover_latest_validated().chosen_id in (1, 2)
    memory.open().list()
    memory.open().prune(1)


# Hostile manifests whose checksum is right: anybody can compute one.


def plant_ours(place: StoreUnderTest, found: CheckpointManifest) -> None:
    place.overwrite(place.manifest_key(found.checkpoint_id), manifest_json.encode(found))


def hostile_keys(place: StoreUnderTest) -> list[str]:
    other = [place.manifest_key(1), place.sidecar_key(1), place.layout.pointer_key, "lease/x", "notes.txt"]
    return ["../outside", "/etc/passwd", "a/../../b", "", "a\x00b", "x" * 10_000, "checkpoints", *other]


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("kind", ["sidecar", "batch"])
def test_manifest_that_claims_what_is_not_its_own(place: StoreUnderTest, number: int, kind: str) -> None:
    key = hostile_keys(place)[number]
    place.open().save_with_state(manifest(1), [b"state"])
    place.overwrite("notes.txt", b"not ours")
    outside = Path(place.root).parent / "outside" if isinstance(place, LocalPlace) else None
    if outside:
        outside.write_bytes(b"not in the store")
    section = HoldfastSection(write_id="w-2", sidecar=SidecarObject(key, 5))
    if kind == "batch":
        section = HoldfastSection(write_id="w-2", batches=[BatchObject(key, 8, "00", 1)])
    plant_ours(place, manifest(2, holdfast=section))
    assert not place.open().validate_checkpoint(2).valid
    assert place.open().recover_latest_validated().chosen_id == 1
    place.open().load_state_data(2)
    store = place.open(max_retained=None)
    store.save(manifest(3))
    store.save(manifest(4))
    keep = {place.layout.pointer_key, "notes.txt", place.manifest_key(4)}
    place.open_later().prune(3)
    assert place.open().validate_checkpoint(1).valid, "pruning went by what a hostile manifest said"
    place.open_later().prune(1)
    place.open_later().cleanup_orphans()
    assert keep <= set(place.all_keys())
    if outside:
        assert outside.read_bytes() == b"not in the store"


@pytest.mark.parametrize(
    "section",
    [
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(1, 1, "00")}),
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(2, 1, "00")}),
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(99, 1, "00")}),
        HoldfastSection(write_id="w", states={"a": holdfast.checkpoints.manifest.StateVersion(0, 1, "00")}),
    ],
    ids=["not in the parent", "not here", "in the future", "nowhere"],
)
def test_manifest_that_claims_state_it_does_not_have(place: StoreUnderTest, section: HoldfastSection) -> None:
    place.open().save(manifest(1))
    plant_ours(place, manifest(2, is_incremental=True, parent_id=1, holdfast=section))
    assert not place.open().validate_checkpoint(2).valid
    assert place.open().recover_latest_validated().chosen_id == 1
    with pytest.raises(Corrupt):
        place.open().load_states(2)


def test_chain_of_thousands_is_no_recursion(memory: MemoryPlace) -> None:
    memory.plant(1)
    for number in range(2, 3000):
        memory.plant(number, is_incremental=True, parent_id=number - 1)
    assert memory.open().validate_checkpoint(2999).valid
    assert memory.open().load_states(2999) == {}
    memory.damage(memory.manifest_key(1))
    assert not memory.open().validate_checkpoint(2999).valid
    assert memory.open().prune(1) == 0


# Size


def test_manifest_larger_than_any_manifest(local: LocalPlace) -> None:
    local.open().save(pending(1))
    path = local.root / local.manifest_key(2)
    path.parent.mkdir()
    path.touch()
    os.truncate(path, 1 << 36)
    store = local.open()
    with at_most(4 * MIB):
        result = store.validate_checkpoint(2)
        assert not result.valid
        assert local.manifest_key(2) in result.reason
        assert store.recover_latest_validated().chosen_id == 1
        assert store.list() == [(1, 1)]
        with pytest.raises(Corrupt):
            store.load_by_id(2)
        with pytest.raises(Corrupt):
            store.update_manifest(manifest(2))
        store.prune(1)
        store.cleanup_orphans()
        with pytest.raises(HoldfastError):
            store.save(manifest(2))


def test_pointer_larger_than_any_pointer(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    os.truncate(local.root / local.layout.pointer_key, 1 << 36)
    with at_most(4 * MIB):
        assert local.open().latest_pointer() is None
        assert local.open().recover_latest_validated().chosen_id == 1
        local.open().save(manifest(2))
        assert local.open().next_id() == 3


def test_sidecar_larger_than_it_was(local: LocalPlace) -> None:
    local.open().save_with_state(manifest(1, operator_states={"a": OperatorCheckpoint.external(0, 5)}), [b"state"])
    os.truncate(local.root / local.sidecar_key(1), 1 << 36)
    with at_most(4 * MIB):
        assert not local.open().validate_checkpoint(1).valid
        assert local.open().load_states(1) == {"a": b"state"}


def test_sidecar_is_verified_in_bounded_memory(local: LocalPlace) -> None:
    chunk = bytes(MIB)
    local.open().save_with_state(manifest(1), [chunk] * 64)
    with at_most(16 * MIB):
        assert local.open().validate_checkpoint(1).valid


def test_manifest_near_the_limit_is_refused_before_anything_is_written(memory: MemoryPlace) -> None:
    huge = {"a": OperatorCheckpoint(state_b64="A" * (manifest_json.MAX_MANIFEST_BYTES + 4))}
    with pytest.raises(Invalid) as caught:
        memory.open().save(manifest(1, operator_states=huge))
    assert "limit" in str(caught.value)
    assert memory.all_keys() == []


@pytest.mark.parametrize("filler", ["[],", '"",', "0,", '{"a":0},'], ids=["lists", "strings", "numbers", "objects"])
def test_manifest_full_of_nothing_costs_in_proportion(memory: MemoryPlace, filler: str) -> None:
    body = with_()[:-1] + b', "x": [' + filler.encode() * (2 * MIB // len(filler)) + b"0]}"
    memory.overwrite(memory.manifest_key(2), body)
    store = memory.open()
    with at_most(100 * len(body)):
        store.validate_checkpoint(2)


@pytest.mark.parametrize(
    "body",
    [
        b"LCB1" + struct.pack("<IIII", 2, 1, 0xFFFFFFFF, 0),
        b"LCB1" + struct.pack("<IIII", 2, 0xFFFFFFFF, 0xFFFFFFFF, 0),
        b"LCB1" + struct.pack("<III", 1, 0xFFFFFFFF, 0xFFFFFFFF) + struct.pack("<I", 0xFFFFFFFF),
        b"LCB1",
        b"",
    ],
    ids=["4 GiB", "4 GiB in as many entries", "version 1", "magic alone", "empty"],
)
def test_batch_that_lies_about_its_size(memory: MemoryPlace, body: bytes) -> None:
    memory.overwrite("checkpoints/batch-000001.lz4", body)
    with at_most(MIB), pytest.raises(Corrupt) as caught:
        list(read_batch(memory.open_objects(), "checkpoints/batch-000001.lz4"))
    assert "checkpoints/batch-000001.lz4" in str(caught.value)


# Pointers

BAD_POINTERS = [
    b"",
    b"\n",
    b"\x00" * 100,
    b"\xff\xfe",
    b"checkpoint_",
    b"checkpoint_1",
    b"checkpoint_0000001",
    b"checkpoint_-00001",
    b"checkpoint_000000",
    b"checkpoint_99999999999999999999999999",
    "checkpoint_00000\u0661".encode(),
    b"../../etc/passwd",
    b"checkpoint_000001/../x",
    b"{}",
    b"[]",
    b"null",
    b'"1"',
    b'{"checkpoint_id": null}',
    b'{"checkpoint_id": "1"}',
    b'{"checkpoint_id": 1.0}',
    b'{"checkpoint_id": true}',
    b'{"checkpoint_id": 0}',
    b'{"checkpoint_id": -1}',
    b'{"checkpoint_id": 99999999999999999999999999}',
    b'{"checkpoint_id": ' + b"9" * 5000 + b"}",
    b'{"checkpoint_id": ' * 3000,
    b"[" * 100_000,
    b"x" * 1_000_000,
]


@pytest.mark.parametrize("body", BAD_POINTERS, ids=lambda body: repr(body[:24]))
def test_bad_pointer(place: StoreUnderTest, body: bytes) -> None:
    store = place.open()
    store.save(manifest(1))
    store.save(manifest(2))
    place.overwrite(place.layout.pointer_key, body)
    fresh = place.open()
    assert fresh.latest_pointer() is None
    latest = fresh.load_latest()
    assert latest is not None
    assert latest.checkpoint_id == 2
    assert fresh.recover_latest_validated().chosen_id == 2
    assert fresh.next_id() == 3
    place.open().save(manifest(3))
    assert place.open().latest_pointer() == 3


# Names

NAMES = [
    "..",
    "../../etc/passwd",
    "/",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\nb\x1b[31m",
    "ä\u202e",
    "x" * 10_000,
    "",
    " ",
    "~",
    "$HOME",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:12]))
def test_names_inside_a_manifest_never_become_paths(place: StoreUnderTest, name: str) -> None:
    saved = manifest(
        1,
        source_offsets={name: holdfast.ConnectorCheckpoint({name: name}, 0, {name: name})},
        source_names=[name],
        sink_names=[name],
        sink_epochs={name: 1},
        sink_commit_statuses={name: "Pending"},
        source_watermarks={name: 1},
        operator_states={name: OperatorCheckpoint.inline(b"x"), name + "2": OperatorCheckpoint.external(0, 5)},
        table_store_checkpoint_path=name,
    )
    place.open().save_with_state(saved, [b"state"])
    assert place.open().load_states(1) == {name: b"x", name + "2": b"state"}
    found = place.open().load_by_id(1)
    assert found is not None
    assert found.source_offsets == saved.source_offsets
    place.open().update_manifest(settled(saved))
    assert place.open().validate_checkpoint(1).valid
    assert place.all_keys() == sorted([place.manifest_key(1), place.sidecar_key(1), place.layout.pointer_key])


@pytest.mark.parametrize(
    "name", ["..", "../x/", "/abs/", "a/../b/", "a\x00/", "a\n/", "a//b/", "x" * 10_000, "a\ud800/"]
)
def test_prefix_of_batches_is_refused(place: StoreUnderTest, name: str) -> None:
    with pytest.raises(Invalid):
        CheckpointBatcher(place.open(), prefix=name)
    assert place.all_keys() == []


SURROGATE: dict[str, dict[str, Any]] = {
    "operator": {"operator_states": {"\ud800": OperatorCheckpoint.inline(b"x")}},
    "source": {"source_names": ["\ud800"]},
    "offset": {"source_offsets": {"a": holdfast.ConnectorCheckpoint({"p": "\udfff"})}},
    "inline state": {"operator_states": {"a": OperatorCheckpoint(state_b64="\ud800")}},
    "reason": {"sink_commit_statuses": {"a": holdfast.SinkCommitStatus.failed("\ud800")}},
}


@pytest.mark.parametrize("where", SURROGATE)
def test_text_that_is_no_text_is_refused(place: StoreUnderTest, where: str) -> None:
    for save in (place.open().save, lambda m: place.open().save_with_state(m, [b"x"])):
        with pytest.raises(Invalid):
            save(manifest(1, **SURROGATE[where]))
    with pytest.raises(Invalid):
        place.open().save_states(manifest(1), {"\ud800": b"x"})
    assert place.open().list_ids() == []


# What a caller hands in

WRONG_TYPES: dict[str, dict[str, Any]] = {
    "epoch a string": {"epoch": "1"},
    "epoch true": {"epoch": True},
    "epoch a float": {"epoch": 1.5},
    "epoch none": {"epoch": None},
    "epoch 0": {"epoch": 0},
    "epoch negative": {"epoch": -1},
    "epoch beyond 64 bits": {"epoch": 2**64},
    "timestamp a string": {"timestamp_ms": "now"},
    "timestamp negative": {"timestamp_ms": -1},
    "timestamp beyond 64 bits": {"timestamp_ms": 2**64},
    "version 0 as text": {"version": "1"},
    "newer version": {"version": 2},
    "offsets none": {"source_offsets": None},
    "offsets plain": {"source_offsets": {"a": {"offsets": 5}}},
    "offset a number": {"source_offsets": {"a": holdfast.ConnectorCheckpoint({"p0": 17})}},  # type: ignore[dict-item]
    "name a number": {"source_names": [1]},
    "names a string": {"sink_names": "abc"},
    "operators none": {"operator_states": None},
    "operator bytes": {"operator_states": {"a": b"bytes"}},
    "operator name a number": {"operator_states": {1: OperatorCheckpoint.inline(b"x")}},
    "inline not base64": {"operator_states": {"a": OperatorCheckpoint(state_b64="%")}},
    "slice negative": {"operator_states": {"a": OperatorCheckpoint.external(-1, 1)}},
    "status a word": {"sink_commit_statuses": {"a": "Done"}},
    "status none": {"sink_commit_statuses": {"a": None}},
    "sink epoch a string": {"sink_epochs": {"a": "1"}},
    "parent a string": {"parent_id": "1", "is_incremental": True},
    "parent itself": {"parent_id": 1, "is_incremental": True},
    "incremental without parent": {"is_incremental": True},
    "watermark a string": {"watermark": "1"},
    "hash negative": {"pipeline_hash": -1},
    "not a number": {"holdfast": HoldfastSection(runtime={"a": object()})},
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_manifest_that_cannot_be_saved(place: StoreUnderTest, name: str) -> None:
    wrong = replace(manifest(1), **WRONG_TYPES[name])
    for save in (place.open().save, lambda m: place.open().save_with_state(m, [b"x"])):
        with pytest.raises(Invalid):
            save(wrong)
    assert place.all_keys() == []
    assert place.open_objects().leftovers() == []
    wrong.validate()


@pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0, None, 2**64], ids=repr)
def test_id_that_is_none(place: StoreUnderTest, wrong: Any) -> None:
    bad = replace(manifest(1), checkpoint_id=wrong)
    store = place.open()
    for act in (
        lambda: store.save(bad),
        lambda: store.save_with_state(bad, [b"x"]),
        lambda: store.save_states(bad, {"a": b"x"}),
        lambda: store.update_manifest(bad),
        lambda: store.save_state_data(wrong, [b"x"]),
    ):
        with pytest.raises(Invalid):
            act()
    assert place.all_keys() == []
    bad.validate()


def test_nesting_that_no_reader_would_follow(place: StoreUnderTest) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    circular: dict[str, Any] = {}
    circular["self"] = circular
    for value in (deep, circular):
        with pytest.raises(Invalid):
            place.open().save(manifest(1, holdfast=HoldfastSection(sinks={"a": value})))
    assert place.all_keys() == []
    while isinstance(deep, list):  # taken apart by hand: the interpreter's own way would be as deep
        deep = deep.pop()


@pytest.mark.parametrize("chunks", [["text"], [1], 5, [None], "text"], ids=repr)
def test_state_that_is_no_bytes(place: StoreUnderTest, chunks: Any) -> None:
    for act in (
        lambda: place.open().save_with_state(manifest(1), chunks),
        lambda: place.open().save_state_data(1, chunks),
    ):
        with pytest.raises((Invalid, TypeError)):
            act()
    assert place.all_keys() == []
    assert place.open_objects().leftovers() == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_retained": -1},
        {"max_retained": "3"},
        {"max_retained": 2.5},
        {"vnode_count": 0},
        {"vnode_count": -1},
        {"vnode_count": 65_536},
        {"vnode_count": "256"},
        {"full_every": 0},
        {"full_every": -3},
        {"orphan_grace": -1.0},
        {"layout": "flat"},
    ],
    ids=str,
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        open_store(tmp_path / "store", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address", ["", "a\x00b", "ftp://host/x", "s3://", "gs:///x", "file://host/path", "hdfs://x", "memory"], ids=repr
)
def test_addresses(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if address == "memory":  # a path like any other
        assert open_store(address).list_ids() == []
    else:
        with pytest.raises(Invalid):
            open_store(address)
    assert list(tmp_path.iterdir()) == []


def test_secrets_of_an_address_are_not_shown() -> None:
    for address in ("ftp://user:hunter2@host/x?token=hunter2", "s3://user:hunter2@bucket/x?key=hunter2#hunter2"):
        try:
            shown = repr(open_store(address))
        except Invalid as error:
            shown = f"{error} {error.about}"
        assert "hunter2" not in shown


# Things on a disk that are not files


def test_folder_in_place_of_a_manifest_or_pointer(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    (local.root / local.manifest_key(2)).mkdir(parents=True)
    (local.root / local.manifest_key(2) / "x").write_bytes(b"x")
    (local.root / local.layout.pointer_key).unlink()
    (local.root / local.layout.pointer_key).mkdir()
    assert local.open().list_ids() == [1]
    assert local.open().recover_latest_validated().chosen_id == 1
    local.open().save(manifest(3))
    assert local.open().recover_latest_validated().chosen_id == 3


def test_links_that_go_round_in_circles(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    for name in ("a", "b"):
        (local.root / "checkpoints" / name).symlink_to(".")
    (local.root / "checkpoints" / "up").symlink_to("..")
    (local.root / "checkpoints" / "self").symlink_to("self")
    (local.root / "checkpoints" / "nowhere").symlink_to("gone")
    assert local.open().list_ids() == [1]
    assert local.open().recover_latest_validated().chosen_id == 1
    assert local.open_later().prune(1) == 0
    local.open().save(manifest(2))


def test_manifest_that_is_a_pipe_does_not_hang(local: LocalPlace) -> None:
    local.open().save(manifest(1))
    path = local.root / local.manifest_key(2)
    path.parent.mkdir()
    os.mkfifo(path)
    program = "import sys, holdfast; print(holdfast.open_store(sys.argv[1]).recover_latest_validated().chosen_id)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(local.root)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "1"


def test_folder_that_may_not_be_read_does_not_stop_the_store(local: LocalPlace) -> None:
    """A mount point has a `lost+found` that only root may read."""
    local.open().save(manifest(1))
    local.open().save_state_data(2, [b"orphan"])
    (local.root / "lost+found").mkdir()

    class Guarded(PosixDisk):
        def scan(self, path: str) -> list[Entry]:
            if path.endswith("lost+found"):
                raise PermissionError(13, "Permission denied", path)
            return super().scan(path)

    store = CheckpointStore(LocalObjects(str(local.root), disk=Guarded()), DirectoryLayout(), orphan_grace=0)
    assert store.recover_latest_validated().chosen_id == 1
    assert store.prune(1) == 0
    assert store.load_state_data(2) is None


def test_store_whose_place_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file")
    store = open_store(tmp_path / "store")
    with pytest.raises(HoldfastError) as caught:
        store.save(manifest(1))
    assert not isinstance(caught.value, NotFound), "a writer is not told that something is missing"
    assert (tmp_path / "store").read_bytes() == b"a file"


def test_every_error_says_what_is_unchanged_or_names_its_object(place: StoreUnderTest) -> None:
    place.open().save(with_everything(1))
    place.damage(place.manifest_key(1))
    acts: list[Callable[[CheckpointStore], object]] = [
        lambda store: store.load_by_id(1),
        lambda store: store.load_by_id(0),
        lambda store: store.prune(0),
        lambda store: store.save(manifest(1)),
        lambda store: store.update_manifest(manifest(1)),
        lambda store: store.update_manifest(manifest(9)),
        lambda store: store.load_states(9),
    ]
    for act in acts:
        with pytest.raises(HoldfastError) as caught:
            act(place.open())
        error = caught.value
        assert error.about
        assert error.code != "unexpected"
        assert error.about in str(error)
