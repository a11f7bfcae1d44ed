"""Verifying a pipeline's checkpoints: every byte may be right, and a file may still be missing."""

from __future__ import annotations

from pathlib import Path

from holdfast import CheckpointBatcher, open_store
from holdfast.checkpoints.manifest import HoldfastSection
from holdfast.status.checkpoints import open_existing
from holdfast.status.verify import Verdict, Verifier
from holdfast.testing.conformance.checkpoints.subject import manifest
from workdir_files import commit_log, offset_log, operator_metadata

FILES = {
    "metadata": "{}",
    "offsets/0": offset_log(partitions=2),
    "offsets/1": offset_log(partitions=2),
    "commits/0": commit_log(),
    "state/0/_metadata/metadata": operator_metadata("default"),
    "state/0/0/1.delta": "x",
    "state/0/1/1.delta": "x",
}


def verdict(root: Path, *, without: str = "", deep: bool = True, runtime: str = "query_id") -> Verdict:
    store = open_store(root)
    batcher = CheckpointBatcher(store)
    for path, text in FILES.items():
        if path != without:
            batcher.add(path, text.encode())
    batch = batcher.flush(1)
    assert batch is not None
    own = HoldfastSection(batches=[batch], live={}, runtime={runtime: "q"})
    store.save(manifest(1, wal_position=1, holdfast=own))
    return Verifier(open_existing(str(root)), [1], deep=deep).verdict(1)


def test_a_whole_checkpoint(tmp_path: Path) -> None:
    assert verdict(tmp_path) == Verdict(1, "ok")


def test_a_checkpoint_without_state(tmp_path: Path) -> None:
    found = verdict(tmp_path, without="state/0/1/1.delta")
    assert found.state == "damaged"
    assert found.reason == "it does not hold state/0/1, version 1; Spark cannot resume without it"


def test_without_reading_it_nothing_is_said(tmp_path: Path) -> None:
    assert verdict(tmp_path, without="state/0/1/1.delta", deep=False) == Verdict(1, "ok")


def test_other_checkpoints_hold_what_they_like(tmp_path: Path) -> None:
    assert verdict(tmp_path, without="metadata", runtime="other") == Verdict(1, "ok")
