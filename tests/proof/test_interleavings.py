"""Two handles in a certain order, where each by itself does what it should: nothing acknowledged may suffer from it."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from proof_checks import check
from proof_works import Address, manifest, sidecar, states

from holdfast.base.steps import observe
from holdfast.checkpoints import CheckpointBatcher, CheckpointStore, CleanupPlan
from holdfast.errors import Corrupt, Fenced, HoldfastError, Unavailable
from servers.clouds import CLOUDS, FIXTURES, new_address

HOUR = 3600.0


class Clock:
    """A clock that a test moves; files keep the real one."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture(params=["directory", "object", *CLOUDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    if request.param in FIXTURES:
        url, options = new_address(request, request.param, "pipeline")
        yield Address(url, "object", options)
    else:
        yield Address(str(tmp_path), request.param)


def save_states_of(store: CheckpointStore, number: int) -> None:
    store.save_states(manifest(number, "states", "x"), states(number, "x"))


def test_a_repeat_with_another_manifest_does_not_destroy_what_was_saved(place: Address) -> None:
    place.open().save_state_data(1, [b"of an attempt that died"])
    store = place.open()
    store.save_with_state(manifest(1, "sidecar", "x"), sidecar(1, "x"))
    rebuilt = msgspec.structs.replace(manifest(1, "sidecar", "x"), timestamp_ms=1_800_000_000_000)
    with pytest.raises(Fenced):
        store.save_with_state(rebuilt, sidecar(1, "x"))
    assert check(place, ["saved 1"], None) == [1]


def test_a_clean_up_that_waits_takes_nothing_from_the_second_run_of_interrupted_work(place: Address) -> None:
    """The first attempt left a sidecar, long ago. A person reads what gc would do; meanwhile the work is repeated."""
    place.open().save_state_data(1, sidecar(1, "x"))
    clock = Clock()
    clock.ahead = 2 * HOUR
    cleaner = place.open(clock=clock)
    plan = cleaner.plan_cleanup()
    assert len(plan.orphans) == 1
    place.open().save_with_state(manifest(1, "sidecar", "x"), sidecar(1, "x"))
    clock.ahead = 0
    cleaner.apply(plan)
    assert check(place, ["saved 1"], None) == [1]


@pytest.mark.parametrize("layout", ["directory", "object"])
def test_a_clean_up_at_the_worst_moment_of_a_second_run(layout: str, tmp_path: Path) -> None:
    """Planned when the second run has its sidecar and not yet its manifest, carried out when it has both."""
    place = Address(str(tmp_path), layout)
    place.open().save_state_data(1, sidecar(1, "x"))
    [left] = tmp_path.rglob("state*.bin")
    os.utime(left, (1, 1))
    cleaner = place.open()
    plans: list[CleanupPlan] = []

    def plan(name: str, phase: str, _: float) -> None:
        if (name, phase) == ("manifest.create", "begin"):
            plans.append(cleaner.plan_cleanup())

    stop = observe(plan)
    try:
        place.open().save_with_state(manifest(1, "sidecar", "x"), sidecar(1, "x"))
    finally:
        stop()
    [planned] = plans
    assert len(planned.orphans) == 1
    cleaner.apply(planned)
    assert check(place, ["saved 1"], None) == [1]


def test_the_same_for_batches(place: Address) -> None:
    def flush(store: CheckpointStore) -> CheckpointBatcher:
        batcher = CheckpointBatcher(store)
        batcher.add("key", b"the same in both runs")
        batcher.flush(1)
        return batcher

    flush(place.open())
    clock = Clock()
    clock.ahead = 2 * HOUR
    cleaner = place.open(clock=clock)
    plan = cleaner.plan_cleanup()
    assert plan.orphans
    store = place.open()
    store.save(manifest(1, "plain", "x").with_batches(flush(store).flushed(1)))
    clock.ahead = 0
    cleaner.apply(plan)
    assert place.open().validate_checkpoint(1).valid


@pytest.mark.parametrize("tidy", ["prune", "own clean-up", "clean-up of another"])
def test_state_written_ahead_and_swept_is_never_vouched_for(tidy: str, place: Address) -> None:
    """Either the save fails, or the checkpoint is whole."""
    store = place.open()
    store.save_state_data(1, [b"state"])
    if tidy == "prune":
        store.prune(3)
    elif tidy == "own clean-up":
        store.cleanup_orphans(older_than=0)
    else:
        place.open().cleanup_orphans(older_than=0)
    checksum = hashlib.sha256(b"state").hexdigest()
    try:
        store.save(msgspec.structs.replace(manifest(1, "plain", "x"), state_checksum=checksum))
    except HoldfastError:
        assert place.open().list_ids() == []
    else:
        assert place.open().validate_checkpoint(1).valid
        assert place.open().load_state_data(1) == b"state"


def test_batches_that_were_swept_are_never_vouched_for(place: Address) -> None:
    store = place.open()
    batcher = CheckpointBatcher(store)
    batcher.add("key", b"data")
    batcher.flush(1)
    place.open().cleanup_orphans(older_than=0)
    with pytest.raises(HoldfastError):
        store.save(manifest(1, "plain", "x").with_batches(batcher.flushed(1)))
    assert place.open().list_ids() == []


def test_an_id_that_was_removed_and_is_saved_again_gets_its_state_again(place: Address) -> None:
    store = place.open()
    store.save_with_state(manifest(1, "sidecar", "x"), sidecar(1, "x"))
    place.open().save_with_state(manifest(2, "sidecar", "x"), sidecar(2, "x"))
    assert place.open().prune(1) == 1
    store.save_with_state(manifest(1, "sidecar", "x"), sidecar(1, "x"))
    assert check(place, ["saved 1", "saved 2"], None) == [1, 2]


def test_a_save_that_lags_behind_is_pruned_at_any_moment(place: Address) -> None:
    """Newer ones are kept instead, folder and all gone: it has happened, and harms nobody."""
    for number in (5, 6):
        place.open().save_with_state(manifest(number, "sidecar", "x"), sidecar(number, "x"))
    were_pruned = []
    for moment in itertools.count():
        events = 0

        def prune(*_: object, moment: int = moment) -> None:
            nonlocal events
            events += 1
            if events == moment + 1:
                place.open().prune(1)

        stop = observe(prune)
        try:
            place.open().save_with_state(manifest(4, "sidecar", "x"), sidecar(4, "x"))
        finally:
            stop()
        if events <= moment:
            break
        were_pruned.append(place.open().list_ids() == [6])
        place.open().prune(1)
        assert check(place, ["saved 6"], None) == [6]
    assert {*were_pruned} == {True, False}


def test_a_clean_up_that_does_not_wait_is_noticed_at_any_moment_of_a_save(place: Address) -> None:
    """It may take an unfinished file, or a sidecar whose manifest is on its way: then the save is no success."""
    ends: dict[str, bool | None] = {"saved": True, "sidecar.swept": False, "disk.swept": None}
    seen: set[str] = set()
    for number in itertools.count(1):
        events = 0
        has_manifest = False

        def clean_up(name: str, phase: str, _: float, *, moment: int = number) -> None:
            nonlocal events, has_manifest
            has_manifest = has_manifest or (name, phase) == ("manifest.create", "end")
            events += not has_manifest
            if events == moment and not has_manifest:
                events += 1
                place.open().cleanup_orphans(older_than=0)

        # On object storage a save looks again if it took long, and with this grace each one did.
        writer = place.open(orphan_grace=0) if place.options else place.open()
        stop = observe(clean_up)
        try:
            writer.save_with_state(manifest(number, "sidecar", "x"), sidecar(number, "x"))
            outcome = "saved"
        except (Corrupt, Unavailable) as error:
            outcome = error.code
        finally:
            stop()
        is_there = number in place.open().list_ids()
        assert (place.open().validate_checkpoint(number).valid if is_there else None) == ends[outcome]
        seen.add(outcome)
        if events < number:
            break
    assert {"saved", "sidecar.swept"} <= seen


def test_a_child_is_not_born_on_a_parent_that_somebody_removed(place: Address) -> None:
    store = place.open()
    save_states_of(store, 1)
    other = place.open()
    other.save_with_state(manifest(2, "sidecar", "x"), sidecar(2, "x"))
    other.prune(1)
    save_states_of(store, 3)
    assert check(place, ["saved 2", "saved 3"], None) == [2, 3]


def test_retention_of_one_handle_spares_the_chain_that_another_builds(place: Address) -> None:
    """Two drivers at once is not how it should be, but what was acknowledged last must be there."""
    full, chain = place.open(max_retained=2), place.open()
    save_states_of(chain, 1)
    full.save_with_state(manifest(2, "sidecar", "x"), sidecar(2, "x"))
    save_states_of(chain, 3)
    full.save_with_state(manifest(4, "sidecar", "x"), sidecar(4, "x"))
    save_states_of(chain, 5)
    full.save_with_state(manifest(6, "sidecar", "x"), sidecar(6, "x"))
    save_states_of(chain, 7)
    store = place.open()
    assert store.recover_latest_validated().chosen_id == 7
    assert store.load_states(7) == states(7, "x")


def test_a_prune_that_waited_for_an_answer_looks_again(place: Address) -> None:
    """The newer one was whole when the plan was shown, and is not when the person says yes."""
    clock = Clock()
    store = place.open(clock=clock)
    for number in (1, 2):
        store.save_with_state(manifest(number, "sidecar", "x"), sidecar(number, "x"))
    plan = store.plan_prune(1)
    assert [removal.checkpoint_id for removal in plan.checkpoints] == [1]
    found = store.load_by_id(2)
    assert found is not None
    assert found.own.sidecar is not None
    store.objects.delete([found.own.sidecar.key])
    clock.ahead = HOUR
    assert store.apply(plan) == 0
    assert place.open().recover_latest_validated().chosen_id == 1


def test_a_stranger_s_folders_and_files_below_the_store_are_left_alone(tmp_path: Path) -> None:
    """Empty landing folders, another tool's temporary files, and whatever a link leads to."""
    root, outside = tmp_path / "store", tmp_path / "outside"
    for folder in ("landing/orders", "checkpoints/notes", "spark/offsets"):
        (root / folder).mkdir(parents=True)
    (outside / "empty").mkdir(parents=True)
    foreign = [root / "spark/offsets/.1.4d3f.tmp", root / "checkpoints/.README.tmp", outside / ".state.bin.abc-1.tmp"]
    for file in foreign:
        file.write_text("not yours")
    os.symlink(outside, root / "link")
    store = Address(str(root), "directory").open()
    store.save_with_state(manifest(1, "sidecar", "x"), sidecar(1, "x"))
    store.cleanup_orphans(older_than=0)
    store.prune(1)
    kept = [*foreign, root / "landing/orders", root / "checkpoints/notes", root / "spark/offsets", outside / "empty"]
    assert [path for path in kept if not path.exists()] == []
    assert check(Address(str(root), "directory"), ["saved 1"], None) == [1]
