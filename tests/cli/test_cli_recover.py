from __future__ import annotations

import pytest
from cli_running import at_terminal, flip, in_child, manifest, manifest_path, sidecar_path, tree

import holdfast
from holdfast import SinkCommitStatus
from holdfast.errors import Unavailable
from holdfast.objects import LocalObjects


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
