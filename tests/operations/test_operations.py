"""Plans without the command line: what they say, as lines and as JSON, and what `apply` makes of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

import holdfast
from checkpoint_stores import fill, flip, sidecar_path, tree
from holdfast.checkpoints.cleanup import Removal
from holdfast.checkpoints.lease import current
from holdfast.checkpoints.retention import Orphan
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.operations import clear_index
from holdfast.operations.cleanup import in_both, plan_gc, plan_prune
from holdfast.operations.clear_index import plan_clear
from holdfast.operations.plan import Plan, Table
from holdfast.operations.projections import plan_rebuild, plan_reset, plan_retry
from holdfast.operations.recover import examine
from holdfast.projections import NewEvent, OnError, Projection, ProjectionRunner, open_projections
from holdfast.status.checkpoints import open_existing
from pipeline_stores import PipelineStore


def text(plan: Plan) -> str:
    return "\n".join(str(line) for line in plan.lines())


def test_a_table_prints_as_columns():
    table = Table(("REMOVE", "SIZE"), [("a", "10 B"), ("longer", "5 B")], right=(1,))
    assert str(table).splitlines() == ["REMOVE  SIZE", "a       10 B", "longer   5 B"]


# Checkpoints


@pytest.fixture
def root(tmp_path):
    fill(str(tmp_path / "store"))
    return tmp_path / "store"


def ids(root) -> list[int]:
    return holdfast.open_store(str(root)).list_ids()


def test_prune_shows_without_touching_and_applies_what_it_showed(root):
    before = tree(root)
    plan = plan_prune(open_existing(str(root)), 1)
    assert "checkpoint 1" in text(plan)
    assert "1 checkpoint will be kept" in text(plan)
    assert [item["checkpoint_id"] for item in plan.as_json()["checkpoints"]] == [1, 2]
    assert plan.question.startswith("Remove 2 checkpoints, ")
    assert tree(root) == before
    done: list[tuple[int, int]] = []
    outcome = plan.apply(lambda amount, total: done.append((amount, total)))
    assert ids(root) == [3]
    assert [item["checkpoint_id"] for item in outcome.result["checkpoints"]] == [2, 1]  # children before ancestors
    assert done[-1] == (2, 2)
    assert plan_prune(open_existing(str(root)), 1).is_empty


def test_a_removal_that_waited_leaves_what_became_needed(root):
    orphan = root / "checkpoints/checkpoint_000070/state.bin"
    orphan.parent.mkdir()
    orphan.write_bytes(b"o")
    os.utime(orphan, (time.time() - 7200,) * 2)
    plan = plan_gc(open_existing(str(root)), 3600)
    assert not plan.is_empty
    os.utime(orphan)
    assert plan.apply().lines == ["removed nothing, 0 B"]
    assert orphan.exists()


def test_nothing_to_remove_is_an_empty_plan(root):
    plan = plan_gc(open_existing(str(root)), 3600)
    assert (plan.is_empty, text(plan)) == (True, "nothing to remove; 3 checkpoints kept")


# Recovery


def test_only_what_is_still_doomed_after_the_answer_goes():
    def removal(number):
        return Removal(number, f"m{number}", (f"s{number}",), 5)

    plan = holdfast.open_store("memory://").plan_prune(1)
    shown, now = (
        msgspec.structs.replace(
            plan, checkpoints=[removal(n) for n in doomed], orphans=[Orphan(k, 1, "") for k in keys]
        )
        for doomed, keys in (((1, 2), "ab"), ((2, 3), "bc"))
    )
    both = in_both(shown, now)
    assert [item.checkpoint_id for item in both.checkpoints] == [2]
    assert [item.key for item in both.orphans] == ["b"]


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


# An index


@pytest.fixture
def index(tmp_path) -> str:
    address = f"sqlite:///{tmp_path}/turnover.db"
    with holdfast.open_index(address) as made, made.session():
        made.results.put(b"a", b"1")
        made.results.put(b"b", b"2")
        made.checkpoints.stage_checkpoint("orders", 42)
    return address


@pytest.mark.parametrize("with_results", [True, False])
def test_clearing_an_index(index, with_results):
    plan = plan_clear(index, with_results=with_results)
    assert plan.as_json() == {
        "checkpoints": ["orders"],
        "gaps": 0,
        "config_hash": None,
        "results": 2 if with_results else None,
        "has_more_results": False,
        "finishes_reset": False,
    }
    assert ("2 results" in text(plan)) is with_results
    assert ("results stay" in text(plan)) is not with_results
    plan.apply()
    with holdfast.open_index(index) as left:
        assert len(list(left.results.scan())) == (0 if with_results else 2)
    after = plan_clear(index, with_results=with_results)
    assert (after.is_empty, text(after)) == (True, "nothing to remove")


def test_an_index_that_changed_while_the_plan_waited_is_left_alone(index):
    plan = plan_clear(index, with_results=True)
    with holdfast.open_index(index) as changed, changed.session():
        changed.results.put(b"c", b"3")
    with pytest.raises(Conflict) as raised:
        plan.apply()
    assert raised.value.code == "index.changed"
    with holdfast.open_index(index) as left:
        assert len(list(left.results.scan())) == 3


def test_many_results_are_not_all_counted(index, monkeypatch):
    monkeypatch.setattr(clear_index, "COUNTED", 1)
    plan = plan_clear(index, with_results=True)
    assert (plan.amount, plan.as_json()["results"], plan.as_json()["has_more_results"]) == (0, 1, True)


# Projections


class Turnover(Projection):
    name = "turnover"

    def handle(self, event, view):
        if event.type == "poison":
            raise ValueError("cannot be read")
        view.put(b"%d" % event.position, b"1")


class Corrected(Turnover):
    def handle(self, event, view):
        view.put(b"%d" % event.position, b"2")


class Doubled(Corrected):
    version = 2


@pytest.fixture
def shop(tmp_path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    with open_projections(address) as store:
        store.append("order-1", [NewEvent(kind) for kind in ("paid", "poison", "paid")])
        ProjectionRunner(store, on_error=OnError(then="dead-letter")).catch_up_persistent(Turnover())
    return address


def test_emptying_a_projection(shop):
    plan = plan_reset(shop, "turnover")
    assert (plan.as_json()["keys"], plan.as_json()["dead_letters"], plan.as_json()["position"]) == (2, 1, 3)
    assert "works on it: nobody" in text(plan)
    assert plan.apply().lines == ["emptied turnover"]
    assert plan_reset(shop, "turnover").as_json()["keys"] == 0
    with pytest.raises(NotFound):
        plan_reset(shop, "other")


def test_a_read_model_that_was_replaced_while_the_plan_waited_is_left_alone(shop):
    plan = plan_reset(shop, "turnover")
    plan_rebuild(shop, Doubled()).apply()
    with pytest.raises(Conflict) as raised:
        plan.apply()
    assert raised.value.code == "projection.changed"
    assert plan_reset(shop, "turnover").as_json()["keys"] == 3


def test_rebuilding_a_projection(shop):
    plan = plan_rebuild(shop, Doubled())
    assert (plan.amount, plan.as_json()["version"], plan.as_json()["new_version"]) == (3, 1, 2)
    done: list[tuple[int, int]] = []
    outcome = plan.apply(lambda amount, total: done.append((amount, total)))
    assert outcome.result == {"position": 3, "handled": 3, "dead_letters": 0}
    assert done[-1] == (3, 3)


def test_a_rebuild_whose_handler_fails_says_that_nothing_was_switched(shop):
    with pytest.raises(Invalid) as raised:
        plan_rebuild(shop, Turnover()).apply()
    assert "nothing was switched" in (raised.value.unchanged or "")
    assert plan_reset(shop, "turnover").as_json()["keys"] == 2


def test_an_interrupted_rebuild_notes_what_it_left(shop):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        plan_rebuild(shop, Doubled()).apply(interrupt)
    assert any("nothing was switched" in note for note in raised.value.__notes__)


def test_retrying_dead_letters(shop):
    failing = plan_retry(shop, Turnover()).apply()
    assert (failing.result, failing.exit_code) == ({"handled": 0, "left": [2]}, Invalid.exit_code)
    assert failing.problems == ["still failing: 1 event, at position 2"]
    plan = plan_retry(shop, Corrected())
    assert text(plan) == "to handle again: 1 event, with version 1"
    assert plan.apply().result == {"handled": 1, "left": []}
    assert plan_retry(shop, Corrected()).is_empty
    with pytest.raises(Invalid):
        plan_retry(shop, Doubled())
