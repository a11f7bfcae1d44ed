from __future__ import annotations

import pytest
from cli_running import at_terminal, in_child

import holdfast
from checkpoint_stores import flip, manifest, manifest_path, sidecar_path, tree
from holdfast import SinkCommitStatus
from holdfast.checkpoints.lease import current
from holdfast.errors import Fenced, Unavailable
from holdfast.storage.objects import LocalObjects
from pipeline_stores import PipelineStore


def latest(store_dir) -> str:
    return (store_dir / "checkpoints/latest.txt").read_text()


def test_shows_the_walk_and_what_would_be_resumed(run, store_dir):
    flip(sidecar_path(store_dir, 3))
    before = tree(store_dir)
    ran = run("recover", store_dir, "--dry-run")
    assert ran.code == 0
    skipped, valid = ran.out.splitlines()[:2]
    assert skipped.startswith("3  skipped  ")
    assert "checksum mismatch" in skipped
    assert valid.startswith("2  valid")
    assert "resume from checkpoint 2, epoch 20" in ran.out
    assert ["orders", "0", "2000"] in [line.split() for line in ran.out.splitlines()]
    assert "set latest to 2" in ran.out
    assert run("recover", store_dir, "--dry-run", "--yes").code == 0
    assert tree(store_dir) == before


def test_a_pointer_that_is_right_is_left_alone(run, store_dir):
    before = tree(store_dir)
    ran = run("recover", store_dir)
    assert ran.code == 0
    assert "nothing to change" in ran.out
    assert tree(store_dir) == before


def test_without_a_terminal_it_needs_yes(run, store_dir):
    flip(sidecar_path(store_dir, 3))
    before = tree(store_dir)
    ran = run("recover", store_dir)
    assert ran.code == 2
    assert "set latest to 2" in ran.out
    assert "--yes" in ran.err
    assert tree(store_dir) == before


@pytest.mark.parametrize("pointer", [None, "garbage", "checkpoint_000001", "checkpoint_000044"])
def test_yes_repairs_the_pointer_and_nothing_else(run, store_dir, pointer):
    flip(sidecar_path(store_dir, 3))
    path = store_dir / "checkpoints/latest.txt"
    path.unlink() if pointer is None else path.write_text(pointer)
    before = tree(store_dir / "checkpoints/checkpoint_000003")
    ran = run("recover", store_dir, "--yes")
    assert ran.code == 0
    assert latest(store_dir) == "checkpoint_000002"
    assert tree(store_dir / "checkpoints/checkpoint_000003") == before
    assert "nothing to change" in run("recover", store_dir).out


def test_asks_at_a_terminal_and_no_is_the_default(store_dir):
    flip(sidecar_path(store_dir, 3))
    for keys in ("\n", "n\n", "perhaps\n", "\x04"):
        ran = at_terminal("recover", store_dir, keys=keys, after="[y/N]")
        assert ran.code == 130, ran.out
        assert "nothing was changed" in ran.out
        assert latest(store_dir) == "checkpoint_000003"
    ran = at_terminal("recover", store_dir, keys="y\n", after="[y/N]")
    assert ran.code == 0, ran.out
    assert latest(store_dir) == "checkpoint_000002"


def test_every_checkpoint_damaged_is_not_a_fresh_start(run, store_dir):
    for number in (1, 2, 3):
        flip(manifest_path(store_dir, number))
    before = tree(store_dir)
    ran = run("recover", store_dir, "--yes")
    assert ran.code == 6
    assert ran.out.count("skipped") == 3
    assert "not a fresh start" in ran.out
    assert tree(store_dir) == before
    data = run("recover", store_dir, "--json").data
    assert data["chosen_id"] is None
    assert len(data["skipped"]) == 3


def test_an_empty_store_is_a_fresh_start(run, tmp_path):
    ran = run("recover", tmp_path)
    assert (ran.code, ran.out) == (0, "")
    assert "from the beginning" in ran.err
    assert in_child("recover", tmp_path / "gone").code == 3
    assert not (tmp_path / "gone").exists()


def test_what_could_not_be_read_is_never_passed_over_for_good(run, store_dir, monkeypatch):
    real = LocalObjects.read

    def read(self, key, *, limit):
        if "000003/manifest" in key:
            raise Unavailable("timed out")
        return real(self, key, limit=limit)

    monkeypatch.setattr(LocalObjects, "read", read)
    ran = run("recover", store_dir, "--yes")
    assert ran.code == 8
    assert "3  unreadable  timed out" in ran.out
    assert "try again" in ran.err
    assert run("recover", store_dir, "--dry-run", "--json").data["plan"] == []
    assert latest(store_dir) == "checkpoint_000003"


def test_sinks_that_are_not_settled_are_named(run, tmp_path):
    store = holdfast.open_store(tmp_path)
    store.save(manifest(1, sink_commit_statuses={"lake": "Committed", "pg": SinkCommitStatus.pending()}))
    ran = run("recover", tmp_path)
    assert "sink pg is pending" in ran.out
    assert "lake" not in ran.out


def test_json_has_the_plan_and_whether_it_was_applied(run, memory_url):
    store = holdfast.open_store(memory_url)
    store.repair_pointer(1)
    planned = run("recover", memory_url, "--dry-run", "--json")
    assert planned.code == 0
    assert planned.data["plan"] == [{"action": "set-latest", "checkpoint_id": 3}]
    assert planned.data["applied"] is False
    assert planned.data["resume"]["source_offsets"]["orders"] == {"0": "3000", "1": "2700"}
    assert store.latest_pointer() == 1
    assert run("recover", memory_url, "--yes", "--json").data["applied"] is True
    assert store.latest_pointer() == 3


# A pipeline's store: what a start would do


@pytest.fixture
def pipeline(tmp_path) -> PipelineStore:
    """Three epochs of a pipeline."""
    made = PipelineStore(tmp_path / "store")
    for epoch in (1, 2, 3):
        made.run_epoch(epoch)
    return made


def start_of(ran) -> dict:
    assert ran.err == ""
    return ran.data["start"]


def test_the_plan_of_a_start_in_words(run, pipeline):
    before = tree(pipeline.root)
    ran = run("recover", pipeline.root, "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert "what a start of pipeline orders would do" in ran.out
    assert "Resume from checkpoint 3, epoch 3, lineage 0." in ran.out
    assert "Go on with the workdir as it is: it matches the checkpoint." in ran.out
    assert f"workdir {pipeline.workdir.path} as it is on this machine" in ran.out
    assert "The sinks are asked, and the query is compared, when the pipeline starts." in ran.out
    assert "generation 1 was claimed by driver-1" in ran.out
    assert "nothing to change" in ran.out
    assert tree(pipeline.root) == before


def test_a_workdir_that_is_gone_or_damaged_would_be_rebuilt(run, pipeline):
    (pipeline.workdir.path / "offsets/2").write_text("v1\n{")
    start = start_of(run("recover", pipeline.root, "--dry-run", "--json"))
    assert (start["workdir_action"], start["replayed_epoch"], start["next_epoch"]) == ("rebuild", 3, 4)
    pipeline.lose_workdir()
    ran = run("recover", pipeline.root)
    assert ran.code == 0
    assert "Rebuild the workdir from checkpoint 3: it is gone." in ran.out
    assert "Spark runs batch 2 (epoch 3) once more for its state" in ran.out
    assert not pipeline.workdir.path.exists()
    assert current(pipeline.store.objects).generation == 1


def test_sinks_that_owe_the_last_epoch_are_in_the_plan(run, pipeline):
    statuses = {"hook": SinkCommitStatus.pending(), "lake": SinkCommitStatus.committed()}
    pipeline.run_epoch(4, sink_commit_statuses=statuses, is_committed=False)
    ran = run("recover", pipeline.root, "--dry-run")
    assert "Finish the last epoch in sink 'hook' from what was staged for it." in ran.out
    start = start_of(run("recover", pipeline.root, "--dry-run", "--json"))
    assert (start["owing_sinks"], start["replayed_epoch"], start["workdir_action"]) == (["hook"], 4, "keep")


def test_a_damaged_checkpoint_and_a_workdir_that_is_ahead(run, pipeline):
    flip(manifest_path(pipeline.root, 3))
    ran = run("recover", pipeline.root, "--dry-run")
    assert ran.code == 0
    assert "Go on from the workdir, which is ahead" in ran.out
    assert "set latest to 2" in ran.out
    ran = run("recover", pipeline.root, "--rebuild-workdir", "--yes")
    assert ran.code == 2
    assert "the only copy of what came after" in ran.err
    assert (pipeline.workdir.path / "commits/2").exists()


def test_a_start_that_would_stop_is_told(run, pipeline, tmp_path):
    other = PipelineStore(tmp_path / "other", query_id="another")
    other.run_epoch(1)
    ran = run("recover", pipeline.root, "--workdir", other.workdir.path)
    assert ran.code == 2
    assert "a start would stop, and change nothing" in ran.out
    assert "belongs to pipeline 'orders'" in ran.out
    (tmp_path / "file").touch()
    assert run("recover", pipeline.root, "--workdir", tmp_path / "file").code == 2
    assert run("recover", pipeline.root, "--workdir", "ftp://host/x").code == 2


def test_a_store_that_lost_its_checkpoints_is_not_a_fresh_start(run, pipeline):
    for path in sorted((pipeline.root / "checkpoints").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ran = run("recover", pipeline.root)
    assert ran.code == 6
    assert "has 3 epochs behind it" in ran.out
    assert "from the beginning" not in ran.err


def test_the_workdir_is_rebuilt_when_asked_for_and_agreed_to(run, pipeline):
    pipeline.lose_workdir()
    call = ["recover", pipeline.root, "--rebuild-workdir"]
    assert run(*call, "--dry-run").code == 0
    ran = run(*call)
    assert ran.code == 2
    assert "--yes" in ran.err
    assert not pipeline.workdir.path.exists()
    assert current(pipeline.store.objects).generation == 1

    ran = run(*call, "--yes")
    assert ran.code == 0, ran.err
    assert "is rebuilt, under generation 2" in ran.out
    assert pipeline.workdir.spark_checkpoint.logs().planned == 2
    assert pipeline.workdir.owner().pipeline == "orders"
    assert current(pipeline.store.objects).owner.startswith("holdfast recover on ")
    with pytest.raises(Fenced):  # the driver that ran it
        pipeline.store.check_lease()
    again = run("recover", pipeline.root, "--dry-run", "--json")
    assert start_of(again)["workdir_action"] == "keep"


def test_it_can_be_rebuilt_elsewhere(run, pipeline, tmp_path):
    elsewhere = tmp_path / "a/b/workdir"
    ran = run("recover", pipeline.root, "--workdir", elsewhere, "--rebuild-workdir", "--yes", "--json")
    assert ran.code == 0
    assert ran.data["plan"] == [{"action": "rebuild-workdir", "checkpoint_id": 3}]
    assert ran.data["applied"] is True
    assert (elsewhere / "offsets/2").read_text() == (pipeline.workdir.path / "offsets/2").read_text()


def test_rebuilding_at_a_terminal_asks_first(pipeline):
    pipeline.lose_workdir()
    ran = at_terminal("recover", pipeline.root, "--rebuild-workdir", keys="n\n", after="[y/N]")
    assert ran.code == 130
    assert "a driver that still runs is stopped" in ran.out
    assert not pipeline.workdir.path.exists()


def test_there_is_no_workdir_without_a_pipeline(run, store_dir):
    ran = run("recover", store_dir, "--rebuild-workdir", "--yes")
    assert ran.code == 0
    assert "no pipeline of Holdfast's wrote these checkpoints" in ran.err
