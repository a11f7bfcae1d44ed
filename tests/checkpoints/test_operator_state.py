"""Operator states: full or incremental, inline or in the sidecar, and their checksum."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import OperatorCheckpoint
from holdfast.checkpoints.operator_state import encode, plan_increment, read_ahead, state_checksum
from holdfast.errors import Unavailable
from holdfast.testing.conformance.checkpoints.subject import manifest


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
