"""The manifest of an epoch, from its parts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from epoch_fakes import batch_object, epoch_facts
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CheckpointManifest, ConnectorCheckpoint, InFlightRecord, SinkCommitStatus, open_store
from holdfast.checkpoints.manifest import SinkStatus
from holdfast.checkpoints.operator_state import INLINE_THRESHOLD, INLINE_TOTAL, encode
from holdfast.pipeline.epoch_manifest import epoch_manifest, with_statuses
from holdfast.pipeline.workdir.snapshot import Snapshot
from holdfast.testing.conformance.checkpoints.subject import manifest

NOTHING = Snapshot([], [])
PENDING, COMMITTED, FAILED = SinkCommitStatus.pending(), SinkCommitStatus.committed(), SinkCommitStatus.failed("full")


def made(epoch: int = 8, **changed: Any) -> tuple[CheckpointManifest, list[bytes]]:
    given: dict[str, Any] = {
        "checkpoint_id": 12,
        "timestamp_ms": 1_760_000_000_500,
        "parent": None,
        "snapshot": NOTHING,
        "operators": {},
        "descriptors": {"pg": {"table": "s1"}, "lake": {"place": "x"}},
    }
    facts = changed.pop("facts", epoch_facts(epoch))
    return epoch_manifest(facts, **(given | changed))


def test_every_field() -> None:
    facts = epoch_facts(
        8,
        lineage=3,
        tables={"customers": ConnectorCheckpoint({"version": "9"}, 8)},
        ranges={"orders": [InFlightRecord(7, "e30=")]},
        watermark=1234,
        vnode_count=3,
    )
    found, chunks = made(facts=facts, snapshot=Snapshot([], [], partition_versions=[7, 7, 7]))
    assert chunks == []
    assert (found.version, found.checkpoint_id, found.epoch, found.timestamp_ms) == (1, 12, 8, 1_760_000_000_500)
    assert found.source_offsets == facts.sources
    assert found.table_offsets == facts.tables
    assert found.inflight_data == facts.ranges
    assert (found.wal_position, found.per_core_wal_positions) == (7, [7, 7, 7])
    assert (found.watermark, found.pipeline_hash, found.vnode_count) == (1234, 77, 3)
    assert found.table_store_checkpoint_path == "/data/work"
    assert (found.source_names, found.sink_names) == (["orders"], ["lake", "pg"])
    assert found.sink_commit_statuses == {"pg": PENDING, "lake": PENDING}
    assert found.sink_epochs == {}
    assert (found.own.lineage, found.own.sinks) == (3, {"pg": {"table": "s1"}, "lake": {"place": "x"}})
    assert found.own.runtime == facts.runtime
    assert [issue for issue in found.validate() if issue.is_fatal] == []


@pytest.mark.parametrize(
    ("source", "watermark", "expected"),
    [("orders", 1234, {"orders": 1234}), ("clicks", 1234, {"clicks": 1234}), ("orders", None, {}), (None, 1234, {})],
)
def test_the_watermark_of_a_source_is_known_if_no_other_has_one(
    source: str | None, watermark: int | None, expected: dict[str, int]
) -> None:
    sources = {name: ConnectorCheckpoint({"0": "5"}, 8) for name in ("orders", "clicks")}
    facts = epoch_facts(8, sources=sources, watermark=watermark, watermark_source=source)
    assert made(facts=facts)[0].source_watermarks == expected


def test_a_stateless_query_has_no_partitions() -> None:
    found, _ = made(facts=epoch_facts(1))
    assert (found.wal_position, found.per_core_wal_positions) == (0, [])


def test_sinks_keep_the_epoch_they_had() -> None:
    parent = manifest(11, epoch=7, sink_epochs={"lake": 7, "pg": 6, "gone": 4})
    found, _ = made(parent=parent)
    assert found.sink_epochs == {"lake": 7, "pg": 6}
    assert set(found.sink_commit_statuses.values()) == {PENDING}


@pytest.mark.parametrize(
    ("parent", "inherited", "expected"),
    [
        (None, [], (False, None)),
        (manifest(11), [], (False, None)),
        (manifest(11), [batch_object(3)], (True, 11)),
        (None, [batch_object(3)], (False, None)),
    ],
)
def test_only_what_inherits_is_incremental(
    parent: CheckpointManifest | None, inherited: list[Any], expected: tuple[bool, int | None]
) -> None:
    found, _ = made(parent=parent, snapshot=Snapshot([batch_object(8)], inherited))
    assert (found.is_incremental, found.parent_id) == expected
    assert found.own.batches == [batch_object(8)]
    assert found.own.inherited == inherited
    assert found.needed_parent is None
    assert found.needed_batches == [*inherited, batch_object(8)]


def test_operators_inline_and_in_the_sidecar() -> None:
    large = b"L" * (INLINE_THRESHOLD + 1)
    found, chunks = made(
        operators={"z": large, "b": b"small", "a": large + b"2", "exact": b"e" * INLINE_THRESHOLD, "no": b""}
    )
    states = found.operator_states
    assert [name for name, state in states.items() if state.external] == ["a", "z"]
    assert chunks == [large + b"2", large]
    assert (states["a"].external_offset, states["a"].external_length) == (0, INLINE_THRESHOLD + 2)
    assert (states["z"].external_offset, states["z"].external_length) == (INLINE_THRESHOLD + 2, INLINE_THRESHOLD + 1)
    assert states["b"].decode_inline() == b"small"
    assert states["no"].decode_inline() == b""


def test_fifty_large_operators_fit_into_a_checkpoint() -> None:
    """Each is small enough for the manifest, all together are not: the rest goes to the sidecar."""
    operators = {f"operator-{number:02}": bytes([number]) * INLINE_THRESHOLD for number in range(50)}
    found, chunks = made(operators=operators)
    inline = [state.decode_inline() or b"" for state in found.operator_states.values() if not state.external]
    assert sum(map(len, inline)) <= INLINE_TOTAL
    store = open_store("memory://")
    store.save_with_state(found, chunks)
    assert store.load_states(found.checkpoint_id) == operators


@pytest.mark.parametrize(
    ("before", "outcomes", "statuses", "epochs"),
    [
        ({"a": PENDING, "b": PENDING}, {}, {"a": PENDING, "b": PENDING}, {"b": 3}),
        ({"a": PENDING, "b": PENDING}, {"a": COMMITTED}, {"a": COMMITTED, "b": PENDING}, {"a": 8, "b": 3}),
        ({"a": PENDING, "b": PENDING}, {"b": FAILED}, {"a": PENDING, "b": FAILED}, {"b": 3}),
        ({"a": COMMITTED, "b": FAILED}, {"b": COMMITTED}, {"a": COMMITTED, "b": COMMITTED}, {"a": 8, "b": 8}),
    ],
)
def test_outcomes_become_statuses_and_epochs_of_sinks(
    before: dict[str, SinkStatus],
    outcomes: dict[str, SinkStatus],
    statuses: dict[str, SinkStatus],
    epochs: dict[str, int],
) -> None:
    start = manifest(12, epoch=8, sink_commit_statuses=before, sink_epochs={"b": 3})
    after = with_statuses(start, outcomes)
    assert after.sink_commit_statuses == statuses
    assert after.sink_epochs == epochs
    same = msgspec.structs.replace(
        after, sink_commit_statuses=start.sink_commit_statuses, sink_epochs=start.sink_epochs
    )
    assert same == start


@given(st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=40)), st.integers(0, 20))
def test_every_operator_can_be_read_back(operators: dict[str, bytes], threshold: int) -> None:
    assert encode.__kwdefaults__ is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(encode.__kwdefaults__, "inline_threshold", threshold)
        found, chunks = made(operators=operators)
    sidecar = b"".join(chunks)
    for name, state in found.operator_states.items():
        end = state.external_offset + state.external_length
        data = sidecar[state.external_offset : end] if state.external else state.decode_inline()
        assert data == operators[name]
        assert state.external == (len(operators[name]) > threshold)
