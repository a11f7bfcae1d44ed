"""Incremental checkpoints: only what changed is written, everything is restored, and no chain is ever broken."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from msgspec.structs import replace

from holdfast import CheckpointStore
from holdfast.errors import Corrupt, Fenced, Invalid
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest, pending, settled
from places import LocalPlace, MemoryPlace

KIB, MIB = 1 << 10, 1 << 20


def shapes(place: StoreUnderTest) -> list[int | None]:
    """The parent of each checkpoint there is."""
    return [place.document(number)["parent_id"] for number in place.open().list_ids()]


def test_child_holds_only_what_changed_in_bytes(place: StoreUnderTest) -> None:
    large, small = bytes(range(256)) * 8 * KIB, b"s" * 100 * KIB  # 2 MiB goes to the sidecar, 100 KiB stays inline
    store = place.open(max_retained=None)
    store.save_states(manifest(1), {"large": large, "small": small, "counter": b"1"})
    store.save_states(manifest(2), {"large": large, "small": small, "counter": b"2"})
    store.save_states(manifest(3), {"large": large[::-1], "small": small, "counter": b"2"})
    assert len(place.read(place.sidecar_key(1))) == 2 * MIB
    assert place.sidecar_key(2) not in place.all_keys()
    assert len(place.read(place.manifest_key(2))) < 4 * KIB
    assert place.read(place.sidecar_key(3)) == large[::-1]
    assert len(place.read(place.manifest_key(3))) < 4 * KIB
    assert place.document(2)["size_bytes"] < 4 * KIB
    assert [list(place.document(n)["operator_states"]) for n in (1, 2, 3)] == [
        ["counter", "large", "small"],
        ["counter"],
        ["large"],
    ]
    assert place.open().load_states(3) == {"large": large[::-1], "small": small, "counter": b"2"}
    assert place.open().load_states(2) == {"large": large, "small": small, "counter": b"2"}


def test_nothing_changed(place: StoreUnderTest) -> None:
    store = place.open()
    store.save_states(manifest(1), {"a": b"1"})
    saved = store.save_states(manifest(2), {"a": b"1"})
    assert (saved.is_incremental, saved.parent_id, saved.operator_states) == (True, 1, {})
    assert place.open().load_states(2) == {"a": b"1"}
    assert place.open().validate_checkpoint(2).valid


def test_operators_come_and_go(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    history: list[dict[str, bytes]] = [
        {"a": b"1", "b": b"1"},
        {"b": b"1"},
        {"b": b"1", "a": b"1"},
        {},
        {"a": b"", "c": b"\x00"},
        {"a": b"", "c": b"\x01"},
    ]
    for number, states in enumerate(history, start=1):
        store.save_states(manifest(number), states)
    for number, states in enumerate(history, start=1):
        assert place.open().load_states(number) == states
        assert place.open().validate_checkpoint(number).valid
    assert shapes(place) == [None, 1, 2, None, None, 5]


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [None] * 5), (2, [None, 1, None, 3, None]), (99, [None, 1, 2, 3, 4])]
)
def test_a_full_checkpoint_comes_once_in_as_many_as_asked_for(
    place: StoreUnderTest, every: int, expected: list[int | None]
) -> None:
    store = place.open(max_retained=None, full_every=every)
    for number in range(1, 6):
        store.save_states(manifest(number), {"same": b"s", "n": b"%d" % number})
    assert shapes(place) == expected


def test_rhythm_goes_on_after_reopening(place: StoreUnderTest) -> None:
    for number in range(1, 8):
        place.open(max_retained=None, full_every=3).save_states(manifest(number), {"same": b"s", "n": b"%d" % number})
    assert shapes(place) == [None, 1, 2, None, 4, 5, None]


def test_parent_is_the_newest_valid_one(place: StoreUnderTest) -> None:
    store = place.open()
    for number in (1, 2, 3):
        store.save_states(manifest(number), {"same": b"s", "n": b"%d" % number})
    place.damage(place.manifest_key(3))
    saved = place.open().save_states(manifest(4), {"same": b"s", "n": b"4"})
    assert saved.parent_id == 2
    assert place.open().validate_checkpoint(4).valid
    assert place.open().load_states(4) == {"same": b"s", "n": b"4"}


def test_parent_without_states_is_no_parent(place: StoreUnderTest) -> None:
    place.open().save(manifest(1))
    saved = place.open().save_states(manifest(2), {"a": b"1"})
    assert (saved.is_incremental, saved.parent_id) == (False, None)


def test_lower_id_than_the_newest(place: StoreUnderTest) -> None:
    place.open().save_states(manifest(9), {"a": b"1"})
    saved = place.open().save_states(manifest(4), {"a": b"1"})
    assert saved.parent_id is None
    assert place.open().load_states(4) == {"a": b"1"}


def test_fenced_child_does_not_become_a_parent(place: StoreUnderTest) -> None:
    store = place.open(max_retained=None)
    store.save_states(manifest(1), {"a": b"1", "b": b"1"})
    place.open().save(manifest(2))
    with pytest.raises(Fenced):
        store.save_states(manifest(2), {"a": b"2", "b": b"1"})
    saved = store.save_states(manifest(3), {"a": b"2", "b": b"1"})
    assert saved.parent_id == 1
    assert place.open().load_states(3) == {"a": b"2", "b": b"1"}


def test_update_of_an_incremental_checkpoint(place: StoreUnderTest) -> None:
    store = place.open()
    store.save_states(manifest(1), {"a": b"1", "b": b"1"})
    saved = store.save_states(pending(2), {"a": b"2", "b": b"1"})
    store.update_manifest(settled(saved))
    assert place.open().validate_checkpoint(2).valid
    assert place.open().load_states(2) == {"a": b"2", "b": b"1"}
    assert store.save_states(manifest(3), {"a": b"3", "b": b"1"}).parent_id == 2


@pytest.mark.parametrize("victim", ["manifest", "sidecar"])
@pytest.mark.parametrize("number", [1, 2])
def test_damaged_ancestor(place: StoreUnderTest, victim: str, number: int) -> None:
    store = place.open(max_retained=None)
    large = b"x" * (MIB + 1)
    store.save_states(manifest(1), {"a": large, "b": b"1", "c": b"1"})
    store.save_states(manifest(2), {"a": large, "b": large + b"2", "c": b"1"})
    store.save_states(manifest(3), {"a": large, "b": large + b"2", "c": b"3"})
    place.damage(place.manifest_key(number) if victim == "manifest" else place.sidecar_key(number))
    result = place.open().validate_checkpoint(3)
    assert not result.valid
    assert "parent checkpoint 2" in result.reason
    with pytest.raises(Corrupt):
        place.open().load_states(3)
    assert place.open().recover_latest_validated().chosen_id == (1 if number == 2 else None)


def test_ancestor_that_was_rewritten_validly_is_noticed(place: StoreUnderTest) -> None:
    """A parent under the same id with other state, whole in itself, is still not the parent."""
    store = place.open(max_retained=None)
    store.save_states(manifest(1), {"a": b"1", "b": b"1"})
    store.save_states(manifest(2), {"a": b"1", "b": b"2"})
    place.objects.delete([place.manifest_key(1)])
    place.open().save_states(manifest(1), {"a": b"other", "b": b"1"})
    with pytest.raises(Corrupt):
        place.open().load_states(2)
    assert not place.open().validate_checkpoint(2).valid


def test_parent_must_exist_and_come_before(place: StoreUnderTest) -> None:
    place.open().save(manifest(3))
    for parent in (1, 5, 6):
        with pytest.raises(Invalid):
            place.open().save(replace(manifest(5), is_incremental=True, parent_id=parent))
    assert place.open().list_ids() == [3]


def test_retention_across_several_chains(place: StoreUnderTest) -> None:
    store = place.open(max_retained=2, full_every=4)
    kept = []
    for number in range(1, 13):  # full: 1, 5, 9
        store.save_states(manifest(number), {"same": b"s", "n": b"%d" % number})
        kept.append(place.open().list_ids())
        for there in kept[-1][-2:]:
            assert place.open().load_states(there) == {"same": b"s", "n": b"%d" % there}
    assert kept[4] == [1, 2, 3, 4, 5]
    assert kept[5] == [5, 6]
    assert kept[11] == [9, 10, 11, 12]


@pytest.mark.parametrize("after", ["prune", "damage and prune"])
def test_handle_that_outlives_its_parent_saves_something_whole(place: StoreUnderTest, after: str) -> None:
    """Another process removes what this handle would build on."""
    store = place.open(max_retained=None)
    store.save_states(manifest(1), {"same": b"s", "n": b"1"})
    other = place.open(max_retained=None)
    other.save(manifest(2))
    if after == "prune":
        assert other.prune(1) == 1
    else:
        place.objects.delete([place.manifest_key(1)])
    try:
        store.save_states(manifest(3), {"same": b"s", "n": b"3"})
    except (Invalid, Corrupt):
        return
    assert place.open().validate_checkpoint(3).valid
    assert place.open().load_states(3) == {"same": b"s", "n": b"3"}


# Against a model

NAMES = st.sampled_from(["a", "b", "c", "d"])
DATA = st.sampled_from([b"", b"1", b"2", b"3" * 40])


class Machine(RuleBasedStateMachine):
    """Random states are saved, pruned, damaged and restored; a dictionary says what must come back."""

    saved = Bundle("saved")

    def make_place(self) -> StoreUnderTest:
        return MemoryPlace()

    @initialize(full_every=st.integers(1, 5), retained=st.sampled_from([None, 1, 2]))
    def begin(self, full_every: int, retained: int | None) -> None:
        self.place = self.make_place()
        self.options = {"full_every": full_every, "max_retained": retained}
        self.keep = retained
        self.store: CheckpointStore = self.place.open(**self.options)
        self.last = 0
        self.model: dict[int, dict[str, bytes]] = {}
        self.unsettled: set[int] = set()
        self.damaged: set[int] = set()
        self.parents: dict[int, int | None] = {}

    @rule(
        target=saved, states=st.dictionaries(NAMES, DATA, max_size=4), is_pending=st.booleans(), gap=st.integers(1, 3)
    )
    def save(self, states: dict[str, bytes], is_pending: bool, gap: int) -> int:
        self.last += gap
        make = pending if is_pending else manifest
        before = self.complete()
        found = self.store.save_states(make(self.last), states)
        self.model[self.last] = dict(states)
        self.parents[self.last] = found.parent_id
        if is_pending:
            self.unsettled.add(self.last)
        whole = before if is_pending or found.parent_id not in (None, *before) else [*before, self.last]
        if self.keep:
            assert set(whole[-self.keep :]) <= set(self.place.open().list_ids()), "retention took too much"
        return self.last

    @rule(number=consumes(saved))
    def settle(self, number: int) -> None:
        if number in self.unsettled and number not in self.damaged and number in self.store.list_ids():
            found = self.place.open().load_by_id(number)
            assert found is not None
            self.store.update_manifest(settled(found))
            self.unsettled.discard(number)

    @rule()
    def reopen(self) -> None:
        self.store = self.place.open(**self.options)

    @rule(keep=st.integers(1, 4))
    def prune(self, keep: int) -> None:
        before = self.complete()
        self.store.prune(keep)
        assert set(before[-keep:]) <= set(self.place.open().list_ids())

    @rule()
    def clean(self) -> None:
        assert self.place.open_later().cleanup_orphans() == 0

    @precondition(lambda self: self.last in self.model and self.last not in self.damaged)
    @rule()
    def damage_the_newest(self) -> None:
        if self.last in self.place.open().list_ids():
            self.place.damage(self.place.manifest_key(self.last))
            self.damaged.add(self.last)
            self.reopen()

    def complete(self) -> list[int]:
        """What is whole, settled, and stands on nothing that is not."""
        there = set(self.place.open().list_ids()) - self.damaged
        fine: list[int] = []
        for number in sorted(there):
            parent = self.parents[number]
            if number not in self.unsettled and (parent is None or parent in fine):
                fine.append(number)
        return fine

    @invariant()
    def everything_there_is_what_was_saved(self) -> None:
        store = self.place.open()
        validator = store.validator()
        ids = store.list_ids()
        for number in ids:
            valid = validator.validate(number).valid
            assert valid == (number not in self.damaged)
            if valid:
                assert store.load_states(number) == self.model[number]
        whole = [number for number in ids if number not in self.damaged]
        assert store.recover_latest_validated().chosen_id == (whole[-1] if whole else None)


class MachineOnDisk(Machine):
    def make_place(self) -> StoreUnderTest:
        self.folder = tempfile.mkdtemp(prefix="holdfast-incremental-")
        return LocalPlace(Path(self.folder) / "store")

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


TestAgainstAModelInMemory = Machine.TestCase
TestAgainstAModelInMemory.settings = settings(max_examples=70, stateful_step_count=25)
TestAgainstAModelOnDisk = MachineOnDisk.TestCase
TestAgainstAModelOnDisk.settings = settings(max_examples=12, stateful_step_count=20)
