"""Two manifests side by side: a pure decision over what they say."""

from __future__ import annotations

import msgspec
import pytest

from checkpoint_stores import fill, manifest
from holdfast import OperatorCheckpoint, SinkCommitStatus
from holdfast.checkpoints.manifest import HoldfastSection, StateVersion
from holdfast.status.checkpoints import open_existing
from holdfast.status.compare import compare, diff_checkpoints


def found(old, new, section):
    return [(c.name, c.how, c.before, c.after, c.delta) for c in compare(old, new) if c.section == section]


def test_offsets_move_with_a_difference_where_they_are_numbers():
    moved = found(manifest(1), manifest(3), "sources")
    assert ("orders [0]", "changed", "1000", "3000", 2000) in moved
    assert ("clicks [file]", "changed", "part-1", "part-3", None) in moved


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"a": b"1"}, [("a", "added", None, "1 B", None)]),
        ({"a": b"1"}, {}, [("a", "removed", "1 B", None, None)]),
        ({"a": b"1"}, {"a": b"1"}, []),
        ({"a": b"1"}, {"a": b"2"}, [("a", "changed", "1 bytes", "1 bytes, other content", None)]),
        ({"a": b"1"}, {"a": b"22"}, [("a", "changed", "1 bytes", "2 bytes", 1)]),
    ],
)
def test_inline_operators(old, new, expected):
    a = manifest(1, operator_states={name: OperatorCheckpoint.inline(data) for name, data in old.items()})
    b = manifest(2, operator_states={name: OperatorCheckpoint.inline(data) for name, data in new.items()})
    assert found(a, b, "operators") == expected


def test_operators_are_compared_by_hash_where_it_is_recorded():
    def with_hash(number, sha256):
        section = HoldfastSection(states={"a": StateVersion(1, 7, sha256)})
        return manifest(number, holdfast=section)

    assert found(with_hash(1, "aa"), with_hash(2, "aa"), "operators") == []
    assert found(with_hash(1, "aa"), with_hash(2, "bb"), "operators")[0][1] == "changed"


def test_a_sidecar_without_a_hash_is_not_claimed_to_be_the_same():
    a, b = (manifest(n, operator_states={"a": OperatorCheckpoint.external_slice(0, 9)}) for n in (1, 2))
    assert found(a, b, "operators")[0][1] == "unknown"
    same = [msgspec.structs.replace(m, state_checksum="ab") for m in (a, b)]
    assert found(*same, "operators") == []


def test_the_rest():
    old = manifest(1)
    new = manifest(
        2,
        sink_commit_statuses={"lake": "Committed", "pg": SinkCommitStatus.failed("x")},
        sink_names=["lake", "pg", "s3"],
        pipeline_hash=1,
    )
    assert ("pg status", "changed", "committed", "failed: x", None) in found(old, new, "sinks")
    assert ("lake epoch", "changed", "10", "20", 10) in found(old, new, "sinks")
    assert found(old, new, "topology") == [("sink s3", "added", None, None, None)]
    assert found(old, new, "configuration")[0][:2] == ("pipeline hash", "changed")
    assert found(old, new, "watermarks")[0][4] == 1


def test_two_checkpoints_of_a_store(tmp_path):
    fill(str(tmp_path))
    diff = diff_checkpoints(open_existing(str(tmp_path)), 1, "latest")
    assert (diff.old.manifest.checkpoint_id, diff.new.manifest.checkpoint_id) == (1, 3)
    assert diff.as_json()["from"] == {"checkpoint_id": 1, "epoch": 10, "timestamp_ms": diff.old.manifest.timestamp_ms}
    assert diff.as_json()["size_bytes"]["delta"] == diff.size_delta
