"""Checkpoint stores as version 0.1.0 wrote them open, hold what was saved, and go on."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace
from museum import BATCH, LATER_BATCH, OLD_BATCH, SIDECAR, manifest, states, unpack

from holdfast import CheckpointBatcher, CheckpointStore, OperatorCheckpoint, open_store
from holdfast.checkpoints import read_batch
from holdfast.errors import Fenced


@pytest.fixture(params=["directory", "object in memory", "object on disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    if request.param == "directory":
        return open_store(unpack("store-directory.tar.gz", tmp_path / "store"), max_retained=None)
    folder = unpack("store-object.tar.gz", tmp_path / "store")
    if request.param == "object on disk":
        return open_store(folder, layout="object", max_retained=None)
    store = open_store(f"memory://{uuid.uuid4().hex}", max_retained=None)
    for path in folder.rglob("*"):
        if path.is_file():
            store.objects.create(path.relative_to(folder).as_posix(), [path.read_bytes()])
    return store


def test_every_manifest_says_what_was_saved(store: CheckpointStore) -> None:
    assert store.list() == [(number, number * 10) for number in range(1, 7)]
    assert store.latest_pointer() == 6
    for number in range(1, 7):
        found, saved = store.load_by_id(number), manifest(number)
        assert found is not None
        for field in ("timestamp_ms", "source_offsets", "source_names", "sink_names", "sink_epochs", "watermark"):
            assert getattr(found, field) == getattr(saved, field), (number, field)
        assert found.pipeline_hash == 0xFEED
        assert found.own.generation == 2
        assert found.is_ours
        pg = "Pending" if number == 6 else "Committed"
        assert found.sink_commit_statuses == {"lake": "Committed", "pg": pg}
    parents = [found.parent_id for number in range(1, 7) if (found := store.load_by_id(number))]
    assert parents == [None, None, 2, 3, None, 5]


def test_every_byte_of_state_is_there(store: CheckpointStore) -> None:
    for number in range(1, 7):
        result = store.validate_checkpoint(number)
        assert (result.valid, result.issues) == (True, [])
    assert store.recover_latest_validated().chosen_id == 6
    assert store.load_states(1) == {"agg": SIDECAR, "tiny": b"t"}
    assert [store.load_states(number) for number in (2, 3, 4)] == [states(number) for number in (2, 3, 4)]
    sizes = [len(store.load_state_data(number) or b"") for number in (2, 3, 4)]
    assert sizes == [len(states(2)["large"]), 0, len(states(4)["large"])]


def test_batches_of_both_versions_are_read(store: CheckpointStore) -> None:
    newest = store.load_latest()
    assert newest is not None
    assert newest.own.sinks == {"pg": {"staged": "x"}}
    assert newest.own.runtime == {"pipeline": "museum"}
    for needed, entries in zip(newest.needed_batches, (OLD_BATCH, BATCH, LATER_BATCH), strict=True):
        batch = read_batch(store.objects, needed.key)
        assert set(batch.keys()) == set(entries)
        assert {key: bytes(batch.read(key)) for key in entries} == entries
    beginnings = [store.objects.read(batch.key, limit=1 << 20)[:5] for batch in newest.needed_batches]
    assert beginnings == [b"LCB1\1", b"LCB1\2", b"LCB1\2"]


def test_a_save_goes_on_with_everything_that_was_there(store: CheckpointStore) -> None:
    assert store.claim("next").generation == 3
    batcher = CheckpointBatcher(store, "nodes/a/")
    batcher.add("partition-3", b"three")
    batch = batcher.flush(60)  # part 1 is taken
    newest = store.load_latest()
    assert batch is not None
    assert newest is not None
    assert batch.key == "nodes/a/checkpoints/batch-000060-part-0002.lz4"
    own = replace(newest.own, batches=[batch], inherited=newest.needed_batches)
    store.save(manifest(7, is_incremental=True, parent_id=6, holdfast=own))
    store.update_manifest(replace(newest, sink_commit_statuses={"lake": "Committed", "pg": "Committed"}))
    operators = {"agg": OperatorCheckpoint.external_slice(0, 5)}
    store.save_with_state(manifest(8, operator_states=operators), [b"state"])
    assert store.latest_pointer() == 8
    assert all(store.validate_checkpoint(number).valid for number in store.list_ids())
    assert len(store.plan_cleanup(older_than=0).orphans) == 1  # that of checkpoint 9
    assert store.prune(2) == 6
    assert store.list_ids() == [7, 8]
    assert store.validate_checkpoint(7).valid  # with what it inherits
    assert store.next_id(saved_only=True) == 9


def test_a_chain_goes_on(store: CheckpointStore) -> None:
    for number in (5, 6):
        store.objects.delete([info.key for info in store.objects.list("") if f"00000{number}" in info.key])
    saved = store.save_states(manifest(5), states(4) | {"counter": b"5"})
    assert (saved.is_incremental, saved.parent_id) == (True, 4)
    kept_in = {name: state.checkpoint_id for name, state in saved.own.states.items()}
    assert kept_in == {"counter": 5, "fixed": 2, "large": 4}
    assert store.load_states(5) == states(4) | {"counter": b"5"}


def test_who_had_claimed_it_is_fenced(store: CheckpointStore) -> None:
    first = store.claim("first")
    assert (first.generation, store.claim("second").generation) == (3, 4)
    with pytest.raises(Fenced, match="second"):
        first.check()
