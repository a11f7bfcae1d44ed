"""The decisions that need no medium, as tables: retention, orphans, layout, statuses, increments, the walk."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import OperatorCheckpoint
from holdfast.checkpoints.catalog import Catalog
from holdfast.checkpoints.layout import BATCH, DirectoryLayout, Layout, ObjectLayout
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection, Issue, SidecarObject, SinkFailed
from holdfast.checkpoints.operator_state import encode, plan_increment, read_ahead, state_checksum
from holdfast.checkpoints.recovery_walk import walk_back
from holdfast.checkpoints.retention import (
    THINNING,
    CheckpointRefs,
    find_orphans,
    has_doubled,
    is_due,
    kept_by_age,
    needed_ancestors,
    removable,
)
from holdfast.checkpoints.save import merge_statuses
from holdfast.checkpoints.validate import ValidationResult
from holdfast.errors import Invalid, Unavailable
from holdfast.storage.objects import open_objects
from holdfast.storage.objects.store import ObjectInfo
from holdfast.testing.conformance.checkpoints.subject import manifest

# Retention

COMPLETE, UNFINISHED = CheckpointRefs(True), CheckpointRefs(False)
DAMAGED = CheckpointRefs(False, is_readable=False)


def child(parent: int, *, complete: bool = True) -> CheckpointRefs:
    return CheckpointRefs(complete, parent_id=parent)


RETENTION: list[tuple[str, dict[int, CheckpointRefs], int, list[int]]] = [
    ("nothing there", {}, 1, []),
    ("too few", {1: COMPLETE, 2: COMPLETE}, 3, []),
    ("just enough", {1: COMPLETE, 2: COMPLETE}, 2, []),
    ("oldest go", {1: COMPLETE, 2: COMPLETE, 3: COMPLETE, 4: COMPLETE}, 2, [1, 2]),
    ("gaps", {1: COMPLETE, 7: COMPLETE, 30: COMPLETE}, 1, [1, 7]),
    ("unfinished do not count", {1: COMPLETE, 2: UNFINISHED, 3: UNFINISHED}, 1, []),
    ("unfinished go when older", {1: COMPLETE, 2: UNFINISHED, 3: COMPLETE}, 1, [1, 2]),
    ("newer unfinished stay", {1: COMPLETE, 2: COMPLETE, 3: UNFINISHED}, 1, [1]),
    ("damaged do not count", {1: COMPLETE, 2: COMPLETE, 3: DAMAGED}, 1, [1]),
    ("none complete", {1: UNFINISHED, 2: DAMAGED}, 1, []),
    ("parent stays", {1: COMPLETE, 2: child(1)}, 1, []),
    ("grandparent stays", {1: COMPLETE, 2: child(1), 3: child(2)}, 1, []),
    ("what is between stays out", {1: COMPLETE, 2: COMPLETE, 3: child(1)}, 1, [2]),
    ("a chain ends at a full one", {1: COMPLETE, 2: child(1), 3: COMPLETE, 4: child(3)}, 1, [1, 2]),
    ("unfinished parent", {1: UNFINISHED, 2: child(1)}, 1, []),
    ("child of an unfinished does not count", {1: COMPLETE, 2: UNFINISHED, 3: child(2)}, 1, []),
    ("parent is gone", {2: COMPLETE, 3: child(1)}, 1, []),
    ("damaged parent hides its own", {1: COMPLETE, 2: DAMAGED, 3: COMPLETE, 4: child(2)}, 1, []),
    ("unfinished child of a kept chain", {1: COMPLETE, 2: COMPLETE, 3: child(1, complete=False)}, 1, []),
    ("parent that is no parent", {1: COMPLETE, 2: child(2), 3: COMPLETE, 4: child(9)}, 1, [1, 2]),
]


@pytest.mark.parametrize(("held", "keep", "expected"), [case[1:] for case in RETENTION], ids=[c[0] for c in RETENTION])
def test_retention(held: dict[int, CheckpointRefs], keep: int, expected: list[int]) -> None:
    assert removable(list(held), held.__getitem__, keep) == expected
    assert removable(list(reversed(held)), held.__getitem__, keep) == expected


ANCESTORS: list[tuple[str, dict[int, CheckpointRefs], int, list[tuple[int, tuple[int, ...], bool]]]] = [
    ("none", {1: COMPLETE, 2: COMPLETE}, 1, []),
    ("too few complete ones: nothing goes", {1: COMPLETE, 2: child(1)}, 3, []),
    ("only those that are older", {1: COMPLETE, 2: child(1), 3: child(2)}, 2, [(1, (2, 3), True)]),
    ("a chain", {1: COMPLETE, 2: child(1), 3: child(2)}, 1, [(1, (3,), True), (2, (3,), True)]),
    ("two chains", {1: COMPLETE, 2: COMPLETE, 3: child(1), 4: child(2)}, 2, [(1, (3,), True), (2, (4,), True)]),
    (
        "damaged parent",
        {1: COMPLETE, 2: DAMAGED, 3: COMPLETE, 4: child(2, complete=False)},
        1,
        [(1, (2,), False), (2, (4,), True)],
    ),
]


@pytest.mark.parametrize(("held", "keep", "expected"), [case[1:] for case in ANCESTORS], ids=[c[0] for c in ANCESTORS])
def test_why_older_checkpoints_stay(
    held: dict[int, CheckpointRefs], keep: int, expected: list[tuple[int, tuple[int, ...], bool]]
) -> None:
    found = needed_ancestors(list(held), held.__getitem__, keep)
    assert [(one.checkpoint_id, one.needed_by, one.is_certain) for one in found] == expected


@st.composite
def histories(draw: st.DrawFn) -> dict[int, CheckpointRefs]:
    held: dict[int, CheckpointRefs] = {}
    for number in sorted(draw(st.sets(st.integers(1, 15), max_size=12))):
        parent = draw(st.none() | st.integers(1, 16))
        complete = draw(st.booleans())
        held[number] = CheckpointRefs(complete, is_readable=complete or draw(st.booleans()), parent_id=parent)
    return held


@given(histories(), st.integers(1, 4))
def test_retention_never_breaks_what_it_keeps(held: dict[int, CheckpointRefs], keep: int) -> None:
    gone = set(removable(list(held), held.__getitem__, keep))
    kept = held.keys() - gone
    explained = {one.checkpoint_id for one in needed_ancestors(list(held), held.__getitem__, keep)}
    assert explained <= kept
    unexplained = {number for number in kept - explained if gone and number < max(gone)}
    assert not unexplained, "an older checkpoint stays, and nothing says why"

    def whole(number: int, among: Any) -> bool:
        seen = held.get(number)
        if number not in among or seen is None or not seen.is_complete:
            return False
        return seen.parent_id is None or (seen.parent_id < number and whole(seen.parent_id, among))

    before = [number for number in sorted(held) if whole(number, held)]
    after = [number for number in sorted(held) if whole(number, kept)]
    assert after[-keep:] == before[-keep:], "one of the newest complete ones is gone or lost an ancestor"
    assert removable(sorted(kept), held.__getitem__, keep) == [], "a second pass finds more"
    if before:
        newest = before[-1]
        assert all(number in kept for number in held if number > newest), "something newer than them is gone"


def test_retention_looks_only_at_what_it_keeps() -> None:
    looked: list[int] = []

    def look(number: int) -> CheckpointRefs:
        looked.append(number)
        return COMPLETE

    assert len(removable(range(1, 10_001), look, 3)) == 9_997
    assert set(looked) == {10_000, 9_999, 9_998}


YOUNG_ONES: list[tuple[str, dict[int, CheckpointRefs], int, set[int], list[int]]] = [
    ("young ones stay", dict.fromkeys(range(1, 7), COMPLETE), 1, {2, 4}, [1, 3, 5]),
    ("the number is a floor", dict.fromkeys(range(1, 7), COMPLETE), 2, set(), [1, 2, 3, 4]),
    ("ancestors of young ones stay", {1: COMPLETE, 2: child(1), 3: child(2), 4: COMPLETE, 5: COMPLETE}, 1, {3}, [4]),
    ("below a damaged ancestor nothing goes", {1: COMPLETE, 2: DAMAGED, 3: child(2), 4: COMPLETE}, 1, {3}, []),
]


@pytest.mark.parametrize(
    ("held", "keep", "young", "expected"), [case[1:] for case in YOUNG_ONES], ids=[case[0] for case in YOUNG_ONES]
)
def test_retention_of_young_ones(
    held: dict[int, CheckpointRefs], keep: int, young: set[int], expected: list[int]
) -> None:
    assert removable(list(held), held.__getitem__, keep, young=young) == expected


NOW_MS = 1_760_000_000_000
DAY = 86400.0


def test_thinning() -> None:
    """An epoch a minute for ten days, then one a second for three hours; seven days kept."""
    seconds_ago = [*range(864_000, 10_800, -60), *range(10_799, -1, -1)]
    times = {number: NOW_MS - age * 1000 for number, age in enumerate(seconds_ago, 1)}
    kept = sorted(kept_by_age(times, now_ms=NOW_MS, age=7 * DAY))
    ages = [(NOW_MS - times[number]) / 1000 for number in kept]
    assert 7 * DAY <= ages[0] < 8 * DAY, "one can go back by seven days"
    assert len(kept) < 500
    assert ages[-300:] == [float(age) for age in reversed(range(300))], "all of the last five minutes"
    widths = [next(every for limit, every in THINNING if limit is None or age < limit) for age in ages]
    gaps = [before - after for before, after in itertools.pairwise(ages)]
    assert all(gap <= 2 * width for gap, width in zip(gaps, widths, strict=False)), "no hole in the past"


@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    st.integers(1, 20_000),
    st.lists(st.integers(0, 5000), max_size=4),
)
def test_thinning_step_by_step_ends_as_at_once(pauses: list[int], age: int, waits: list[int]) -> None:
    """What stays later has stayed until then: no checkpoint that is wanted was removed before."""
    at, times = 0, {}
    for number, pause in enumerate(pauses, 1):
        at += pause * 1000
        times[number] = at
    held = dict(times)
    for wait in (0, *waits):
        at += wait * 1000
        expected = kept_by_age(times, now_ms=at, age=age)
        held = {number: times[number] for number in kept_by_age(held, now_ms=at, age=age)}
        assert held.keys() == expected


@pytest.mark.parametrize(
    ("number", "others", "expected"),
    [
        (1, {}, False),
        (250, {}, False),  # the first of all, or the only one that is left
        (99, {98}, False),
        (100, {98, 99}, True),
        (101, {100}, False),
        (205, {198}, True),  # ids may have gaps
        (300, {200}, True),
        (300, set(range(150, 300)), False),  # 150 to read: every 200
        (400, set(range(250, 400)), True),
    ],
)
def test_what_is_due_once_in_a_hundred(number: int, others: set[int], expected: bool) -> None:
    assert is_due(number, {number, *others}, 100) is expected


def test_of_consecutive_ids_only_the_one_before_is_looked_at() -> None:
    class Kept(set[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("every save would look at the whole history")

    assert is_due(10_100, Kept(range(1, 10_101)), 100) is False
    assert is_due(10_200, Kept(range(1, 10_201)), 100) is False
    assert is_due(10_200, Kept(range(10_150, 10_201)), 100) is True


@pytest.mark.parametrize(
    ("before", "number", "expected"),
    [
        (0, 1, False),
        (98, 99, False),
        (99, 100, True),
        (100, 101, False),
        (199, 200, True),
        (299, 300, False),  # 300 to read, and 200 were read a hundred ago
        (399, 400, True),
        (12_799, 12_800, True),
        (12_800, 25_599, False),
        (98, 105, True),  # ids may have gaps
        (105, 98, False),  # and be saved in any order
    ],
)
def test_what_is_due_when_the_checkpoints_have_doubled(before: int, number: int, expected: bool) -> None:
    assert has_doubled(before, number, 100) is expected


# Orphans

OLD, YOUNG, NOW = 0.0, 990.0, 900.0
LAYOUTS: list[Layout] = [DirectoryLayout(), ObjectLayout()]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["directory", "object"])


def infos(*keys: str, modified: float = OLD) -> list[ObjectInfo]:
    return [ObjectInfo(key, 5, modified) for key in keys]


def orphans(layout: Layout, listing: list[ObjectInfo], manifests: dict[int, Any], **named: Any) -> list[str]:
    leftovers = named.pop("leftovers", [])
    owner = Catalog(open_objects("memory://"), layout)
    owned = {key for found in manifests.values() if found for key in owner.owned_keys(found)}
    found = find_orphans(listing, leftovers, manifests, owned, layout, written_before=NOW, **named)
    assert all(orphan.why for orphan in found)
    return sorted(orphan.key for orphan in found)


@layouts
def test_orphans_sidecars(layout: Layout) -> None:
    usual, own = layout.sidecar_key(2), layout.sidecar_key(2, "abc123")
    assert orphans(layout, infos(usual, own), {}) == sorted([usual, own])
    assert orphans(layout, infos(usual, own, modified=YOUNG), {}) == []
    assert orphans(layout, infos(usual, own, modified=YOUNG), {}, abandoned={usual}) == [usual]
    assert orphans(layout, infos(usual, own), {2: None}) == [], "a damaged manifest may own either"
    owner = manifest(2, holdfast=HoldfastSection(write_id="w", sidecar=SidecarObject(own, 5)))
    assert orphans(layout, infos(usual, own), {2: owner}) == [usual]
    owner = manifest(2, holdfast=HoldfastSection(write_id="w", sidecar=SidecarObject(usual, 5)))
    assert orphans(layout, infos(usual, own), {2: owner}) == [own]
    assert orphans(layout, infos(usual), {2: manifest(2)}) == [], "a foreign writer's sidecar is never an orphan"
    stateless = manifest(2, holdfast=HoldfastSection(write_id="w"))
    assert orphans(layout, infos(usual), {2: stateless}) == [usual]
    sliced = manifest(
        2, operator_states={"a": OperatorCheckpoint.external(0, 1)}, holdfast=HoldfastSection(write_id="w")
    )
    assert orphans(layout, infos(usual), {2: sliced}) == []


@layouts
def test_orphans_batches(layout: Layout) -> None:
    lost = "nodes/a/checkpoints/batch-000007.lz4"
    part = "checkpoints/batch-000007-part-0002.lz4"
    assert orphans(layout, infos(lost, part), {1: manifest(1)}) == sorted([lost, part])
    assert orphans(layout, infos(lost, part, modified=YOUNG), {1: manifest(1)}) == []
    assert orphans(layout, infos(lost, part), {1: manifest(1, epoch=7)}) == [], "it may say so in a way we cannot see"
    listed = manifest(1, epoch=7).with_batches([BatchObject(part, 5, "00", 1)])
    assert orphans(layout, infos(lost, part), {1: listed}) == [lost]
    assert orphans(layout, infos(lost, part), {1: manifest(1), 2: None}) == []


@layouts
def test_orphans_leave_strangers_alone(layout: Layout) -> None:
    strange = [
        "a",
        "checkpoints/state-1.bin",
        "checkpoints/x.bin",
        "manifests/y.json",
        "checkpoints/batch-1.lz4",
        "state.bin",
    ]
    manifests = [layout.manifest_key(4), layout.pointer_key]
    assert orphans(layout, infos(*strange, *manifests), {}) == []


@layouts
def test_orphans_leftovers_by_age(layout: Layout) -> None:
    assert orphans(layout, [], {}, leftovers=infos("checkpoints/.x.tmp", "checkpoints/empty/")) == [
        "checkpoints/.x.tmp",
        "checkpoints/empty/",
    ]
    assert orphans(layout, [], {}, leftovers=infos("checkpoints/.x.tmp", modified=YOUNG)) == []


# Layout


@layouts
@given(number=st.integers(1, 2**64 - 1))
def test_layout_there_and_back(layout: Layout, number: int) -> None:
    assert layout.manifest_id(layout.manifest_key(number)) == number
    assert layout.sidecar_id(layout.sidecar_key(number)) == number
    assert layout.sidecar_id(layout.sidecar_key(number, "0123abcd")) == number
    assert layout.pointer_id(layout.pointer_body(number)) == number
    assert layout.manifest_key(number).startswith(layout.folders[0])
    assert layout.manifest_id(layout.sidecar_key(number)) is None
    assert layout.sidecar_id(layout.manifest_key(number)) is None


@layouts
@given(number=st.integers(1, 10**9), noise=st.text("0123456789abc_-./ x", min_size=1, max_size=4))
def test_layout_second_spellings_are_refused(layout: Layout, number: int, noise: str) -> None:
    key = layout.manifest_key(number)
    digits = f"{number:06}"
    for other in (key.replace(digits, noise + digits), key + noise, key.replace(digits, digits + noise)):
        found = layout.manifest_id(other)
        assert found is None or layout.manifest_key(found) == other


@layouts
@given(body=st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_layout_pointer_of_anything(layout: Layout, body: bytes) -> None:
    found = layout.pointer_id(body)
    assert found is None or 0 < found < 2**64


def test_layout_names_are_laminardbs() -> None:
    directory, flat = DirectoryLayout(), ObjectLayout()
    assert directory.manifest_key(1) == "checkpoints/checkpoint_000001/manifest.json"
    assert directory.sidecar_key(1) == "checkpoints/checkpoint_000001/state.bin"
    assert (directory.pointer_key, directory.pointer_body(1)) == ("checkpoints/latest.txt", b"checkpoint_000001")
    assert flat.manifest_key(1) == "manifests/manifest-000001.json"
    assert flat.sidecar_key(1) == "checkpoints/state-000001.bin"
    assert (flat.pointer_key, flat.pointer_body(1)) == ("manifests/latest.json", b'{"checkpoint_id": 1}')
    assert directory.pointer_id(b" checkpoint_000007\n") == 7


def test_batch_names() -> None:
    found = BATCH.fullmatch("nodes/a/checkpoints/batch-000042-part-0002.lz4")
    assert found is not None
    assert (found["prefix"], int(found["epoch"])) == ("nodes/a/", 42)
    assert BATCH.fullmatch("checkpoints/batch-42.lz4") is None


# Statuses

FAILED = {"Failed": "why"}


def stated(**statuses: Any) -> Any:
    return manifest(
        1,
        sink_commit_statuses={
            name: SinkFailed(status["Failed"]) if isinstance(status, dict) else status
            for name, status in statuses.items()
        },
    )


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ({}, {}, True),
        ({}, {"a": "Pending"}, True),
        ({"a": "Pending"}, {"a": "Pending"}, True),
        ({"a": "Pending"}, {"a": "Committed"}, True),
        ({"a": "Pending"}, {"a": FAILED}, True),
        ({"a": FAILED}, {"a": "Committed"}, True),
        ({"a": "Pending"}, {"a": "Pending", "b": "Committed"}, True),
        ({"a": "Committed"}, {"a": "Pending"}, False),
        ({"a": "Committed"}, {"a": FAILED}, False),
        ({"a": FAILED}, {"a": "Pending"}, False),
        ({"a": "Pending"}, {}, False),
        ({"a": "Committed", "b": "Pending"}, {"a": "Pending", "b": "Committed"}, False),
    ],
)
def test_statuses_move_forward(before: dict[str, Any], after: dict[str, Any], allowed: bool) -> None:
    stored, wanted = stated(**before), stated(**after)
    if allowed:
        assert merge_statuses(stored, wanted, about="x").sink_commit_statuses == wanted.sink_commit_statuses
        return
    with pytest.raises(Invalid, match="sink 'a'"):
        merge_statuses(stored, wanted, about="x")


# Increments


def versions_of(planned: Any) -> dict[str, int]:
    return {name: version.checkpoint_id for name, version in planned.manifest.own.states.items()}


def test_increment_first_is_full() -> None:
    planned = plan_increment(manifest(1), {"b": b"2", "a": b"1"}, None, full_every=10)
    assert (planned.manifest.is_incremental, planned.manifest.parent_id, planned.chunks) == (False, None, [])
    assert versions_of(planned) == {"a": 1, "b": 1}
    assert planned.manifest.own.chain_length == 0


def test_increment_holds_only_what_changed() -> None:
    states = {"same": b"s", "changed": b"1", "removed": b"r"}
    parent = plan_increment(manifest(1), states, None, full_every=10).manifest
    planned = plan_increment(manifest(4), {"same": b"s", "changed": b"2", "new": b"n"}, parent, full_every=10)
    assert sorted(planned.manifest.operator_states) == ["changed", "new"]
    assert versions_of(planned) == {"same": 1, "changed": 4, "new": 4}
    assert (planned.manifest.is_incremental, planned.manifest.parent_id) == (True, 1)
    assert planned.manifest.own.chain_length == 1


def test_large_state_goes_to_the_sidecar() -> None:
    encoded = encode({"b": b"xx", "a": b"yyy", "c": b"z"}, inline_threshold=1)
    assert encoded.chunks == [b"yyy", b"xx"]
    assert encoded.operators == {
        "a": OperatorCheckpoint.external(0, 3),
        "b": OperatorCheckpoint.external(3, 2),
        "c": OperatorCheckpoint.inline(b"z"),
    }


def test_inline_state_has_a_limit_in_all() -> None:
    """What does not fit any more goes to the sidecar; a smaller one after it may still fit."""
    encoded = encode({"a": b"12", "b": b"345", "c": b"6", "d": b"7"}, inline_threshold=3, inline_total=4)
    assert encoded.chunks == [b"345"]
    assert [name for name, state in encoded.operators.items() if not state.external] == ["a", "c", "d"]


def test_increment_rhythm() -> None:
    parent = None
    shape = []
    for number in range(1, 10):
        parent = plan_increment(manifest(number), {"same": b"s", "n": b"%d" % number}, parent, full_every=3).manifest
        shape.append(parent.parent_id)
    assert shape == [None, 1, 2, None, 4, 5, None, 7, 8]


def test_increment_of_one_is_always_full() -> None:
    parent = plan_increment(manifest(1), {"a": b"1"}, None, full_every=1).manifest
    assert plan_increment(manifest(2), {"a": b"1"}, parent, full_every=1).manifest.parent_id is None


@pytest.mark.parametrize("states", [{}, {"a": b"2"}], ids=["nothing left", "all changed"])
def test_increment_that_shares_nothing_is_full(states: dict[str, bytes]) -> None:
    parent = plan_increment(manifest(1), {"a": b"1"}, None, full_every=10).manifest
    planned = plan_increment(manifest(2), states, parent, full_every=10)
    assert (planned.manifest.is_incremental, planned.manifest.parent_id) == (False, None)
    assert planned.manifest.own.chain_length == 0


def test_increment_needs_an_older_parent_that_knows_its_states() -> None:
    newer = plan_increment(manifest(5), {"a": b"1"}, None, full_every=10).manifest
    assert plan_increment(manifest(3), {"a": b"1"}, newer, full_every=10).manifest.parent_id is None
    foreign = manifest(1, operator_states={"a": OperatorCheckpoint.inline(b"1")})
    assert plan_increment(manifest(2), {"a": b"1"}, foreign, full_every=10).manifest.parent_id is None


# State checksums, the walk


def test_state_checksum_rules() -> None:
    inline = {"b": OperatorCheckpoint.inline(b"2"), "a": OperatorCheckpoint.inline(b"1")}
    external = {"c": OperatorCheckpoint.external(0, 3)}
    inline_sum = hashlib.sha256(b"a\0MQ==\0b\0Mg==\0").hexdigest()
    assert state_checksum({}, None) is None
    assert state_checksum(external, None) is None
    assert state_checksum(inline, None) == inline_sum
    assert state_checksum({}, [b"ab", b"c"]) == hashlib.sha256(b"abc").hexdigest()
    assert state_checksum(external, iter([b"abc"])) == hashlib.sha256(b"abc").hexdigest()
    mixed = hashlib.sha256(inline_sum.encode() + b"abc").hexdigest()
    assert state_checksum(inline | external, [b"abc"]) == mixed
    assert state_checksum(inline, [b"abc"]) == mixed


@given(st.lists(st.binary(max_size=10), max_size=20))
def test_read_ahead_changes_nothing(pieces: list[bytes]) -> None:
    assert list(read_ahead(iter(pieces))) == pieces


def test_read_ahead_passes_errors_on() -> None:
    def failing() -> Any:
        yield b"1"
        raise Unavailable("gone")

    source = read_ahead(failing())
    assert next(source) == b"1"
    with pytest.raises(Unavailable):
        list(source)


class FakeValidator:
    def __init__(self, valid: set[int], failing: set[int]) -> None:
        self.valid, self.failing = valid, failing

    def validate(self, checkpoint_id: int) -> ValidationResult:
        if checkpoint_id in self.failing:
            raise Unavailable("503")
        fine = checkpoint_id in self.valid
        return ValidationResult(
            checkpoint_id, fine, [] if fine else [Issue("bad", True), Issue("odd"), Issue("worse", True)]
        )


def test_walk() -> None:
    ticks = iter([10.0, 12.5])
    tried: list[tuple[int, str | None]] = []
    report = walk_back(
        [1, 3, 9, 2], FakeValidator({1, 2}, {9}), clock=lambda: next(ticks), on_tried=lambda *seen: tried.append(seen)
    )
    assert (report.chosen_id, report.examined, report.elapsed, report.unreadable) == (2, 3, 2.5, [9])
    assert report.skipped == [(9, "could not be read: 503"), (3, "bad; worse")]
    assert [number for number, _ in tried] == [9, 3, 2]
