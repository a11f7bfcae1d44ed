"""The power goes after every single operation of the disk, and no acknowledged checkpoint is lost.

The disk forgets what was never synced: everything, nothing, or a seeded choice of it. The store lies several folders
deep in a place that does not exist when the first work begins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proof_checks import check, check_tidy
from proof_machines import LAYOUTS, Machine, contents
from proof_works import WORKS, Place, Work, manifest, prepared, saving, states

from holdfast.storage.objects import LocalObjects
from holdfast.testing.faults.disk import FaultyDisk
from holdfast.testing.faults.powerloss import ForgetfulDisk, PowerCut, keep_everything, lose_everything, seeded
from products import in_turn

SEEDS = 6

both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


class Aftermath:
    """The disks with which a machine may come back. One that was looked at before, with no more to answer for, is not
    looked at again: many cuts leave the same.
    """

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def of(self, disk: ForgetfulDisk, number: int, lines: list[str]) -> Iterator[ForgetfulDisk]:
        for choose in (lose_everything, keep_everything, *(seeded(number * SEEDS + seed) for seed in range(SEEDS))):
            found = disk.reboot(choose)
            content = (tuple(lines), tuple(contents(found)))
            if content not in self._seen:
                self._seen.add(content)
                yield found


def dying_after(disk: ForgetfulDisk, operations: int) -> Any:
    """The disk as a process sees it that is killed there: the disk itself stays on, and forgets nothing yet."""
    last = disk.operations + operations
    return FaultyDisk(disk, lambda _, __: PowerCut() if disk.operations >= last else None)  # type: ignore[return-value]


def after(work: Work, layout: str) -> tuple[ForgetfulDisk, list[str]]:
    """A disk on which the work was prepared, with what was acknowledged meanwhile. Not yet rebooted."""
    disk = ForgetfulDisk()
    lines: list[str] = []
    work.prepare(Machine(disk, layout), lines.append)
    return disk, lines


def second_run(place: Place, work: Work, lines: list[str], variant: str) -> None:
    """The same work succeeds, and whatever was acknowledged before it still holds."""
    variant = variant if work.may_differ else "first"
    work.run(place, lines.append, variant)
    ids = check(place, lines, work.keep, torn_is_seen=True)
    assert set(work.final) <= set(ids), "the second run did not finish the work"
    store = place.open()
    number = store.next_id()
    store.save(manifest(number, "plain", variant))
    assert store.recover_latest_validated().chosen_id == number


@pytest.mark.parametrize(("name", "layout"), in_turn(WORKS, LAYOUTS))
def test_nothing_acknowledged_is_lost(name: str, layout: str) -> None:
    work = WORKS[name]
    before, told = after(work, layout)
    whole = before.reboot(keep_everything)
    work.run(Machine(whole, layout, 1), [].append, "first")
    aftermath = Aftermath()
    for number in range(whole.operations + 1):
        disk = before.reboot(keep_everything)
        disk.cut_after(number)
        lines = list(told)
        with contextlib.suppress(PowerCut):
            work.run(Machine(disk, layout, 1), lines.append, "first")
        for found in aftermath.of(disk, number, lines):
            check(Machine(found, layout, 2), lines, work.keep, torn_is_seen=True)
            for variant in ("first", "second"):
                second_run(Machine(found.reboot(keep_everything), layout, 2), work, list(lines), variant)


@both_layouts
@pytest.mark.parametrize("name", WORKS)
def test_with_the_power_on_from_the_first_save_to_the_cut(name: str, layout: str) -> None:
    work = WORKS[name]
    disk, lines = after(work, layout)
    aftermath = Aftermath()
    for phase in range(2):
        for found in aftermath.of(disk, phase, lines):
            place = Machine(found, layout, 2)
            check(place, lines, work.keep, torn_is_seen=True)
            if not phase:
                second_run(place, work, list(lines), "second")
        work.run(Machine(disk, layout, 1), lines.append, "first")


def prune_all(place: Place, note: Callable[[str], None], variant: str) -> None:
    place.open().prune(1)


def recover_and_commit(place: Place, note: Callable[[str], None], variant: str) -> None:
    """A driver that restarts: what recovery chose, it takes for durable and tells its sinks."""
    chosen = place.open().recover_latest_validated().chosen_id
    if chosen is not None:
        note(f"saved {chosen}")


def next_states(place: Place, note: Callable[[str], None], variant: str) -> None:
    store = place.open()
    number = store.next_id()
    store.save_states(manifest(number, "states", variant), states(number, variant))
    note(f"saved {number}")


def next_plain(place: Place, note: Callable[[str], None], variant: str) -> None:
    store = place.open(max_retained=1)
    number = store.next_id()
    store.save(manifest(number, "plain", variant))
    note(f"saved {number}")


PAIRS: dict[str, tuple[Work, Callable[[Place, Callable[[str], None], str], None], int | None]] = {
    "save, then the same": (WORKS["save-with-state"], WORKS["save-with-state"].run, None),
    "save, then prune": (WORKS["save-with-state"], prune_all, 1),
    "plain save, then prune": (WORKS["save"], prune_all, 1),
    "save, then recovery": (WORKS["save-with-state"], recover_and_commit, None),
    "states, then a child": (Work(prepared("states"), saving("states", 2)), next_states, None),
    "states, then prune": (Work(prepared("states", "states"), saving("states", 3)), prune_all, 1),
    "first save, then another": (WORKS["save-first"], next_plain, 1),
    "batches, then the same": (WORKS["batches"], WORKS["batches"].run, None),
    "sidecar ahead, then the same": (WORKS["state-ahead"], WORKS["state-ahead"].run, None),
    "update, then prune": (WORKS["update"], prune_all, 1),
    "claim, then claim": (WORKS["claim"], WORKS["claim"].run, None),
    "prune, then a child": (WORKS["prune"], next_states, 2),
    "clean-up, then a save": (WORKS["gc"], next_plain, 1),
}


@both_layouts
@pytest.mark.parametrize("name", PAIRS)
def test_a_writer_dies_another_goes_on_and_then_the_power_goes(name: str, layout: str) -> None:
    """The first dies at n with the power on, so that the second sees what was never synced, and relies on it."""
    work, go_on, keep = PAIRS[name]
    before, told = after(work, layout)
    whole = before.reboot(keep_everything)
    work.run(Machine(whole, layout, 1), [].append, "first")
    aftermath = Aftermath()
    for number in range(whole.operations + 1):
        disk = before.reboot(keep_everything)
        lines = list(told)
        with contextlib.suppress(PowerCut):
            work.run(Machine(dying_after(disk, number), layout, 1), lines.append, "first")
        go_on(Machine(disk, layout, 2), lines.append, "first")
        for found in aftermath.of(disk, number, lines):
            check(Machine(found, layout, 3), lines, keep, torn_is_seen=True)


@both_layouts
@pytest.mark.parametrize("name", ["save-with-state", "states-incremental", "retention", "update"])
def test_a_clean_up_after_the_power_came_back_leaves_nothing_behind(name: str, layout: str) -> None:
    work = WORKS[name]
    before, _ = after(work, layout)
    whole = before.reboot(keep_everything)
    work.run(Machine(whole, layout, 1), [].append, "first")
    for number in range(0, whole.operations + 1, 3):
        disk = before.reboot(keep_everything)
        disk.cut_after(number)
        with contextlib.suppress(PowerCut):
            work.run(Machine(disk, layout, 1), [].append, "first")
        place = Machine(disk.reboot(seeded(number)), layout, 2)
        work.run(place, [].append, "second")
        check_tidy(place)
        assert place.open().objects.leftovers() == []


def test_the_real_disk_syncs_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk above is a model. That the real one syncs where the model says so can only be seen in its calls."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "deep" / "store"
    LocalObjects(str(root)).create("folder/key", [b"body"])
    [file] = [path for path in synced if path.endswith(".tmp")]
    assert synced.index(file) < synced.index(str(root / "folder"))
    assert {str(root / "folder"), str(root), str(tmp_path / "deep"), str(tmp_path)} <= set(synced)
    synced.clear()
    LocalObjects(str(root)).update("folder/key", lambda _: b"other")
    [file] = [path for path in synced if path.endswith(".tmp")]
    assert synced.index(file) < synced.index(str(root / "folder"))
