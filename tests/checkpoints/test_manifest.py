"""The manifest: names, defaults, JSON shapes, and what `validate` says."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import CheckpointManifest, ConnectorCheckpoint, InFlightRecord, OperatorCheckpoint, SinkCommitStatus
from holdfast.checkpoints import manifest_json
from holdfast.checkpoints.manifest import BatchObject, HoldfastSection, Issue, SinkFailed
from holdfast.errors import Corrupt, Invalid
from holdfast.testing.conformance.checkpoints.subject import manifest, with_everything

THE_22_FIELDS = [
    "version",
    "checkpoint_id",
    "epoch",
    "timestamp_ms",
    "source_offsets",
    "sink_epochs",
    "sink_commit_statuses",
    "table_offsets",
    "operator_states",
    "table_store_checkpoint_path",
    "wal_position",
    "per_core_wal_positions",
    "watermark",
    "source_watermarks",
    "source_names",
    "sink_names",
    "pipeline_hash",
    "inflight_data",
    "size_bytes",
    "is_incremental",
    "parent_id",
    "state_checksum",
]


def through_json(found: CheckpointManifest) -> CheckpointManifest:
    return manifest_json.decode(manifest_json.encode(found), about="test")


def plain(found: CheckpointManifest) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(manifest_json.encode(found))
    return raw


def parsed(**fields: Any) -> CheckpointManifest:
    mandatory = {"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1}
    return manifest_json.decode(json.dumps(mandatory | fields).encode(), about="test")


# Defaults and JSON


def test_a_new_manifest_is_empty_and_has_the_time() -> None:
    found = CheckpointManifest.new(7, 9)
    assert (found.version, found.checkpoint_id, found.epoch) == (1, 7, 9)
    assert found.timestamp_ms > 1_700_000_000_000
    assert CheckpointManifest.new(7, 9, timestamp_ms=5).timestamp_ms == 5
    assert found.source_offsets == found.sink_epochs == found.sink_commit_statuses == found.table_offsets == {}
    assert found.operator_states == found.source_watermarks == found.inflight_data == {}
    assert found.per_core_wal_positions == found.source_names == found.sink_names == []
    assert (found.table_store_checkpoint_path, found.watermark, found.pipeline_hash) == (None, None, None)
    assert (found.wal_position, found.size_bytes, found.is_incremental, found.parent_id) == (0, 0, False, None)
    assert found.state_checksum is None
    assert found.validate() == []


def test_the_22_fields_in_their_order() -> None:
    assert list(plain(with_everything(1)))[:22] == THE_22_FIELDS
    assert list(plain(with_everything(1)))[22:] == ["vnode_count", "holdfast"]


def test_defaults_are_not_shared() -> None:
    first, second = CheckpointManifest.new(1, 1), CheckpointManifest.new(2, 2)
    first.source_names.append("mine")
    first.source_offsets["mine"] = ConnectorCheckpoint({})
    assert (second.source_names, second.source_offsets) == ([], {})


def test_json_round_trip() -> None:
    found = through_json(with_everything(3))
    for field in THE_22_FIELDS:
        assert getattr(found, field) == getattr(with_everything(3), field)


def test_json_is_deterministic() -> None:
    assert manifest_json.encode(with_everything(3)) == manifest_json.encode(through_json(with_everything(3)))


def test_only_four_fields_are_mandatory() -> None:
    assert parsed() == CheckpointManifest(1, 1, 1, 1)
    for field in ("version", "checkpoint_id", "epoch", "timestamp_ms"):
        with pytest.raises(Corrupt) as caught:
            manifest_json.decode(
                b'{"version":1,"checkpoint_id":1,"epoch":1,"timestamp_ms":1}'.replace(field.encode(), b"x"),
                about="the file",
            )
        assert field in str(caught.value)
        assert "the file" in str(caught.value)


@pytest.mark.parametrize("field", THE_22_FIELDS[4:])
def test_missing_field_has_its_default(field: str) -> None:
    whole = plain(with_everything(1))
    del whole[field], whole["holdfast"]
    found = manifest_json.decode(json.dumps(whole).encode(), about="test")
    assert getattr(found, field) == getattr(CheckpointManifest(1, 1, 1, 1), field)


def test_missing_vnode_count_is_zero() -> None:
    assert parsed().vnode_count == 0


# Nested types


def test_connector_checkpoint() -> None:
    assert ConnectorCheckpoint({}) == ConnectorCheckpoint(offsets={}, epoch=0, metadata={})
    found = ConnectorCheckpoint(offsets={"p0": "17"}, epoch=3, metadata={"topic": "t"})
    assert plain(manifest(1, source_offsets={"kafka": found}))["source_offsets"] == {
        "kafka": {"offsets": {"p0": "17"}, "epoch": 3, "metadata": {"topic": "t"}}
    }
    assert parsed(source_offsets={"a": {"offsets": {}}}).source_offsets == {"a": ConnectorCheckpoint({})}
    with pytest.raises(Corrupt):
        parsed(source_offsets={"a": {"epoch": 1}})


def test_operator_inline() -> None:
    found = OperatorCheckpoint.inline(b"\x00\xff")
    assert (found.state_b64, found.external, found.external_offset, found.external_length) == ("AP8=", False, 0, 0)
    assert found.decode_inline() == found.try_decode_inline() == b"\x00\xff"


def test_operator_external() -> None:
    found = OperatorCheckpoint.external(10, 4096)
    assert (found.state_b64, found.external, found.external_offset, found.external_length) == (None, True, 10, 4096)
    assert found.decode_inline() is None
    assert OperatorCheckpoint().external is False
    assert OperatorCheckpoint(external=True).external is True


def test_operator_empty() -> None:
    assert OperatorCheckpoint.inline(b"").state_b64 == ""
    assert OperatorCheckpoint.inline(b"").decode_inline() == b""
    assert OperatorCheckpoint().decode_inline() is None


@pytest.mark.parametrize("damaged", ["%", "AAA", "AA=A", "AP8", "A P8=", "ä"])
def test_operator_that_is_not_base64(damaged: str) -> None:
    found = OperatorCheckpoint(state_b64=damaged)
    assert found.decode_inline() is None
    with pytest.raises(Corrupt):
        found.try_decode_inline()


@pytest.mark.parametrize(
    ("size", "threshold", "is_external"), [(0, 0, False), (1, 0, True), (9, 10, False), (10, 10, False), (11, 10, True)]
)
def test_operator_from_bytes(size: int, threshold: int, is_external: bool) -> None:
    found = OperatorCheckpoint.from_bytes(b"x" * size, threshold, 77)
    assert found.external is is_external
    if is_external:
        assert found == OperatorCheckpoint.external(77, size)
    else:
        assert found == OperatorCheckpoint.inline(b"x" * size)


def test_operator_shape_in_json() -> None:
    raw = plain(manifest(1, operator_states={"a": OperatorCheckpoint.external(1, 2)}))
    assert raw["operator_states"]["a"] == {
        "state_b64": None,
        "external": True,
        "external_offset": 1,
        "external_length": 2,
    }


def test_in_flight_records() -> None:
    records = {"join": [InFlightRecord(1, "AAE="), InFlightRecord(2, "")]}
    found = through_json(manifest(1, inflight_data=records))
    assert found.inflight_data == records
    assert plain(found)["inflight_data"]["join"][0] == {"input_id": 1, "data_b64": "AAE="}


def test_sink_commit_status() -> None:
    statuses = {"a": SinkCommitStatus.pending(), "b": SinkCommitStatus.committed(), "c": SinkCommitStatus.failed("why")}
    raw = plain(manifest(1, sink_commit_statuses=statuses))
    assert raw["sink_commit_statuses"] == {"a": "Pending", "b": "Committed", "c": {"Failed": "why"}}
    assert through_json(manifest(1, sink_commit_statuses=statuses)).sink_commit_statuses == statuses
    assert statuses["c"] == SinkFailed("why")
    assert statuses["a"] != statuses["b"]


@pytest.mark.parametrize(
    ("statuses", "owed"),
    [
        ({}, ()),
        ({"a": "Committed"}, ()),
        ({"a": "Committed", "b": "Pending"}, ("b",)),
        ({"a": SinkFailed("x")}, ("a",)),
        ({"z": "Pending", "b": SinkFailed("x"), "m": "Committed", "a": "Pending"}, ("a", "b", "z")),
    ],
)
def test_a_sink_owes_the_epoch_until_it_has_committed(statuses: dict[str, Any], owed: tuple[str, ...]) -> None:
    found = manifest(1, sink_commit_statuses=statuses)
    assert found.owed_sinks == owed
    assert found.is_settled is (not owed)


def test_a_sink_without_a_status_owes_nothing() -> None:
    assert manifest(1, sink_names=["a"], sink_epochs={"a": 1}).owed_sinks == ()


def test_structs_are_frozen_and_replace_works() -> None:
    found = CheckpointManifest.new(1, 1)
    with pytest.raises(AttributeError):
        found.epoch = 2  # type: ignore[misc]
    assert msgspec.structs.replace(found, watermark=5).watermark == 5


def test_with_batches_adds() -> None:
    first, second = BatchObject("a", 1, "00", 1), BatchObject("b", 2, "11", 1)
    found = manifest(1).with_batches([first]).with_batches([second])
    assert found.own.batches == [first, second]
    assert through_json(found).own.batches == [first, second]
    assert manifest(1).own.batches == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("per_core_wal_positions", [1, 0, 2**63]),
        ("source_watermarks", {"a": -1, "b": 2**62}),
        ("watermark", -(2**63)),
        ("pipeline_hash", 2**64 - 1),
        ("source_names", ["b", "a"]),
        ("sink_names", ["ä", "\x00"]),
        ("table_store_checkpoint_path", "/a b/ä"),
        ("table_offsets", {"t": ConnectorCheckpoint({"v": "1"})}),
        ("is_incremental", True),
        ("parent_id", 4),
        ("state_checksum", "00"),
        ("size_bytes", 2**60),
        ("vnode_count", 65_535),
    ],
)
def test_field_round_trip(field: str, value: Any) -> None:
    found = through_json(replace(manifest(5), **{field: value}))
    assert getattr(found, field) == value


# Unknown fields

UNKNOWN: dict[str, Any] = {"new": {"deep": [1, {"x": None}], "text": "ä"}, "flag": True, "n": 1.5}


def test_unknown_fields_survive_at_every_level() -> None:
    raw = plain(with_everything(1)) | UNKNOWN
    del raw["holdfast"]
    raw["source_offsets"]["orders"] |= UNKNOWN
    raw["table_offsets"]["customers"] |= UNKNOWN
    raw["operator_states"]["dedup"] |= UNKNOWN
    raw["inflight_data"]["join"][1] |= UNKNOWN
    found = manifest_json.decode(json.dumps(raw).encode(), about="test")
    again = plain(found)
    del again["holdfast"]
    assert again == raw
    assert (
        plain(manifest_json.decode(manifest_json.encode(found), about="test")).keys() == (raw | {"holdfast": 0}).keys()
    )


def test_unknown_fields_of_our_own_section_survive() -> None:
    section = HoldfastSection(write_id="w", unknown={"from_2027": [1]})
    body = manifest_json.encode(manifest(1, holdfast=section))
    assert json.loads(body)["holdfast"]["from_2027"] == [1]
    found = manifest_json.decode(body, about="test")
    assert json.loads(manifest_json.encode(found))["holdfast"]["from_2027"] == [1]
    assert manifest_json.encode(found) == body


def test_unknown_field_cannot_shadow_a_known_one() -> None:
    found = manifest(1, unknown={"epoch": 99, "holdfast": "x", "mine": 1})
    raw = plain(found)
    assert (raw["epoch"], raw["mine"]) == (1, 1)
    assert list(raw)[-1] == "holdfast"


def test_changing_a_manifest_keeps_what_is_unknown() -> None:
    found = replace(parsed(future=1), watermark=3)
    assert plain(found)["future"] == 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KNOWN = {*THE_22_FIELDS, "vnode_count", "holdfast"}


@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name not in KNOWN), JSON_VALUES, max_size=4))
def test_any_unknown_field_survives(unknown: dict[str, Any]) -> None:
    again = plain(parsed(**unknown))
    assert {name: again[name] for name in unknown} == unknown


# validate()

CLEAN: dict[str, Any] = {"source_names": ["s"], "sink_names": ["k"]}
CASES: list[tuple[str, dict[str, Any], list[tuple[bool, str]]]] = [
    ("clean", CLEAN, []),
    ("version 0", {"version": 0}, [(False, "version is 0")]),
    ("newer version", {"version": 2}, [(True, "version 2 is newer")]),
    ("id 0", {"checkpoint_id": 0}, [(True, "checkpoint_id is 0")]),
    ("epoch 0", {"epoch": 0}, [(True, "epoch is 0")]),
    ("no creation time", {"timestamp_ms": 0}, [(False, "timestamp_ms is 0")]),
    ("epoch without status", CLEAN | {"sink_epochs": {"k": 1}}, []),
    (
        "epoch without its status",
        {"sink_epochs": {"k": 1, "l": 1}, "sink_commit_statuses": {"l": "Committed"}},
        [(False, "sink 'k' has an epoch but no commit status")],
    ),
    (
        "orphan source",
        CLEAN | {"source_offsets": {"x": ConnectorCheckpoint({}), "s": ConnectorCheckpoint({})}},
        [(False, "source_offsets names 'x'")],
    ),
    ("sources unknown", {"source_offsets": {"x": ConnectorCheckpoint({})}}, []),
    ("orphan sink", CLEAN | {"sink_commit_statuses": {"x": "Pending"}}, [(False, "sink 'x' is not in sink_names")]),
    ("sink ahead", {"sink_epochs": {"k": 2}}, [(False, "sink 'k' is at epoch 2")]),
    ("legacy vnodes", {"vnode_count": 0}, [(False, "vnode_count is 0")]),
    ("incremental without parent", {"is_incremental": True}, [(False, "is_incremental without a parent_id")]),
    ("parent but full", {"checkpoint_id": 3, "parent_id": 2}, [(False, "parent_id 2 on a checkpoint")]),
    ("parent ahead", {"parent_id": 9, "is_incremental": True}, [(True, "parent_id 9 does not come before")]),
    ("parent 0", {"parent_id": 0, "is_incremental": True}, [(True, "parent_id 0 does not come before")]),
    (
        "not base64",
        {"operator_states": {"a": OperatorCheckpoint(state_b64="%")}},
        [(True, "operator 'a' has inline state that is not base64")],
    ),
    (
        "inline and external",
        {"operator_states": {"a": OperatorCheckpoint(state_b64="", external=True)}},
        [(False, "operator 'a' is both inline and external")],
    ),
]


@pytest.mark.parametrize(("fields", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_wrong_field_is_an_issue_fatal_or_not(fields: dict[str, Any], expected: list[tuple[bool, str]]) -> None:
    issues = replace(manifest(1), **fields).validate()
    assert [issue.is_fatal for issue in issues] == [fatal for fatal, _ in expected]
    for issue, (_, words) in zip(issues, expected, strict=True):
        assert words in issue.message
        assert str(issue) == issue.message


def test_validate_reports_everything_at_once() -> None:
    worst = replace(
        manifest(1), version=0, checkpoint_id=0, epoch=0, timestamp_ms=0, vnode_count=0, is_incremental=True
    )
    assert len(worst.validate()) >= 6


def test_validate_against_a_vnode_count() -> None:
    found = manifest(1, vnode_count=64)
    assert found.validate() == []
    assert found.validate(64) == []
    assert found.validate(256) == [
        Issue("vnode_count is 64, this runtime uses 256: open the store with vnode_count=64, or rescale the pipeline")
    ]


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.just([]),
    st.just({}),
    st.just({"a": None}),
    st.just({1: 2}),
    st.just([1]),
    st.just(object()),
)


@given(st.sampled_from([*THE_22_FIELDS, "vnode_count"]), WRONG)
def test_validate_never_raises(field: str, value: Any) -> None:
    for issue in replace(with_everything(1), **{field: value}).validate(256):
        assert issue.message


# The document


def test_checksum_is_last_and_covers_everything_else() -> None:
    body = manifest_json.encode(with_everything(1))
    assert body.endswith(b'"\n  }\n}\n')
    digits = json.loads(body)["holdfast"]["checksum"].removeprefix("sha256:")
    assert len(digits) == 64
    assert hashlib.sha256(body.replace(digits.encode(), b"0" * 64)).hexdigest() == digits


def test_document_cannot_be_fooled_by_a_checksum_inside_a_name() -> None:
    tricky = manifest(
        1,
        source_names=['"checksum": "sha256:' + "0" * 64, "sha256:" + "0" * 64, '"holdfast": {'],
        table_store_checkpoint_path="sha256:" + "0" * 64,
    )
    assert through_json(tricky).source_names == tricky.source_names


@pytest.mark.parametrize("limit_of", ["checkpoint_id", "epoch", "timestamp_ms"])
def test_what_is_written_can_be_read(limit_of: str) -> None:
    found = replace(manifest(1), **{limit_of: 2**64 - 1})
    assert getattr(through_json(found), limit_of) == 2**64 - 1
    with pytest.raises(Invalid):
        manifest_json.encode(replace(manifest(1), **{limit_of: 2**64}))
