"""How a pipeline fares, from its store alone."""

from __future__ import annotations

import pytest

from checkpoint_stores import flip, manifest_path, tree
from holdfast import SinkCommitStatus
from holdfast.errors import Corrupt, Unavailable
from holdfast.status.checkpoints import open_existing
from holdfast.status.pipeline import observe_pipeline
from holdfast.storage.objects import LocalObjects
from pipeline_stores import PipelineStore


@pytest.fixture
def pipeline(tmp_path) -> PipelineStore:
    made = PipelineStore(tmp_path / "store")
    for epoch in (1, 2, 3):
        made.run_epoch(epoch)
    return made


def test_it_is_data(pipeline):
    before = tree(pipeline.root)
    status = observe_pipeline(open_existing(str(pipeline.root)), clock=lambda: 5.0)
    assert (status.pipeline, status.newest.epoch, status.now_ms, status.exit_code) == ("orders", 3, 5000, 0)
    assert (status.lease.owner, status.owing, status.skipped) == ("driver-1", [], [])
    assert status.as_json()["resume"]["next_epoch"] == 4
    assert tree(pipeline.root) == before


def test_a_damaged_checkpoint_is_passed_over_and_said(pipeline):
    flip(manifest_path(pipeline.root, 3))
    status = observe_pipeline(open_existing(str(pipeline.root)))
    assert (status.newest.epoch, status.exit_code) == (2, Corrupt.exit_code)
    assert [(one.checkpoint_id, one.is_unreadable) for one in status.skipped] == [(3, False)]


def test_a_store_without_checkpoints(tmp_path):
    status = observe_pipeline(open_existing(str(tmp_path)))
    assert (status.newest, status.skipped, status.pipeline, status.exit_code) == (None, [], None, 0)


def test_one_that_cannot_be_read_is_not_called_damaged(pipeline, monkeypatch):
    real = LocalObjects.read

    def read(self, key, *args, **kwargs):
        if "000003/manifest" in key:
            raise Unavailable("The disk is away.")
        return real(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalObjects, "read", read)
    status = observe_pipeline(open_existing(str(pipeline.root)))
    assert (status.newest.epoch, status.exit_code) == (2, Unavailable.exit_code)
    assert [(one.reason, one.is_unreadable) for one in status.skipped] == [("The disk is away.", True)]


def test_one_that_is_removed_during_the_look_is_not_damaged(pipeline, monkeypatch):
    """A running pipeline prunes; the walk finds the manifest gone."""
    opened = open_existing(str(pipeline.root))
    listed = iter([[1, 2, 3, 4], [1, 2, 3]])
    monkeypatch.setattr(type(opened.store), "list_ids", lambda _: next(listed))
    status = observe_pipeline(opened)
    assert (status.newest.epoch, status.skipped) == (3, [])


def test_a_sink_that_owes_its_epoch(pipeline):
    pipeline.run_epoch(4, sink_commit_statuses={"lake": "Committed", "hook": SinkCommitStatus.failed("no")})
    assert observe_pipeline(open_existing(str(pipeline.root))).owing == ["hook"]
