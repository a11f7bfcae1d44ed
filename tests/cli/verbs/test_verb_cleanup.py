"""`prune` and `gc`: a plan first, then a question, then only what was agreed to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from cli_running import at_terminal

import holdfast
from checkpoint_stores import flip, manifest, manifest_path, tree


def add_orphan(store_dir: Path, *, hours: float = 2, size: int = 3000) -> Path:
    orphan = store_dir / "checkpoints/checkpoint_000070/state.bin"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"o" * size)
    when = time.time() - hours * 3600
    os.utime(orphan, (when, when))
    return orphan


def ids(address: object) -> list[int]:
    return holdfast.open_store(str(address)).list_ids()


@pytest.mark.parametrize("verb", [("prune", "--keep", "1"), ("gc",)])
def test_nothing_goes_on_a_dry_run_nor_unasked(run, store_dir, verb):
    add_orphan(store_dir)
    before = tree(store_dir)
    dry = run(verb[0], store_dir, *verb[1:], "--dry-run")
    assert dry.code == 0
    assert "checkpoints/checkpoint_000070/state.bin" in dry.out
    assert run(verb[0], store_dir, *verb[1:], "--dry-run", "--yes").code == 0
    at_one = at_terminal(verb[0], store_dir, *verb[1:], "--dry-run")
    assert (at_one.code, "[y/N]" in at_one.out) == (0, False)
    assert tree(store_dir) == before
    unasked = run(verb[0], store_dir, *verb[1:])
    assert unasked.code == 2
    assert unasked.out == dry.out
    assert "--yes" in unasked.err
    assert tree(store_dir) == before


def test_prune_shows_what_goes_and_why_then_removes_it(run, store_dir):
    orphan = add_orphan(store_dir)
    ran = run("prune", store_dir, "--keep", 1, "--yes")
    assert ran.code == 0
    table = [line.split() for line in ran.out.splitlines()]
    assert table[1][:2] == ["checkpoint", "1"]
    assert table[2][:2] == ["checkpoint", "2"]
    assert "to remove: 2 checkpoints and 1 orphan" in ran.out
    assert ran.out.splitlines()[-1].startswith("removed 2 checkpoints and 1 orphan")
    assert ids(store_dir) == [3]
    assert not orphan.exists()


def test_prune_measures_what_a_manifest_does_not_tell(run, store_dir):
    flip(manifest_path(store_dir, 1))
    really = sum(file.stat().st_size for file in manifest_path(store_dir, 1).parent.iterdir())
    plan = run("prune", store_dir, "--keep", 2, "--dry-run", "--json").data["plan"]
    assert [(item["checkpoint_id"], item["bytes"]) for item in plan["checkpoints"]] == [(1, really)]
    assert plan["bytes"] == really


def test_nothing_to_remove(run, store_dir, tmp_path):
    ran = run("prune", store_dir, "--keep", 9)
    assert (ran.code, ran.out) == (0, "nothing to remove; 3 checkpoints kept\n")
    assert run("gc", store_dir).code == 0
    (tmp_path / "empty").mkdir()
    assert run("gc", tmp_path / "empty").code == 0
    assert run("prune", tmp_path / "empty", "--keep", 1).code == 0
    assert run("prune", tmp_path / "gone", "--keep", 1).code == 3


def test_prune_says_which_older_checkpoints_stay_and_for_which(run, tmp_path):
    store = holdfast.open_store(str(tmp_path), max_retained=None, full_every=4)
    for number in range(1, 8):  # 1 is full, 2, 3 and 4 build on it; 5 is full, 6 and 7 build on it
        store.save_states(manifest(number), {"large": b"x" * 5000, "counter": b"%d" % number})
    ran = run("prune", tmp_path, "--keep", 2, "--dry-run")
    assert "to remove: 4 checkpoints" in ran.out
    assert ran.out.splitlines()[-1] == ("among them: 1 older checkpoint (5), because checkpoints 6, 7 build on it")
    plan = run("prune", tmp_path, "--keep", 2, "--dry-run", "--json").data["plan"]
    assert plan["ancestors"] == [{"checkpoint_id": 5, "needed_by": [6, 7], "is_certain": True}]
    assert run("prune", tmp_path, "--keep", 2, "--yes").code == 0
    again = run("prune", tmp_path, "--keep", 1)
    assert again.out.splitlines() == [
        "nothing to remove; 3 checkpoints kept",
        "among them: 2 older checkpoints (5, 6), because checkpoint 7 builds on them",
    ]
    assert run("gc", tmp_path, "--dry-run", "--json").data["plan"]["ancestors"] == []


@pytest.mark.parametrize("keep", ["0", "-1", "x", ""])
def test_a_senseless_number_is_refused(run, store_dir, keep):
    ran = run("prune", store_dir, "--keep", keep, "--yes")
    assert ran.code == 2
    assert ids(store_dir) == [1, 2, 3]


@pytest.mark.parametrize(
    ("age", "goes"), [("1h", True), ("90min", True), ("7000s", True), ("7000", True), ("3h", False), ("1d", False)]
)
def test_gc_leaves_alone_what_is_young(run, store_dir, age, goes):
    orphan = add_orphan(store_dir, hours=2)
    assert run("gc", store_dir, "--older-than", age, "--yes").code == 0
    assert orphan.exists() is not goes
    assert ids(store_dir) == [1, 2, 3]


@pytest.mark.parametrize("age", ["-1h", "soon", "", "1 fortnight", "٣h", "9" * 40])
def test_gc_refuses_what_is_no_length_of_time(run, store_dir, age):
    assert run("gc", store_dir, "--older-than", age, "--yes").code == 2


def test_asks_at_a_terminal(store_dir):
    for keys in ("\n", "n\n"):
        ran = at_terminal("prune", store_dir, "--keep", 1, keys=keys, after="[y/N]")
        assert ran.code == 130, ran.out
        assert ids(store_dir) == [1, 2, 3]
    ran = at_terminal("prune", store_dir, "--keep", 1, keys="yes\n", after="[y/N]")
    assert ran.code == 0, ran.out
    assert "removed 2 checkpoints" in ran.out
    assert ids(store_dir) == [3]


def test_an_interrupted_question_changes_nothing(store_dir):
    ran = at_terminal("prune", store_dir, "--keep", 1, keys="\x03", after="[y/N]")
    assert ran.code == 130
    assert "Interrupted" in ran.out
    assert "Traceback" not in ran.out
    assert ids(store_dir) == [1, 2, 3]


def test_what_became_needed_while_a_person_thought_stays(store_dir):
    orphan = add_orphan(store_dir)
    ran = at_terminal("gc", store_dir, keys="y\n", after="[y/N]", before_typing=lambda: os.utime(orphan))
    assert ran.code == 0, ran.out
    assert "removed nothing" in ran.out
    assert orphan.exists()


def test_children_go_before_the_ancestors_they_need(run, tmp_path, monkeypatch):
    store = holdfast.open_store(tmp_path, max_retained=None, full_every=3)
    for number in range(1, 8):
        store.save_states(manifest(number), {"a": b"same", "b": bytes([number])})
    removed = []
    real = holdfast.CheckpointStore.apply

    def apply(self, plan):
        removed.extend(item.checkpoint_id for item in plan.checkpoints)
        return real(self, plan)

    monkeypatch.setattr(holdfast.CheckpointStore, "apply", apply)
    assert run("prune", tmp_path, "--keep", 1, "--yes").code == 0
    assert removed == [6, 5, 4, 3, 2, 1]


def test_in_memory_and_as_json(run, memory_url):
    before = run("prune", memory_url, "--keep", 2, "--json")
    assert before.code == 2
    assert before.data["applied"] is False
    assert before.data["removed"]["checkpoints"] == []
    ran = run("prune", memory_url, "--keep", 2, "--yes", "--json")
    assert ran.code == 0
    assert [item["checkpoint_id"] for item in ran.data["removed"]["checkpoints"]] == [1]
    assert ran.data["kept"] == 2
    assert ids(memory_url) == [2, 3]
