"""Decisions and encodings, without an index."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.index import PositionUnavailable, SourceCheckpoint, config_hash, decide_recovery, decide_start, records
from holdfast.storage.kv.records import seal

# The hash of a configuration.

SAME = [
    ({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}),
    ({"x": {"a", "b", "c"}}, {"x": frozenset("cba")}),
    ({"x": {"a": {"m": 1, "n": 2}}}, {"x": {"a": {"n": 2, "m": 1}}}),
    ([1, 2], (1, 2)),
    (b"x", bytearray(b"x")),
    (0.0, -0.0),
    (float("nan"), -float("nan")),
]
DIFFERENT = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**70,
    1.0,
    0.0,
    float("inf"),
    "1",
    b"1",
    "",
    b"",
    [],
    {},
    set(),
    [[]],
    [{}],
    [1, 2],
    [2, 1],
    [1, [2]],
    [[1], 2],
    {1, 2},
    [12],
    ["1", "2"],
    ["12", ""],
    ["", "12"],
    {"a": None},
    {"a": []},
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {"a": {"b": 1}},
    {"a": "b"},
    ["a", "b"],
    {"a", "b"},
    "é",
    "e\u0301",
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_order_that_means_nothing(one: Any, other: Any) -> None:
    assert config_hash(one) == config_hash(other)


def test_everything_else_counts() -> None:
    hashes = [config_hash(value) for value in DIFFERENT]
    assert len(set(hashes)) == len(DIFFERENT)
    assert all(0 <= found < 2**64 for found in hashes)


def test_the_hash_of_this_never_changes() -> None:
    """Stored in every index there is: a change here would make all of them look reconfigured."""
    config = {"query": "select 1", "sources": {"a", "b"}, "limit": 10, "rate": 0.5, "on": True, "x": None, "raw": b"\0"}
    assert config_hash(config) == 0xBDE602038FAE8DA0
    assert config_hash(None) == 0xFD87400839D77A68
    assert config_hash([]) == 0x9A87CC3076DC0DA4


def test_same_in_every_process() -> None:
    program = "from holdfast.index import config_hash; print(config_hash({'s': set('abcdef'), 'd': dict(x=1, y=2)}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in "123"
    }
    assert found == {f"{config_hash({'d': {'y': 2, 'x': 1}, 's': set('fedcba')})}\n"}


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "wrong", [object(), {"a": object()}, [1j], {(1, 2): object}, "\ud800", ..., range(3), cyclic()]
)
def test_what_is_not_plain_data_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid):
        config_hash(wrong)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(plain, plain)
def test_equal_hash_means_equal_data(one: Any, other: Any) -> None:
    def typed(value: Any) -> Any:
        match value:
            case dict():
                return {key: typed(item) for key, item in value.items()}
            case list():
                return [typed(item) for item in value]
        return (type(value), value)

    assert (config_hash(one) == config_hash(other)) is (typed(one) == typed(other))


# Starting.

X, Y = 7, 8


@pytest.mark.parametrize("policy", ["fail", "reset", "accept"])
@pytest.mark.parametrize("stored", [None, X, Y])
@pytest.mark.parametrize("has_anything", [True, False])
@pytest.mark.parametrize("is_persistent", [True, False])
def test_every_start(policy: Any, stored: int | None, has_anything: bool, is_persistent: bool) -> None:
    start = decide_start(stored=stored, wanted=X, has_anything=has_anything, policy=policy, is_persistent=is_persistent)
    if not has_anything:
        expected = ("first", False, stored != X)
    elif not is_persistent:
        expected = ("reset", False, True)
    elif stored == X:
        expected = ("resume", True, False)
    else:
        expected = {
            "fail": ("refuse", False, False),
            "reset": ("reset", False, True),
            "accept": ("accept", True, True),
        }[policy]
    assert (start.action, start.resumes, start.writes_hash) == expected
    assert start.why


@pytest.mark.parametrize("wrong", [{"policy": "wipe"}, {"wanted": -1}, {"wanted": 2**64}, {"wanted": None}])
def test_starts_that_are_refused(wrong: Any) -> None:
    usual: dict[str, Any] = {"stored": 1, "wanted": 1, "has_anything": True, "policy": "fail", "is_persistent": True}
    with pytest.raises(Invalid):
        decide_start(**(usual | wrong))


# Recovering.


def test_every_recovery() -> None:
    failure = PositionUnavailable("orders", "log was cut")
    found = {
        (policy, resets): decide_recovery(policy, failure, resets=resets).action  # type: ignore[arg-type]
        for policy, resets in itertools.product(["strict", "reset", "skip"], [0, 1])
    }
    assert found == {
        ("strict", 0): "stop",
        ("strict", 1): "stop",
        ("reset", 0): "reset",
        ("reset", 1): "stop",
        ("skip", 0): "skip",
        ("skip", 1): "skip",
    }
    with pytest.raises(Invalid):
        decide_recovery("hope", failure)  # type: ignore[arg-type]


def test_position_unavailable() -> None:
    failure = PositionUnavailable("orders", "log was cut.", resumes_at=b"17", resumes_after=9)
    assert isinstance(failure, NotFound)
    for found in (failure, pickle.loads(pickle.dumps(failure))):
        assert (found.source_id, found.why) == ("orders", "log was cut")
        assert (found.resumes_at, found.resumes_after) == (b"17", 9)
        assert found.code == "source.position-unavailable"
        assert "orders" in str(found)
        assert "skip" in str(found)
    with pytest.raises(Invalid):
        PositionUnavailable("", "x")
    with pytest.raises(Invalid):
        PositionUnavailable("x", "x", resumes_at=bytes(65_537))
    with pytest.raises(Invalid):
        PositionUnavailable("x", "x", resumes_after=-1)


# Records.


@given(st.text(min_size=1), st.integers(0, 2**64 - 1), st.none() | st.binary(), st.integers(0, 2**64 - 1))
def test_checkpoints_round_trip(source_id: str, sequence: int, position: bytes | None, written_ms: int) -> None:
    key = records.checkpoint_key(source_id.encode())
    value = records.encode_checkpoint(key, sequence, position, written_ms)
    found_id, stored = records.decode_checkpoint(key, value, "here")
    assert found_id == source_id
    assert stored.checkpoint == SourceCheckpoint(sequence, position)
    assert stored.written_ms == written_ms


@given(st.binary(max_size=64))
def test_no_rubbish_passes(value: bytes) -> None:
    for decode in (
        lambda: records.decode_checkpoint(b"s/a", value, "here"),
        lambda: records.decode_hash(value, "here"),
        lambda: records.decode_format(value, "here"),
        lambda: records.decode_marker(value, "here"),
        lambda: records.decode_gap(records.gap_key(1), value, "here"),
    ):
        with pytest.raises(Corrupt):
            decode()


def test_sealed_and_wrong_inside() -> None:
    """The checksum is right, and what it covers cannot be."""
    for decode, key in (
        (lambda value: records.decode_checkpoint(b"s/a", value, "here"), b"s/a"),
        (lambda value: records.decode_hash(value, "here"), records.HASH_KEY),
        (lambda value: records.decode_gap(records.gap_key(1), value, "here"), records.gap_key(1)),
    ):
        with pytest.raises(Corrupt):
            decode(seal(key, b"short"))


def test_records_of_the_first_release_are_read_for_ever() -> None:
    """Bytes as they lie on disks."""
    stored = json.loads(FIRST_RELEASE)
    key, value = bytes.fromhex(stored["key"]), bytes.fromhex(stored["value"])
    assert records.decode_checkpoint(key, value, "here")[1].checkpoint == SourceCheckpoint(17, b"position")
    assert records.decode_hash(bytes.fromhex(stored["hash"]), "here") == 2**64 - 1
    assert records.decode_format(bytes.fromhex(stored["format"]), "here") == 1
    assert records.decode_marker(bytes.fromhex(stored["marker"]), "here") == 5
    assert records.decode_marker(bytes.fromhex(stored["marker without"]), "here") is None


FIRST_RELEASE = """{
  "key": "732f613a62",
  "value": "0101000000000000001100000199c82cc000706f736974696f6e32bac79b",
  "hash": "01ffffffffffffffff2e93dae1",
  "format": "0100010c8985db",
  "marker": "010100000000000000057d4f7cc4",
  "marker without": "01000000000000000000bc80be90"
}"""
