"""Disks that are full, read-only, denied or broken at every single operation.

Whatever fails: the error is one of ours and says what is unchanged, nothing acknowledged is lost, nothing half-done is
visible, and once the fault is gone the same call through the same handle succeeds.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from proof_acts import Act, Flushing, saves
from proof_checks import check, check_tidy
from proof_machines import LAYOUTS, ROOT, Machine, contents
from proof_works import (
    WORKS,
    Address,
    Note,
    Place,
    commit_sinks,
    manifest,
    prepared,
    sidecar,
    with_claims,
    with_orphans,
    with_pending,
    with_stray_sidecar,
)

from holdfast.checkpoints import CheckpointStore
from holdfast.errors import HoldfastError, Unavailable
from holdfast.storage.objects import LocalObjects
from holdfast.testing.faults.disk import FaultyDisk
from holdfast.testing.faults.powerloss import ForgetfulDisk, keep_everything

ERRORS = {
    errno.ENOSPC: "disk.full",
    errno.EDQUOT: "disk.full",
    errno.EROFS: "disk.read-only",
    errno.EACCES: "disk.denied",
    errno.EIO: "disk.error",
}
READS = ("path.entry", "file.open", "directory.scan", "directory.lock")


class Lasting:
    """A place whose every handle is one and the same, for what is written in terms of a place."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def open(self, **_: Any) -> CheckpointStore:
        return self._store


def save_ahead(store: CheckpointStore, note: Note) -> None:
    if 2 not in store.list_ids():  # once it is there the state cannot be written again, and the caller need not
        store.save_state_data(2, sidecar(2, "first"))
    store.save(manifest(2, "ahead", "first"))
    note("saved 2")


class Case(msgspec.Struct, frozen=True):
    prepare: Callable[[Place, Note], None]
    act: Act
    keep: int | None = None
    settings: dict[str, Any] = {}


CASES = {
    "save": Case(prepared("plain"), saves("plain", 2)),
    "first save": Case(prepared(), saves("sidecar", 1)),
    "save_with_state": Case(prepared("sidecar"), saves("sidecar", 2)),
    "stray sidecar": Case(with_stray_sidecar, saves("sidecar", 3)),
    "state ahead": Case(prepared("plain"), save_ahead),
    "save_states": Case(prepared("states"), saves("states", 2)),
    "flush": Case(prepared("batches-1"), Flushing(3)),
    "update": Case(
        with_pending,
        lambda store, note: commit_sinks(Lasting(store), note, "first"),
        keep=1,
        settings={"max_retained": 1},
    ),
    "prune": Case(WORKS["prune"].prepare, lambda store, note: note(f"pruned {store.prune(2)}"), keep=2),
    "retention": Case(WORKS["retention"].prepare, saves("sidecar", 5), keep=2, settings={"max_retained": 2}),
    "clean-up": Case(with_orphans, lambda store, note: note(f"cleaned {store.cleanup_orphans(older_than=0)}")),
    "claim": Case(with_claims, lambda store, note: note(f"generation {store.claim().generation}")),
    "recovery": Case(prepared("states", "states"), lambda store, note: _recover(store)),
}


def _recover(store: CheckpointStore) -> None:
    report = store.recover_latest_validated()
    assert report.chosen_id == 2 or report.unreadable, "a disk that cannot be read is not a damaged checkpoint"


def assert_says_what_a_person_needs(error: HoldfastError, code: int) -> None:
    assert isinstance(error, Unavailable), repr(error)
    assert error.code == ERRORS[code]
    assert error.about is not None
    assert ROOT in error.about
    assert error.unchanged
    assert error.next_step
    assert str(error).count(error.about) >= 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "until mended"])
@pytest.mark.parametrize("name", CASES)
def test_every_operation_of_the_disk_fails(name: str, lasts: bool, layout: str) -> None:
    case = CASES[name]
    before = ForgetfulDisk()
    told: list[str] = []
    case.prepare(Machine(before, layout), told.append)
    counted = FaultyDisk(before.reboot(keep_everything), lambda number, operation: None)
    case.act(Machine(counted, layout).open(**case.settings), [].append)
    seen: set[Any] = set()
    failed = 0
    for number in range(len(counted.operations)):
        for code in [list(ERRORS)[number % len(ERRORS)]] if lasts else ERRORS:
            disk = before.reboot(keep_everything)
            failed += _fails_and_is_repeated(case, disk, layout, list(told), number, code, lasts, seen)
    assert failed > 0, "no fault ever reached the caller: this test is blind"


def _fails_and_is_repeated(
    case: Case,
    behind: ForgetfulDisk,
    layout: str,
    lines: list[str],
    number: int,
    code: int,
    lasts: bool,
    seen: set[Any],
) -> bool:
    mended = False

    def fail(at: int, operation: str) -> OSError | None:
        hit = at == number or (lasts and at > number and operation not in READS)
        return OSError(code, errno.errorcode[code]) if hit and not mended else None

    store = Machine(FaultyDisk(behind, fail), layout, 1).open(**case.settings)
    failed = False
    try:
        case.act(store, lines.append)
    except HoldfastError as error:
        assert_says_what_a_person_needs(error, code)
        failed = True
    mended = True
    found = (failed, tuple(lines), tuple(contents(behind)))
    if found in seen:  # another error at the same place: what it left was checked
        return failed
    seen.add(found)
    place = Machine(behind, layout, 2)
    check(place, lines, case.keep)
    if failed:
        case.act(store, lines.append)  # the same call, through the same handle
        check(place, lines, case.keep)
    check_tidy(place, spare_batches_of=place.open().list_ids())
    check(place, lines, case.keep)
    return failed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EACCES, errno.EROFS])
def test_folders_above_the_store_need_not_be_syncable(code: int, layout: str) -> None:
    """As on an automounted home, or below a folder that this user may pass through and not read."""
    behind = ForgetfulDisk()
    for folder in ("/home", "/home/me"):
        behind.make_directory(folder)

    class Odd(FaultyDisk):
        def sync_directory(self, path: str) -> None:
            if path in ("/", "/home"):
                raise OSError(code, "cannot sync")
            super().sync_directory(path)

    objects = LocalObjects("/home/me/store", disk=Odd(behind, lambda number, operation: None))
    store = CheckpointStore(objects, LAYOUTS[layout]())
    store.save_with_state(manifest(1, "sidecar", "first"), sidecar(1, "first"))
    assert store.recover_latest_validated().chosen_id == 1


FULL = """
import json, resource, sys
sys.path[:] = json.loads(sys.argv[1])
from proof_works import Address, manifest
from holdfast.errors import HoldfastError
store = Address(sys.argv[2], sys.argv[3]).open()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
store.save_with_state(manifest(1, "limit", "x"), [b"small"])
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
try:
    store.save_with_state(manifest(2, "limit", "x"), [b"large" * 100_000])
    told = ["acknowledged"]
except HoldfastError as error:
    told = [type(error).__name__, error.code, error.about, error.unchanged]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
left = store.list_ids()
store.save_with_state(manifest(2, "limit", "x"), [b"large" * 100_000])
print(json.dumps([told, left, store.list_ids()]))
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_the_kernel_refuses_to_let_grow(layout: str, tmp_path: Path) -> None:
    """A real refusal in the middle of a real write, by the process's file size limit."""
    command = [sys.executable, "-c", FULL, json.dumps(sys.path), str(tmp_path), layout]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    told, left, after = json.loads(done.stdout)
    assert told[0] == "Unavailable", told
    assert str(tmp_path) in told[2]
    assert told[3]
    assert (left, after) == ([1], [1, 2])
    store = Address(str(tmp_path), layout).open()
    assert store.load_state_data(1) == b"small"
    assert store.load_state_data(2) == b"large" * 100_000
    assert all(store.validate_checkpoint(number).valid for number in after)
    check_tidy(Address(str(tmp_path), layout), str(tmp_path))
