"""Mistakes that callers make: each is `Invalid`, says which argument, and has changed nothing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import CheckpointBatcher, CheckpointManifest, open_store
from holdfast.checkpoints.validate import RecoveryReport
from holdfast.errors import Corrupt, Fenced, Invalid, Unavailable
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
