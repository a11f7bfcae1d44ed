"""Mistakes that callers make: each is `Invalid`, says which argument, and has changed nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import CheckpointBatcher, CheckpointManifest, OperatorCheckpoint, open_store
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.checkpoints.recovery_walk import RecoveryReport
from holdfast.errors import Corrupt, Fenced, Invalid, Unavailable
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace

GOOD = CheckpointManifest.new(1, 1)
MISTAKES: dict[str, tuple[str, Any]] = {
    "no manifest to save": ("manifest", lambda store: store.save(None)),
    "no manifest to update": ("manifest", lambda store: store.update_manifest(None)),
    "no manifest with state": ("manifest", lambda store: store.save_with_state(None, [b""])),
    "no manifest with states": ("manifest", lambda store: store.save_states(None, {})),
    "text as state": ("state_data", lambda store: store.save_with_state(GOOD, "state")),
    "text as a chunk": ("state_data", lambda store: store.save_with_state(GOOD, [b"a", "b"])),
    "a number as state": ("state_data", lambda store: store.save_state_data(1, 7)),
    "states as bytes": ("states", lambda store: store.save_states(GOOD, b"a")),
    "states as a list": ("states", lambda store: store.save_states(GOOD, [b"a"])),
    "a state as text": ("states", lambda store: store.save_states(GOOD, {"agg": "a"})),
    "an operator that is a number": ("states", lambda store: store.save_states(GOOD, {1: b"a"})),
    "age as text": ("older_than", lambda store: store.cleanup_orphans(older_than="1h")),
    "age below zero": ("older_than", lambda store: store.cleanup_orphans(older_than=-1)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str, memory: MemoryPlace) -> None:
    argument, act = MISTAKES[name]
    with pytest.raises(Invalid) as caught:
        act(memory.open())
    assert caught.value.about == argument
    assert memory.all_keys() == []


@pytest.mark.parametrize(
    ("argument", "value"),
    [("max_retained", -1), ("max_retained", "3"), ("vnode_count", 0), ("full_every", 0), ("orphan_grace", "1h")],
)
def test_an_option_is_named(argument: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        open_store("memory://", **{argument: value})
    assert caught.value.about == argument


def test_one_buffer_is_one_chunk(memory: MemoryPlace) -> None:
    memory.open().save_with_state(GOOD, b"state")
    assert memory.open().load_state_data(1) == b"state"


def test_a_batcher_on_a_store_that_was_taken_over_writes_nothing(memory: MemoryPlace) -> None:
    stale = memory.open()
    stale.claim("the first")
    batcher = CheckpointBatcher(stale)
    batcher.add("key", b"data")
    memory.open().claim("the second")
    with pytest.raises(Fenced):
        batcher.flush(1)
    assert not [key for key in memory.all_keys() if "batch" in key]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (RecoveryReport(None, [], 0, 0.0), None),
        (RecoveryReport(3, [(4, "damaged")], 2, 0.0), 3),
        (RecoveryReport(None, [(4, "damaged")], 1, 0.0), Corrupt),
        (RecoveryReport(None, [(4, "timed out")], 1, 0.0, [4]), Unavailable),
    ],
)
def test_nothing_to_resume_from_is_only_silent_on_an_empty_store(report: RecoveryReport, expected: Any) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected, match="checkpoint 4"):
            report.require()
    else:
        assert report.require() == expected


def test_a_manifest_derived_from_a_stored_one_carries_none_of_its_state(memory: MemoryPlace) -> None:
    from msgspec.structs import replace

    store = memory.open()
    store.save_states(GOOD, {"agg": b"x" * 2_000_000})
    loaded = store.load_by_id(1)
    assert loaded is not None
    store.save(replace(loaded, checkpoint_id=2, epoch=2, operator_states={}))
    assert memory.open().validate_checkpoint(2).valid
    assert memory.open().load_states(2) == {}


@pytest.mark.parametrize(
    "wrong", [{"sink_commit_statuses": {"a": "Done"}}, {"sink_epochs": {"a": "x"}}, {"sink_commit_statuses": {"a": 3}}]
)
def test_an_update_with_what_is_no_status_is_refused(wrong: dict[str, Any], memory: MemoryPlace) -> None:
    from msgspec.structs import replace

    pending = replace(GOOD, sink_commit_statuses={"a": "Pending"}, sink_epochs={"a": 1})
    memory.open().save(pending)
    with pytest.raises(Invalid):
        memory.open().update_manifest(replace(pending, **wrong))


def test_a_file_where_a_store_should_be_is_no_empty_store(tmp_path: Any) -> None:
    (tmp_path / "store").write_bytes(b"not a directory")
    with pytest.raises(Unavailable):
        open_store(tmp_path / "store").load_latest()


def test_a_directory_that_cannot_be_made_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        open_store("/proc/no-such-place/store").save(GOOD)


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
        {"keep": "7"},
        {"keep": "7 dozens"},
        {"keep": "0d"},
        {"keep": "-1d"},
        {"keep": 7},
        {"keep": timedelta()},
        {"keep": "7d", "max_retained": None},
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
def test_an_address_that_is_refused_creates_nothing(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
