"""Any order of sessions, writes, clearings, restarts and crashes, against a model of a few lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.errors import Invalid
from holdfast.index import Index, SourceCheckpoint, session
from holdfast.index.records import SCHEMA
from holdfast.storage.kv.open import open_kv
from index_places import PLACES, Place

KEYS = st.sampled_from([b"a", b"b", b"a\x00", b"\xff", b"ab"])
IDS = st.sampled_from(["a", "a:b", "b"])
POSITIONS = st.none() | st.binary(max_size=4)


class Machine(RuleBasedStateMachine):
    """The index under test beside what it should hold: committed, and as the open session would leave it."""

    place: Place
    request: Any

    def __init__(self) -> None:
        super().__init__()
        self.url = self.place.fresh(self.request)
        self.is_persistent = self.place.abilities.persistent
        self.results: dict[bytes, bytes] = {}
        self.checkpoints: dict[str, SourceCheckpoint] = {}
        self.hash: int | None = None
        self.gaps = 0
        self.depth = 0
        self.is_large = False
        self.staged: list[tuple[Any, Any, Any]] = []
        self.open()

    def open(self) -> None:
        self.store = open_kv(self.url, SCHEMA, "exclusive")
        self.index = Index(self.store)

    def teardown(self) -> None:
        self.index.close()

    def write(self, where: dict[Any, Any], key: Any, value: Any) -> None:
        """What the model does for a write that the index has let pass."""
        self.staged.append((where, key, value))
        if self.depth == 0:
            self.apply()

    def apply(self) -> None:
        for where, key, value in self.staged:
            where.pop(key, None) if value is None else where.__setitem__(key, value)
        self.staged = []

    @property
    def may_write(self) -> bool:
        return self.depth > 0 or not self.is_persistent

    @rule(key=KEYS, value=st.binary(max_size=3))
    def put(self, key: bytes, value: bytes) -> None:
        if self.may_write:
            self.index.results.put(key, value)
            self.write(self.results, key, value)
        else:
            with pytest.raises(Invalid):
                self.index.results.put(key, value)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        if self.may_write:
            self.index.results.delete(key)
            self.write(self.results, key, None)
        else:
            with pytest.raises(Invalid):
                self.index.results.delete(key)

    @rule(source=IDS, sequence=st.integers(0, 2**64 - 1), position=POSITIONS)
    def stage(self, source: str, sequence: int, position: bytes | None) -> None:
        if self.may_write:
            self.index.checkpoints.stage_checkpoint(source, sequence, position)
            self.write(self.checkpoints, source, SourceCheckpoint(sequence, position))
        else:
            with pytest.raises(Invalid):
                self.index.checkpoints.stage_checkpoint(source, sequence, position)

    @precondition(lambda self: self.depth > 0)
    @rule(key=KEYS)
    def outgrow_memory(self, key: bytes) -> None:
        """What the session holds spills into a transaction of the store."""
        for number in range(session.HELD_CHANGES):
            self.index.results.put(key + b"%d" % number, b"%d" % number)
            self.write(self.results, key + b"%d" % number, b"%d" % number)
        self.is_large = True

    @precondition(lambda self: self.depth < 4)
    @rule()
    def begin(self) -> None:
        self.index.begin()
        self.depth += 1

    @rule()
    def commit(self) -> None:
        if self.depth == 0:
            with pytest.raises(Invalid):
                self.index.commit()
            return
        self.index.commit()
        self.depth -= 1
        if self.depth == 0:
            self.apply()
            self.is_large = False

    @rule()
    def rollback(self) -> None:
        self.index.rollback()
        self.forget_session()

    def forget_session(self) -> None:
        self.depth, self.staged, self.is_large = 0, [], False

    @precondition(lambda self: not self.is_large)
    @rule()
    def clear(self) -> None:
        self.index.checkpoints.clear_checkpoints()
        self.checkpoints.clear()
        self.hash, self.gaps = None, 0

    @precondition(lambda self: not self.is_large)
    @rule(number=st.integers(0, 2**64 - 1))
    def write_hash(self, number: int) -> None:
        self.index.checkpoints.write_config_hash(number)
        self.hash = number

    @precondition(lambda self: not self.is_large)
    @rule(source=IDS, position=POSITIONS)
    def pass_over(self, source: str, position: bytes | None) -> None:
        gap = self.index.checkpoints.pass_over(source, 3, position, "why")
        before = self.checkpoints.get(source)
        assert gap.from_position == (before.source_position if before else None)
        self.checkpoints[source] = SourceCheckpoint(3, position)
        self.gaps += 1

    @precondition(lambda self: self.depth == 0)
    @rule()
    def reset(self) -> None:
        self.index.reset()
        self.results.clear()
        self.checkpoints.clear()
        self.gaps = 0

    @rule(is_crash=st.booleans())
    def restart(self, is_crash: bool) -> None:
        (self.store if is_crash else self.index).close()
        self.forget_session()
        if not self.is_persistent:
            self.results.clear()
            self.checkpoints.clear()
            self.hash, self.gaps = None, 0
        self.open()

    @invariant()
    def holds_what_is_committed(self) -> None:
        assert list(self.index.results.scan()) == sorted(self.results.items())
        assert self.index.checkpoints.read_all_checkpoints() == self.checkpoints
        assert self.index.checkpoints.read_config_hash() == self.hash
        assert len(self.index.gaps()) == self.gaps
        assert self.index.has_session is (self.depth > 0)

    @rule(key=KEYS, source=IDS)
    def look(self, key: bytes, source: str) -> None:
        assert self.index.results.get(key) == self.results.get(key)
        assert self.index.checkpoints.read_checkpoint(source) == self.checkpoints.get(source)


@pytest.fixture(params=PLACES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    monkeypatch.setattr(session, "HELD_CHANGES", 16)
    return type("MachineHere", (Machine,), {"place": PLACES[request.param], "request": request})


def test_any_order_of_things(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=machine.place.examples, stateful_step_count=30))


@pytest.mark.soak
def test_any_order_of_things_for_long(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=400, stateful_step_count=50, derandomize=False))
