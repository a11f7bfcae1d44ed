"""Checkpoints that share batch objects: needed by several, owned by none alone, removed with the last."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import CheckpointManifest, CheckpointStore
from holdfast.checkpoints import CheckpointBatcher, manifest_json
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection, SinkCommitStatus
from holdfast.checkpoints.save import check_references
from holdfast.errors import Fenced, Invalid
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest
from places import MemoryPlace


def flushed(store: CheckpointStore, epoch: int, *, prefix: str = "", size: int = 100) -> BatchObject:
    batcher = CheckpointBatcher(store, prefix)
    batcher.add("entry", bytes([epoch % 256]) * size)
    batch = batcher.flush(epoch)
    assert batch is not None
    return batch


def heir(number: int, batches: list[BatchObject], inherited: list[BatchObject], **fields: Any) -> CheckpointManifest:
    """A checkpoint that owns some batch objects and inherits others from the one before it."""
    return manifest(
        number,
        is_incremental=bool(inherited),
        parent_id=number - 1 if inherited else None,
        holdfast=HoldfastSection(batches=batches, inherited=inherited),
        **fields,
    )


def batch_keys(place: StoreUnderTest) -> list[str]:
    return [key for key in place.all_keys() if key.endswith(".lz4")]


A, B, C = (BatchObject(f"checkpoints/batch-00000{number}.lz4", number, "s", 1) for number in (1, 2, 3))


# What a manifest says


def test_needed_batches_are_in_the_order_of_their_age() -> None:
    assert heir(4, [C], [A, B]).needed_batches == [A, B, C]
    assert heir(4, [C], []).needed_batches == [C]
    assert manifest(4).needed_batches == []


@pytest.mark.parametrize(
    ("parent", "inherited", "expected"), [(None, [], None), (3, [], 3), (3, [A], None), (None, [A], None)]
)
def test_with_inherited_objects_no_parent_is_needed(
    parent: int | None, inherited: list[BatchObject], expected: int | None
) -> None:
    found = manifest(4, parent_id=parent, holdfast=HoldfastSection(inherited=inherited))
    assert found.needed_parent == expected


def test_a_manifest_keeps_them(place: StoreUnderTest) -> None:
    store = place.open()
    one, two = flushed(store, 1), flushed(store, 2)
    store.save(heir(1, [one], []))
    store.save(heir(2, [two], [one]))
    found = place.open().load_by_id(2)
    assert found is not None
    assert (found.own.batches, found.own.inherited) == ([two], [one])
    assert (found.is_incremental, found.parent_id, found.needed_parent) == (True, 1, None)


def test_older_manifests_have_none() -> None:
    found = manifest_json.decode(manifest_json.encode(manifest(1)), about="x", checkpoint_id=1)
    assert found.own.inherited == []


def test_only_its_own_count_as_its_size(place: StoreUnderTest) -> None:
    store = place.open()
    large, small = flushed(store, 1, size=9000), flushed(store, 2, size=10)
    store.save(heir(1, [large], []))
    store.save(heir(2, [small], [large]))
    body = place.read(place.manifest_key(2))
    assert place.document(2)["size_bytes"] == len(body) + small.bytes


def test_damage_in_the_list_is_noticed(place: StoreUnderTest) -> None:
    store = place.open()
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    store.save(heir(2, [], [one]))
    text = place.read(place.manifest_key(2))
    place.overwrite(place.manifest_key(2), text.replace(one.sha256.encode(), one.sha256[::-1].encode()))
    assert not place.open().validate_checkpoint(2).valid


def test_an_update_cannot_change_the_list(place: StoreUnderTest) -> None:
    store = place.open()
    one, two = flushed(store, 1), flushed(store, 2)
    store.save(heir(4, [two], [one], sink_commit_statuses={"out": SinkCommitStatus.pending()}))
    found = store.load_by_id(4)
    assert found is not None
    with pytest.raises(Invalid, match="only sink statuses"):
        store.update_manifest(replace(found, holdfast=replace(found.own, inherited=[])))
    store.update_manifest(replace(found, sink_commit_statuses={"out": SinkCommitStatus.committed()}))
    again = place.open().load_by_id(4)
    assert again is not None
    assert again.own.inherited == [one]


# Saving


def test_what_is_inherited_must_be_there(place: StoreUnderTest) -> None:
    store = place.open()
    there = flushed(store, 1)
    gone = replace(there, key="checkpoints/batch-000009.lz4")
    short = replace(there, bytes=there.bytes - 1)
    foreign = replace(there, key=place.manifest_key(1))
    for number, wrong in enumerate((gone, short, foreign), start=5):
        with pytest.raises(Invalid) as refused:
            store.save(heir(number, [], [there, wrong]))
        assert refused.value.code == "manifest.reference"
        assert repr(wrong.key) in refused.value.message
    assert place.open().list_ids() == []


def test_with_inherited_objects_the_parent_may_be_gone(place: StoreUnderTest) -> None:
    store = place.open()
    one = flushed(store, 1)
    store.save(heir(5, [], [one]))
    assert place.open().validate_checkpoint(5).valid
    with pytest.raises(Invalid, match="names parent 6"):
        place.open().save(manifest(7, is_incremental=True, parent_id=6))


def test_known_objects_need_no_look(memory: MemoryPlace) -> None:
    objects = memory.open_objects()

    def refuse(_: int) -> bool:
        raise AssertionError("there is no parent to ask for")

    check_references(heir(4, [], [A, B]), objects, refuse, {A.key, B.key})
    with pytest.raises(Invalid, match=repr(B.key)):
        check_references(heir(4, [], [A, B]), objects, refuse, {A.key})


def test_a_claimed_store_looks_only_at_what_is_new(memory: MemoryPlace) -> None:
    store = memory.open()
    store.claim("a driver")
    shared = [flushed(store, number) for number in range(1, 20)]
    store.save(heir(1, shared, []))
    looked: list[str] = []
    info = store.objects.info
    store.objects.info = lambda key: [looked.append(key)] and info(key)  # type: ignore[method-assign,assignment,func-returns-value]
    new = flushed(store, 20)
    store.save(heir(2, [new], shared))
    assert [key for key in looked if key.endswith(".lz4")] == [new.key]


def test_objects_that_went_with_their_checkpoint_are_looked_at(place: StoreUnderTest) -> None:
    """By this handle's own hand."""
    store = place.open(max_retained=None)
    store.claim("a driver")
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    stranger = place.open(max_retained=None)
    stranger.save(manifest(2))
    assert store.prune(1) == 1
    assert batch_keys(place) == []
    with pytest.raises(Invalid, match=repr(one.key)):
        store.save(heir(3, [], [one]))
    assert place.open().list_ids() == [2]


def test_objects_that_another_handle_removed_are_looked_at(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    other = place.open(max_retained=1)
    other.save(manifest(2))
    assert batch_keys(place) == []
    with pytest.raises(Invalid, match=repr(one.key)):
        store.save(heir(3, [], [one]))


def test_a_driver_that_was_taken_over_relies_on_nothing(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    store.claim("old")
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    other = place.open(max_retained=1)
    other.claim("new")
    other.save(manifest(2))
    with pytest.raises(Fenced):
        store.save(heir(3, [], [one]))
    assert place.open().list_ids() == [2]


# Validation


def test_a_shared_object_is_read_once(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    shared = flushed(store, 1, size=50_000)
    store.save(heir(1, [shared], []))
    own = []
    for number in (2, 3, 4):
        own.append(flushed(store, number))
        store.save(heir(number, own[-1:], [shared]))
    read: list[int] = []
    validator = place.open().validator(progress=read.append)
    assert all(validator.validate(number).valid for number in (4, 3, 2, 1))
    assert sum(read) == shared.bytes + sum(batch.bytes for batch in own)


def test_every_checkpoint_that_needs_a_damaged_object_is_damaged(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    old, shared, new = (flushed(store, number) for number in (1, 2, 3))
    store.save(heir(1, [old], []))
    store.save(heir(2, [shared], [old]))
    store.save(heir(3, [new], [old, shared]))
    store.save(heir(4, [], [old, shared, new]))
    place.damage(shared.key)
    report = place.open().recover_latest_validated()
    assert report.chosen_id == 1
    assert [number for number, _ in report.skipped] == [4, 3, 2]
    assert all(shared.key in why for _, why in report.skipped)


def test_the_same_object_described_in_two_ways_is_not_taken_for_one(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    store.save(heir(2, [], [replace(one, sha256="0" * 64)]))
    validator = place.open().validator()
    assert validator.validate(1).valid
    assert not validator.validate(2).valid


def test_a_damaged_parent_does_not_matter(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    store.save(heir(2, [], [one]))
    place.damage(place.manifest_key(1))
    assert place.open().validate_checkpoint(2).valid
    assert place.open().recover_latest_validated().chosen_id == 2
    assert place.open().load_states(2) == {}


# Retention


def test_an_object_goes_with_the_last_that_needs_it(place: StoreUnderTest) -> None:
    store = place.open(max_retained=2)
    one, two, three, four = (flushed(store, number) for number in (1, 2, 3, 4))
    store.save(heir(1, [one], []))
    store.save(heir(2, [two], [one]))
    store.save(heir(3, [three], [one]))
    assert (place.open().list_ids(), batch_keys(place)) == ([2, 3], [one.key, two.key, three.key, four.key])
    store.save(heir(4, [four], [three]))
    assert (place.open().list_ids(), batch_keys(place)) == ([3, 4], [one.key, three.key, four.key])
    store.save(manifest(5))
    assert (place.open().list_ids(), batch_keys(place)) == ([4, 5], [three.key, four.key])


def test_retention_does_not_keep_a_parent_that_is_not_needed(place: StoreUnderTest) -> None:
    store = place.open(max_retained=1)
    one = flushed(store, 1)
    store.save(heir(1, [one], []))
    for number in range(2, 9):
        store.save(heir(number, [], [one]))
    assert place.open().list_ids() == [8]
    assert batch_keys(place) == [one.key]
    assert place.open().validate_checkpoint(8).valid


def test_prune_by_another_handle_keeps_what_is_shared(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    one, two = flushed(store, 1), flushed(store, 2)
    store.save(heir(1, [one, two], []))
    store.save(heir(2, [], [one]))
    assert place.open().prune(1) == 1
    assert batch_keys(place) == [one.key]
    assert place.open().validate_checkpoint(2).valid


def test_a_plan_names_only_what_goes(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    one, two = flushed(store, 1), flushed(store, 2)
    store.save(heir(1, [one, two], []))
    store.save(heir(2, [], [one]))
    (removal,) = place.open().plan_prune(1).checkpoints
    assert (removal.checkpoint_id, removal.objects) == (1, (two.key,))


@pytest.mark.parametrize("prefix", ["", "nodes/3/"])
def test_inherited_objects_are_no_orphans(place: StoreUnderTest, prefix: str) -> None:
    store = place.open(max_retained=1)
    one = flushed(store, 1, prefix=prefix)
    lost = flushed(store, 7, prefix=prefix)
    store.save(heir(1, [one], []))
    store.save(heir(2, [], [one]))
    assert place.open().list_ids() == [2]
    assert place.open_later().cleanup_orphans() == 1
    assert batch_keys(place) == [one.key]
    assert lost.key not in place.all_keys()


def test_an_unfinished_heir_keeps_its_objects(place: StoreUnderTest) -> None:
    store = place.open(max_retained=1)
    one, two = flushed(store, 1), flushed(store, 2)
    store.save(heir(1, [one], []))
    store.save(heir(2, [two], [one], sink_commit_statuses={"out": SinkCommitStatus.pending()}))
    assert place.open().list_ids() == [1, 2]
    found = place.open().load_by_id(2)
    assert found is not None
    store.update_manifest(replace(found, sink_commit_statuses={"out": SinkCommitStatus.committed()}))
    assert place.open().list_ids() == [2]
    assert batch_keys(place) == [one.key, two.key]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 5))), min_size=1, max_size=14),
    st.integers(1, 3),
    st.booleans(),
)
def test_whatever_is_shared_what_is_kept_is_whole(
    history: list[tuple[int, set[int]]], keep: int, is_claimed: bool
) -> None:
    """Each checkpoint writes some objects and inherits some of those that the one before it needed."""
    place = MemoryPlace()
    store = place.open(max_retained=keep)
    if is_claimed:
        store.claim("a driver")
    before: list[BatchObject] = []
    for number, (new, chosen) in enumerate(history, start=1):
        batches = [flushed(store, number) for _ in range(new)]
        inherited = [batch for index, batch in enumerate(before) if index in chosen]
        store.save(heir(number, batches, inherited))
        before = [*inherited, *batches]
    fresh = place.open()
    assert fresh.list_ids() == list(range(1, len(history) + 1))[-keep:]
    kept = [fresh.load_by_id(number) for number in fresh.list_ids()]
    assert all(fresh.validate_checkpoint(number).valid for number in fresh.list_ids())
    needed = {batch.key for found in kept if found for batch in found.needed_batches}
    assert set(batch_keys(place)) == needed
