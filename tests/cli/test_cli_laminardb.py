"""A directory that the real LaminarDB wrote (0.17.0, kept in `laminardb/`) opens, and looking changes nothing in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_running import in_child

from checkpoint_stores import tree

WRITTEN = Path(__file__).parent / "laminardb"
READING = [
    ["status"],
    ["status", "--json"],
    ["ls"],
    ["ls", "--json"],
    ["show"],
    ["show", "52", "--raw"],
    ["diff", "51", "53"],
    ["verify"],
    ["verify", "--deep"],
    ["recover", "--dry-run"],
    ["recover"],
    ["gc", "--dry-run"],
    ["prune", "--keep", "1", "--dry-run"],
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(WRITTEN, tmp_path / "db")
    return tmp_path / "db"


def test_it_is_listed_shown_verified_and_recovered(run, directory):
    listed = run("ls", directory, "--json").data
    assert [item["checkpoint_id"] for item in listed["checkpoints"]] == [53, 52, 51]
    assert listed["latest"]["state"] == "ok"
    assert all(item["size_bytes"] > 100 for item in listed["checkpoints"])
    shown = run("show", directory)
    assert shown.code == 0
    assert "another program" in shown.out
    assert "pipeline    not recorded" in run("status", directory).out
    assert run("verify", directory, "--deep").code == 0
    recovered = run("recover", directory)
    assert recovered.code == 0
    assert "resume from checkpoint 53, epoch 53" in recovered.out


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_looking_changes_nothing(directory, verb):
    before = tree(directory)
    assert in_child(verb[0], directory, *verb[1:]).code == 0
    assert tree(directory) == before


def test_nothing_is_repaired_unasked(run, directory):
    (directory / "checkpoints/latest.txt").write_text("checkpoint_000051")
    before = tree(directory)
    assert run("recover", directory).code == 2
    assert run("prune", directory, "--keep", 1).code == 2
    assert tree(directory) == before
    assert run("recover", directory, "--yes").code == 0
    assert (directory / "checkpoints/latest.txt").read_text() == "checkpoint_000053"
