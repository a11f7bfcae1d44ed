"""Eight processes at once, and one that was frozen: of each id there is one winner, and its bytes stay as they are."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
import proof_racers
import pytest
from proof_checks import check_tidy
from proof_machines import LAYOUTS
from proof_works import Address, manifest, noise, sidecar

from holdfast.checkpoints import CheckpointStore
from holdfast.errors import Fenced, Unavailable
from holdfast.storage.files.disk import PosixDisk
from holdfast.storage.objects.local import LocalObjects
from servers.clouds import CLOUDS, FIXTURES, new_address
from servers.hdfs import HdfsServer

RACERS = 8
PLACES = ["directory", "object", *CLOUDS, "hdfs"]
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import proof_racers; proof_racers.be_zombie()"


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Address]:
    if request.param in FIXTURES:
        url, options = new_address(request, request.param, "pipeline")
        yield Address(url, "object", options)
        return
    if request.param == "hdfs":
        hdfs: HdfsServer = request.getfixturevalue("hdfs")
        yield Address(hdfs.new_folder(), "object", {"dfs.replication": "2"})
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as root:
        yield Address(root, request.param)


def race(what: str, place: Address, rounds: int) -> dict[int, Any]:
    """What each racer answered; none is left running."""
    fresh = multiprocessing.get_context("spawn")
    barrier, answers = fresh.Barrier(RACERS, timeout=60), fresh.SimpleQueue()
    where = msgspec.structs.asdict(place)
    racers = [
        fresh.Process(target=proof_racers.work, args=(what, where, racer, barrier, answers, rounds), daemon=True)
        for racer in range(RACERS)
    ]
    for racer in racers:
        racer.start()
    try:
        found = dict(answers.get() for _ in racers)
        for racer in racers:
            racer.join(30)
    finally:
        for racer in racers:
            racer.kill()
    for answer in found.values():
        if isinstance(answer, BaseException):
            raise answer
    return found


def rounds_of(place: Address, directory: int, object_: int, cloud: int) -> int:
    return cloud if place.options else {"directory": directory, "object": object_}[place.layout]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_of_eight_processes_on_one_id_one_wins(place: Address) -> None:
    rounds = rounds_of(place, 40, 20, 10)
    outcomes = race("one_id", place, rounds)
    store = place.open()
    assert store.list_ids() == list(range(1, rounds + 1))
    for number in range(1, rounds + 1):
        of_round = {racer: outcomes[racer][number - 1] for racer in outcomes}
        assert sorted(of_round.values()) == ["fenced"] * (RACERS - 1) + ["won"], of_round
        [winner] = (racer for racer, outcome in of_round.items() if outcome == "won")
        found = store.load_by_id(number)
        assert found is not None
        assert found.table_offsets["winner"].offsets == {"racer": str(winner)}
        assert store.validate_checkpoint(number).valid
        expected = b"".join(proof_racers.racer_state(number, winner))
        assert (store.load_state_data(number) or b"") == expected
    assert store.latest_pointer() == rounds
    check_tidy(place, None if place.options else place.url)
    assert all(store.validate_checkpoint(number).valid for number in range(1, rounds + 1))


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_no_generation_is_claimed_twice(place: Address) -> None:
    rounds = rounds_of(place, 10, 10, 4)
    generations = [generation for found in race("claims", place, rounds).values() for generation in found]
    assert len(set(generations)) == RACERS * rounds
    newest, stale = place.open(), place.open()
    stale.claim()
    assert newest.claim().generation > max(generations)
    newest.save(manifest(1, "plain", "race"))
    with pytest.raises(Fenced):
        stale.save(manifest(2, "plain", "race"))


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_no_commit_is_lost_when_eight_sinks_commit_at_once(place: Address) -> None:
    rounds = rounds_of(place, 6, 6, 3)
    sinks = tuple(f"sink-{racer}" for racer in range(RACERS))
    for number in range(1, rounds + 1):
        place.open().save_with_state(manifest(number, "sidecar", "race", pending=sinks), sidecar(number, "race"))
    race("commits", place, rounds)
    store = place.open()
    for number in range(1, rounds + 1):
        found = store.load_by_id(number)
        assert found is not None
        assert found.sink_commit_statuses == dict.fromkeys(sinks, "Committed")
        assert store.validate_checkpoint(number).valid
        assert store.load_state_data(number) == b"".join(sidecar(number, "race"))


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_saving_goes_on_while_others_prune_and_clean_up(place: Address) -> None:
    rounds = rounds_of(place, 12, 12, 4)
    saved = {number: racer for racer, found in race("saves_and_removals", place, rounds).items() for number in found}
    store = place.open()
    ids = store.list_ids()
    assert max(saved) in ids
    assert store.latest_pointer() == max(saved)
    assert store.recover_latest_validated().chosen_id == max(saved)
    for number in ids:
        result = store.validate_checkpoint(number)
        assert result.valid, result.reason
        assert store.load_state_data(number) == noise("race", number, saved[number])
    store.prune(3)
    assert store.list_ids() == sorted(saved)[-3:]
    check_tidy(place, None if place.options else place.url)


class Frozen:
    """A process that was stopped in the middle of its work, until `thaw`."""

    def __init__(self, place: Address, do: str, freeze: tuple[str, str, int], number: int, claim: bool = False) -> None:
        order = {"place": place, "do": do, "freeze": freeze, "number": number, "claim": claim}
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order))
        self._process.stdin.close()

    def __enter__(self) -> Frozen:
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise AssertionError(f"it was never frozen, it ended: {self.outcome()}")
        return self

    def outcome(self) -> str:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            return output.read().decode().strip()

    def thaw(self) -> str:
        """Let it go on to its end; how that was."""
        os.kill(self._process.pid, signal.SIGCONT)
        outcome = self.outcome()
        assert self._process.wait(60) == 0
        return outcome

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ValueError):
            assert self._process.stdout is not None
            self._process.stdout.close()


FREEZES = {
    "after the lease check": ("manifest.create", "begin", 1),
    "between sidecar and manifest": ("sidecar.create", "end", 1),
    "before the sidecar": ("sidecar.create", "begin", 1),
}


@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize(
    ("do", "freeze"), [("save", "after the lease check"), *(("save_with_state", freeze) for freeze in FREEZES)]
)
def test_a_zombie_is_fenced(do: str, freeze: str, place: Address) -> None:
    place.open().save(manifest(1, "plain", "race"))
    with Frozen(place, do, FREEZES[freeze], 2, claim=True) as frozen:
        other = place.open()
        other.claim("the new driver")
        other.save_with_state(proof_racers.racer_manifest(2, 1), [b"of the new driver"])
        assert frozen.thaw().startswith("Fenced ")
    store = place.open()
    found = store.load_by_id(2)
    assert found is not None
    assert found.table_offsets["winner"].offsets == {"racer": "1"}
    assert store.load_state_data(2) == b"of the new driver"
    assert store.validate_checkpoint(2).valid
    assert store.latest_pointer() == 2
    check_tidy(place, None if place.options else place.url)
    assert store.load_state_data(2) == b"of the new driver"


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_a_zombie_whose_id_nobody_took_does_no_harm(place: Address) -> None:
    """The new driver skips the id of which it sees a trace. Whatever becomes of the zombie, it is not the newest."""
    place.open().save(manifest(1, "plain", "race"))
    with Frozen(place, "save_with_state", FREEZES["between sidecar and manifest"], 2, claim=True) as frozen:
        other = place.open()
        other.claim("the new driver")
        number = other.next_id()
        assert number == 3
        other.save_with_state(manifest(3, "sidecar", "race"), sidecar(3, "race"))
        outcome = frozen.thaw()
    assert outcome == "Fenced lease.lost" or outcome == "done"
    store = place.open()
    assert store.list_ids() == ([1, 2, 3] if outcome == "done" else [1, 3])
    assert all(store.validate_checkpoint(found).valid for found in store.list_ids())
    assert store.recover_latest_validated().chosen_id == store.latest_pointer() == 3


@pytest.mark.parametrize("place", ["directory", "object"], indirect=True)
@pytest.mark.parametrize("at", [("file.link", "begin", 1), ("file.link", "end", 1), ("directory.sync", "begin", 1)])
def test_a_zombie_in_the_middle_of_creating_its_manifest(at: tuple[str, str, int], place: Address) -> None:
    """Before the link the other wins; after it the zombie has won, and the other is told so. Never both, never none."""
    with Frozen(place, "save", at, 1) as frozen:
        other = place.open()
        if at == ("file.link", "begin", 1):
            other.save_with_state(proof_racers.racer_manifest(1, 1), [b"of the new driver"])
            assert frozen.thaw() == "Fenced checkpoint.taken"
            assert other.load_state_data(1) == b"of the new driver"
        else:
            with pytest.raises(Fenced):
                other.save_with_state(proof_racers.racer_manifest(1, 1), [b"of the new driver"])
            assert frozen.thaw() == "done"
            assert other.load_state_data(1) is None
    store = place.open()
    assert store.validate_checkpoint(1).valid
    assert store.latest_pointer() == 1
    check_tidy(place, place.url)


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_an_update_that_was_overtaken_by_a_prune_brings_nothing_back(place: Address) -> None:
    """Frozen after it read what it is about to change, and before it looked again."""
    two_with_one_pending(place)
    freeze = ("object.update", "begin", 1) if place.options else ("manifest.update", "begin", 1)
    with Frozen(place, "update", freeze, 1) as frozen:
        assert place.open().prune(1) == 1
        assert frozen.thaw() == "NotFound checkpoint.not-found"
    assert place.open().list_ids() == [2]
    assert place.open().validate_checkpoint(2).valid
    check_tidy(place, None if place.options else place.url)


@pytest.mark.parametrize("place", ["directory", "object"], indirect=True)
@pytest.mark.parametrize("at", ["file.write", "file.sync", "file.rename", "directory.sync"])
def test_a_prune_waits_for_an_update_under_way(at: str, place: Address) -> None:
    """The update holds the lock: for a prune that gives up, and for one that comes later."""
    two_with_one_pending(place)
    with Frozen(place, "update", (at, "begin", 1), 1) as frozen:
        with pytest.raises(Unavailable, match="holds the lock") as caught:
            impatient(place).prune(1)
        assert caught.value.code == "disk.locked"
        assert place.open().list_ids() == [1, 2]
        assert frozen.thaw() == "done"
    store = place.open()
    assert all(store.validate_checkpoint(number).valid for number in (1, 2))
    assert store.prune(1) == 1
    check_tidy(place, place.url)


def two_with_one_pending(place: Address) -> None:
    store = place.open()
    store.save_with_state(manifest(1, "sidecar", "race", pending=("a",)), sidecar(1, "race"))
    store.save_with_state(manifest(2, "sidecar", "race"), sidecar(2, "race"))


def impatient(place: Address) -> CheckpointStore:
    """A handle that waits for a lock no longer than a tenth of a second."""
    objects = LocalObjects(place.url, disk=PosixDisk(lock_timeout=0.1))
    return CheckpointStore(objects, LAYOUTS[place.layout](), max_retained=None)


@pytest.mark.parametrize("place", ["directory", "object"], indirect=True)
def test_a_frozen_holder_of_the_lock_does_not_stop_a_save(place: Address) -> None:
    """It holds the lock under which `latest` moves. A save is durable without that; `latest` follows with the next."""
    place.open().save(manifest(1, "plain", "race"))
    with Frozen(place, "save", ("file.rename", "begin", 1), 2) as frozen:
        impatient(place).save(manifest(3, "plain", "race"))
        assert place.open().recover_latest_validated().chosen_id == 3
        assert frozen.thaw() == "done"
    assert place.open().latest_pointer() == 2
    place.open().save(manifest(4, "plain", "race"))
    assert place.open().latest_pointer() == 4
