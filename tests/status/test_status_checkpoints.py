"""A store seen from outside: nothing that is wrong with one checkpoint hides the others."""

from __future__ import annotations

import pytest

from checkpoint_stores import fill, flip, manifest_path, sidecar_path, tree
from holdfast.errors import Corrupt, NotFound
from holdfast.status.checkpoints import (
    judge_pointer,
    list_checkpoints,
    load_checkpoint,
    open_existing,
    resolve,
    see_manifest,
    why_empty,
)
from holdfast.status.verify import Verifier, bytes_ahead


@pytest.fixture
def root(tmp_path):
    fill(str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_list_has_the_newest_first_and_says_which_is_damaged(root):
    flip(manifest_path(root, 2))
    before = tree(root)
    listed = list_checkpoints(open_existing(str(root)))
    assert [(one.seen.checkpoint_id, one.seen.state, one.is_latest) for one in listed.checkpoints] == [
        (3, "ok", True),
        (2, "damaged", False),
        (1, "ok", False),
    ]
    assert (listed.total, listed.latest.state, listed.exit_code) == (3, "ok", 0)
    found = listed.as_json()["checkpoints"]
    assert found[0]["size_bytes"] > 5000
    assert "size_bytes" not in found[1]
    assert tree(root) == before


def test_a_short_list_counts_the_rest(root):
    listed = list_checkpoints(open_existing(str(root)), 1)
    assert ([one.seen.checkpoint_id for one in listed.checkpoints], listed.total) == ([3], 3)


def test_a_checkpoint_that_has_gone_is_not_damaged(root):
    assert see_manifest(open_existing(str(root)), 9).state == "gone"


def test_what_a_checkpoint_says_and_how_it_is_named(root):
    opened = open_existing(str(root))
    assert resolve(opened, "latest") == 3
    details = load_checkpoint(opened, "latest").as_json()
    assert (details["checkpoint_id"], details["manifest"]["checkpoint_id"], details["issues"]) == (3, 3, [])
    with pytest.raises(NotFound, match="no checkpoint 9"):
        load_checkpoint(opened, 9)
    flip(manifest_path(root, 3))
    with pytest.raises(Corrupt) as raised:
        load_checkpoint(opened, 3)
    assert "--raw" in (raised.value.next_step or "")


def test_a_store_that_is_not_there_or_looks_empty(root, tmp_path):
    with pytest.raises(NotFound):
        open_existing(str(tmp_path / "gone"))
    assert "inside of a store" in (why_empty(open_existing(str(root / "checkpoints"))) or "")
    assert why_empty(open_existing(str(root))) is None


def test_verdicts_without_the_command_line(root):
    flip(sidecar_path(root, 2))
    opened = open_existing(str(root))
    shallow = Verifier(opened, [1, 2, 3], deep=False)
    assert [shallow.verdict(number).state for number in (1, 2, 3, 9)] == ["ok", "ok", "ok", "missing"]
    read = 0

    def progress(amount: int) -> None:
        nonlocal read
        read += amount

    deep = Verifier(opened, [1, 2, 3], deep=True, progress=progress)
    report = deep.report([deep.verdict(number) for number in (3, 2, 1)], with_orphans=True)
    assert [verdict.state for verdict in report.verdicts] == ["ok", "damaged", "ok"]
    assert report.exit_code == Corrupt.exit_code
    assert report.as_json()["counts"] == {"ok": 2, "damaged": 1, "unreadable": 0, "missing": 0}
    assert read == bytes_ahead(opened, [1, 2, 3])


@pytest.mark.parametrize(
    ("names", "ids", "unusable", "state"),
    [
        (3, [1, 2, 3], [], "ok"),
        (2, [1, 2, 3], [], "misplaced"),
        (2, [1, 2, 3], [3], "ok"),
        (3, [1, 2, 3], [3], "misplaced"),
        (9, [1, 2, 3], [], "dangling"),
        (9, [], [], "dangling"),
        (None, [1], [], "garbage"),
        (1, [1], [1], "ok"),  # nothing better to name
    ],
)
def test_what_a_pointer_is_worth(names, ids, unusable, state):
    found = judge_pointer(names, ids, unusable)
    assert found.state == state
    assert (found.problem is None) == (state == "ok")


def test_the_options_of_a_store_are_not_shown():
    opened = open_existing("s3://bucket/orders", options={"access_key_id": "me", "secret_access_key": "hush"})
    assert repr(opened) == "OpenedStore('s3://bucket/orders')"
