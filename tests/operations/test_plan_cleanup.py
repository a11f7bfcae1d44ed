"""Plans of `prune` and `gc`, without the command line: what they show, and what `apply` makes of them."""

from __future__ import annotations

import os
import time

import msgspec
from plan_texts import text

import holdfast
from checkpoint_stores import tree
from holdfast.checkpoints.cleanup import Removal
from holdfast.checkpoints.retention import Orphan
from holdfast.operations.cleanup import in_both, plan_gc, plan_prune
from holdfast.status.checkpoints import open_existing


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
