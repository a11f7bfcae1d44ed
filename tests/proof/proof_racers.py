"""What the racing processes do. Each is started fresh, lives for all rounds, and meets the others at a barrier."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec
from proof_works import Address, manifest, noise

from holdfast.base.steps import observe
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import CheckpointManifest, ConnectorCheckpoint
from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid

MODES = ("with-state", "plain", "ahead", "same-state")
Meet = Callable[[], object]


def racer_manifest(number: int, racer: int) -> CheckpointManifest:
    return msgspec.structs.replace(
        manifest(number, "race", "race"), table_offsets={"winner": ConnectorCheckpoint({"racer": str(racer)})}
    )


def racer_state(number: int, racer: int) -> list[bytes]:
    mode = MODES[number % len(MODES)]
    if mode == "plain":
        return []
    return [noise("race", number, racer if mode != "same-state" else "all", size=20_000)]


def _save(store: CheckpointStore, number: int, racer: int) -> None:
    mode = MODES[number % len(MODES)]
    if mode == "plain":
        store.save(racer_manifest(number, racer))
    elif mode == "ahead":
        store.save_state_data(number, racer_state(number, racer))
        store.save(racer_manifest(number, racer))
    else:
        store.save_with_state(racer_manifest(number, racer), racer_state(number, racer))


def one_id(place: Address, racer: int, meet: Meet, rounds: int) -> list[str]:
    """Save id after id, always the one that all others save; the outcome of each."""
    lasting = place.open()
    outcomes = []
    for number in range(1, rounds + 1):
        store = lasting if racer % 2 else place.open()
        meet()
        try:
            _save(store, number, racer)
            outcomes.append("won" if store.latest_pointer() == number else f"won, latest is {store.latest_pointer()}")
        except Fenced:
            outcomes.append("fenced")
        except HoldfastError as error:
            outcomes.append(repr(error))
    return outcomes


def claims(place: Address, racer: int, meet: Meet, rounds: int) -> list[int]:
    """Claim again and again: the generations."""
    found = []
    for _ in range(rounds):
        meet()
        found.append(place.open().claim(f"racer {racer}").generation)
    return found


def commits(place: Address, racer: int, meet: Meet, rounds: int) -> list[int]:
    """In each of these checkpoints commit one's own sink; how often that took another try."""
    store = place.open()
    retries = []
    for number in range(1, rounds + 1):
        meet()
        for attempt in range(1000):
            found = store.load_by_id(number)
            assert found is not None
            statuses: Any = {**found.sink_commit_statuses, f"sink-{racer}": "Committed"}
            try:
                store.update_manifest(msgspec.structs.replace(found, sink_commit_statuses=statuses))
            except (Conflict, Invalid):
                continue
            retries.append(attempt)
            break
    return retries


def saves_and_removals(place: Address, racer: int, meet: Meet, rounds: int) -> list[int]:
    """Odd ones out: racer 0 prunes, racer 1 cleans up, the others save ids of their own with retention; their ids."""
    store = place.open(max_retained=3)
    meet()
    saved = []
    for number in range(racer, racer + 8 * rounds, 8):
        if racer == 0:
            store.prune(3)
        elif racer == 1:
            store.cleanup_orphans()
        else:
            store.save_with_state(racer_manifest(number, racer), [noise("race", number, racer)])
            saved.append(number)
    return saved


def work(what: str, place: dict[str, Any], racer: int, barrier: Any, answers: Any, rounds: int) -> None:
    """The whole life of one process."""
    try:
        answers.put((racer, globals()[what](Address(**place), racer, barrier.wait, rounds)))
    except BaseException as error:
        barrier.abort()  # nobody waits for one that is gone
        answers.put((racer, error if isinstance(error, HoldfastError) else RuntimeError(repr(error))))


def freeze_at(name: str, phase: str, count: int) -> None:
    """Stop this process with SIGSTOP when it comes to this event for the `count`-th time."""
    seen = 0

    def observer(step: str, at: str, _: float) -> None:
        nonlocal seen
        if (step, at) == (name, phase):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGSTOP)

    observe(observer)


def zombie(order: dict[str, Any]) -> str:
    """Do one thing, being frozen in the middle of it; how it ended."""
    store = Address(**order["place"]).open()
    if order["claim"]:
        store.claim("zombie")
    freeze_at(*order["freeze"])
    number = order["number"]
    try:
        if order["do"] == "save":
            store.save(racer_manifest(number, 0))
        elif order["do"] == "save_with_state":
            store.save_with_state(racer_manifest(number, 0), [b"of the zombie"])
        elif order["do"] == "update":
            found = store.load_by_id(number)
            assert found is not None
            statuses: Any = dict.fromkeys(found.sink_commit_statuses, "Committed")
            store.update_manifest(msgspec.structs.replace(found, sink_commit_statuses=statuses))
        elif order["do"] == "prune":
            store.prune(1)
    except HoldfastError as error:
        return f"{type(error).__name__} {error.code}"
    return "done"


def be_zombie() -> None:
    """The whole life of a process that is frozen: an order on standard input, the outcome on standard output."""
    print(zombie(msgspec.json.decode(sys.stdin.buffer.read())), flush=True)
