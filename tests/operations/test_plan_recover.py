"""Plans of a recovery, without the command line: what they show, and what `apply` makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_texts import text

from checkpoint_stores import flip, sidecar_path
from holdfast.checkpoints.lease import current
from holdfast.errors import Conflict, Invalid
from holdfast.operations.recover import examine
from holdfast.status.checkpoints import open_existing
from pipeline_stores import PipelineStore


def test_recovery_repairs_the_pointer(root):
    flip(sidecar_path(root, 3))
    found = examine(open_existing(str(root)))
    assert (found.chosen.checkpoint_id, found.exit_code, found.forecast) == (2, 0, None)
    plan = found.plan(rebuild_workdir=False)
    assert text(plan) == "plan: set latest to 2 (latest names checkpoint 3; it should name 2)"
    assert plan.as_json() == [{"action": "set-latest", "checkpoint_id": 2}]
    assert plan.apply().result is True
    assert plan.apply().result is False  # it named it already
    assert examine(open_existing(str(root))).plan(rebuild_workdir=False).is_empty


@pytest.fixture
def pipeline(tmp_path) -> PipelineStore:
    made = PipelineStore(tmp_path / "pipeline")
    for epoch in (1, 2, 3):
        made.run_epoch(epoch)
    made.lose_workdir()
    return made


def test_recovery_rebuilds_the_workdir(pipeline):
    found = examine(open_existing(str(pipeline.root)))
    assert found.forecast.as_json()["workdir_action"] == "rebuild"
    plan = found.plan(rebuild_workdir=True)
    assert plan.as_json() == [{"action": "rebuild-workdir", "checkpoint_id": 3}]
    assert "generation 2" in plan.apply().lines[0]
    assert not pipeline.workdir.is_empty()


def link_elsewhere(home: Path) -> Path:
    """The workdir on another disk, as people do it: a symbolic link in its place."""
    target = home.with_name("large disk")
    target.mkdir()
    home.symlink_to(target)
    return target


def test_a_workdir_that_is_a_link_is_refused(pipeline):
    target = link_elsewhere(pipeline.workdir.home)
    found = examine(open_existing(str(pipeline.root)))
    assert found.forecast.refusal.code == "workdir.not-replaceable"
    assert str(target) in found.forecast.refusal.next_step
    assert found.plan(rebuild_workdir=True).is_empty


def test_a_workdir_that_has_become_a_link_stays_one(pipeline):
    plan = examine(open_existing(str(pipeline.root))).plan(rebuild_workdir=True)
    target = link_elsewhere(pipeline.workdir.home)
    with pytest.raises(Invalid) as raised:
        plan.apply()
    assert raised.value.code == "workdir.not-replaceable"
    assert pipeline.workdir.home.readlink() == target
    assert current(pipeline.store.objects).generation == 1


def test_a_rebuild_that_waited_while_the_pipeline_went_on_is_refused(pipeline):
    plan = examine(open_existing(str(pipeline.root))).plan(rebuild_workdir=True)
    pipeline.run_epoch(4)
    pipeline.lose_workdir()
    with pytest.raises(Conflict) as raised:
        plan.apply()
    assert raised.value.code == "recover.moved"
    assert pipeline.workdir.is_empty()
