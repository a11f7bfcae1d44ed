"""Manifests that are none: a clear error that names the object, and the recovery walk goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from manifest_bytes import with_, without

from holdfast.checkpoints.store import CheckpointStore
from holdfast.errors import Corrupt, HoldfastError, NotFound
from holdfast.testing.conformance.checkpoints.subject import StoreUnderTest, manifest, with_everything
from places import MemoryPlace

BAD_MANIFESTS: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  \n ",
    "cut": with_()[:-1],
    "cut in a string": with_(source_names=["orders"])[:-4],
    "trailing garbage": with_() + b"x",
    "two documents": with_() + with_(),
    "list": b"[1, 2]",
    "string": b'"manifest"',
    "null": b"null",
    "number": b"1",
    "NUL bytes": b"\x00" * 512,
    "latin-1": '{"version": 1, "x": "ä"}'.encode("latin-1"),
    "UTF-16": with_().decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + with_(),
    "lone surrogate": with_()[:-1] + b', "source_names": ["\\ud800"]}',
    "not a number": b'{"version": NaN}',
    "deep lists": b"[" * 200_000,
    "deep lists, closed": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep in an unknown field": with_()[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "version missing": without("version"),
    "checkpoint_id missing": without("checkpoint_id"),
    "epoch missing": without("epoch"),
    "timestamp_ms missing": without("timestamp_ms"),
    "version a string": with_(version="1"),
    "newer version": with_(version=2),
    "id a string": with_(checkpoint_id="2"),
    "id a float": with_(checkpoint_id=2.5),
    "id true": with_(checkpoint_id=True),
    "id null": with_(checkpoint_id=None),
    "id negative": with_(checkpoint_id=-2),
    "id of another": with_(checkpoint_id=3),
    "epoch 0": with_(epoch=0),
    "epoch negative": with_(epoch=-1),
    "epoch beyond 64 bits": with_(epoch=2**64),
    "epoch of 10,000 digits": b'{"version": 1, "checkpoint_id": 2, "timestamp_ms": 1, "epoch": ' + b"9" * 10_000 + b"}",
    "timestamp beyond 64 bits": with_(timestamp_ms=2**70),
    "offsets a list": with_(source_offsets=[]),
    "offsets of a string": with_(source_offsets={"a": "b"}),
    "offsets that are numbers": with_(source_offsets={"a": {"offsets": {"p0": 1}}}),
    "offsets missing": with_(source_offsets={"a": {"epoch": 1}}),
    "status unknown": with_(sink_commit_statuses={"a": "Done"}),
    "status a number": with_(sink_commit_statuses={"a": 1}),
    "operator a string": with_(operator_states={"a": "b"}),
    "operator null": with_(operator_states={"a": None}),
    "inline not base64": with_(operator_states={"a": {"state_b64": "%%%"}}),
    "inline cut base64": with_(operator_states={"a": {"state_b64": "AAA"}}),
    "slice negative": with_(operator_states={"a": {"external": True, "external_offset": -1, "external_length": 1}}),
    "slice beyond everything": with_(
        operator_states={"a": {"external": True, "external_offset": 2**63, "external_length": 2**63}}
    ),
    "slice of 10**30": with_(
        operator_states={"a": {"external": True, "external_offset": 10**30, "external_length": 10**30}}
    ),
    "positions negative": with_(per_core_wal_positions=[-1]),
    "hash a float": with_(pipeline_hash=0.5),
    "parent itself": with_(is_incremental=True, parent_id=2),
    "parent newer": with_(is_incremental=True, parent_id=9),
    "parent 0": with_(is_incremental=True, parent_id=0),
    "parent missing": with_(is_incremental=True, parent_id=1_000),
    "inflight not records": with_(inflight_data={"a": [1]}),
    "holdfast a string": with_(holdfast="x"),
    "holdfast without checksum": with_(holdfast={"write_id": "x"}),
    "holdfast with another checksum": with_(holdfast={"write_id": "x", "checksum": "sha256:" + "0" * 64}),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_bad_manifest(place: StoreUnderTest, name: str) -> None:
    place.open().save(manifest(1))
    key = place.manifest_key(2)
    place.overwrite(key, BAD_MANIFESTS[name])
    store = place.open()
    result = store.validate_checkpoint(2)
    assert not result.valid
    assert result.reason
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.examined, report.unreadable) == (1, 2, [])
    assert report.skipped == [(2, result.reason)]
    assert store.list_ids() == [1, 2]
    assert (1, 1) in store.list()
    for act in (store.load_latest, lambda: store.load_by_id(2), lambda: store.load_states(2)):
        with_our_error(act, key)
    assert place.open().prune(1) == 0
    assert place.open_later().cleanup_orphans() == 0
    place.open().save(manifest(3))
    assert place.open().recover_latest_validated().chosen_id == 3


def with_our_error(act: Callable[[], object], key: str) -> None:
    """Either it works, or the error is ours, short, and names the object."""
    shown = key
    try:
        act()
    except (Corrupt, NotFound) as error:
        shown = str(error)
    assert len(shown) < 2000
    assert key in shown or "operator" in shown or "Checkpoint 2 needs" in shown


@pytest.mark.parametrize(
    "field", [name for name in manifest(1).__struct_fields__ if name not in ("unknown", "holdfast")]
)
@pytest.mark.parametrize("value", [-1, 1.5, "x", [[]], {"a": 1}, True, {"a": {"b": {"c": []}}}], ids=repr)
def test_any_field_of_a_wrong_type_is_ours_to_report(memory: MemoryPlace, field: str, value: Any) -> None:
    memory.open().save(manifest(1))
    memory.overwrite(memory.manifest_key(2), with_(**{field: value}))
    memory.open().validate_checkpoint(2)
    assert memory.open().recover_latest_validated().chosen_id in (1, 2)
    memory.open().list()
    memory.open().prune(1)


def test_every_error_says_what_is_unchanged_or_names_its_object(place: StoreUnderTest) -> None:
    place.open().save(with_everything(1))
    place.damage(place.manifest_key(1))
    acts: list[Callable[[CheckpointStore], object]] = [
        lambda store: store.load_by_id(1),
        lambda store: store.load_by_id(0),
        lambda store: store.prune(0),
        lambda store: store.save(manifest(1)),
        lambda store: store.update_manifest(manifest(1)),
        lambda store: store.update_manifest(manifest(9)),
        lambda store: store.load_states(9),
    ]
    for act in acts:
        with pytest.raises(HoldfastError) as caught:
            act(place.open())
        error = caught.value
        assert error.about
        assert error.code != "unexpected"
        assert error.about in str(error)
