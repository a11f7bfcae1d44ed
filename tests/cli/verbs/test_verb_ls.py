from __future__ import annotations

import json

import pytest

import holdfast
from checkpoint_stores import fill, flip, manifest, manifest_path
from holdfast import SinkCommitStatus
from holdfast.errors import Unavailable
from holdfast.storage.objects import LocalObjects


def rows(out: str) -> list[list[str]]:
    return [[cell for cell in line.split("  ") if cell] for line in out.splitlines()]


def test_lists_newest_first_with_what_people_ask_for(run, store_dir):
    ran = run("ls", store_dir)
    assert ran.code == 0
    header, newest, *_, oldest = ran.out.splitlines()
    assert header.split() == ["ID", "EPOCH", "CREATED", "AGE", "SIZE", "KIND", "SINKS", "STATE"]
    assert newest.split()[:3] == ["3", "30", "2023-11-14T22:16:20Z"]
    assert "days ago" in newest
    assert "KiB" in newest
    assert newest.endswith("full  2 committed  latest")
    assert oldest.split()[0] == "1"
    assert "latest" not in oldest
    assert ran.err == ""


def test_json_is_exact(run, store_dir):
    data = run("ls", store_dir, "--json").data
    newest = data["checkpoints"][0]
    taken = sum(file.stat().st_size for file in manifest_path(store_dir, 3).parent.iterdir())
    assert newest["size_bytes"] == taken
    assert newest["timestamp_ms"] == 1_700_000_180_000
    assert newest["sink_commit_statuses"] == {"lake": "Committed", "pg": "Committed"}
    assert data["latest"] == {"state": "ok", "names": 3, "should_name": 3}
    assert data["total"] == 3


def test_memory_and_layouts(run, memory_url, tmp_path):
    assert len(run("ls", memory_url, "--json").data["checkpoints"]) == 3
    fill(str(tmp_path), layout="object")
    assert "--layout object" in run("ls", tmp_path).err
    assert len(run("ls", tmp_path, "--layout", "object", "--json").data["checkpoints"]) == 3


def test_says_what_is_incremental_and_what_is_pending(run, tmp_path):
    store = holdfast.open_store(tmp_path, max_retained=None)
    store.save_states(manifest(1), {"a": b"1", "b": b"2"})
    store.save_states(
        manifest(2, sink_commit_statuses={"lake": SinkCommitStatus.failed("disk"), "pg": SinkCommitStatus.pending()}),
        {"a": b"1", "b": b"3"},
    )
    newest = run("ls", tmp_path).out.splitlines()[1]
    assert "incremental of 1" in newest
    assert "1 failed, 1 pending" in newest


def test_a_damaged_manifest_is_marked_with_the_reason_and_the_others_are_listed(run, store_dir):
    flip(manifest_path(store_dir, 2))
    ran = run("ls", store_dir)
    assert ran.code == 0
    marked = [line for line in ran.out.splitlines() if "DAMAGED" in line]
    assert len(marked) == 1
    assert marked[0].split()[0] == "2"
    assert "its checksum does not match" in marked[0]
    assert len(ran.out.splitlines()) == 4


def test_one_that_cannot_be_read_is_marked_and_makes_the_listing_incomplete(run, store_dir, monkeypatch):
    real = LocalObjects.read

    def read(self, key, *, limit):
        if "000002" in key:
            raise Unavailable("the disk is on fire")
        return real(self, key, limit=limit)

    monkeypatch.setattr(LocalObjects, "read", read)
    ran = run("ls", store_dir)
    assert ran.code == 8
    assert "UNREADABLE: the disk is on fire" in ran.out


@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        (None, "latest is missing; it should name checkpoint 3"),
        ("rubbish", "latest is damaged"),
        ("checkpoint_000001", "latest names checkpoint 1; it should name 3"),
        ("checkpoint_000009", "latest names checkpoint 9, which is not there"),
    ],
)
def test_a_pointer_that_is_wrong_is_a_note(run, store_dir, pointer, said):
    latest = store_dir / "checkpoints/latest.txt"
    latest.unlink() if pointer is None else latest.write_text(pointer)
    ran = run("ls", store_dir)
    assert ran.code == 0
    assert said in ran.err
    assert said not in ran.out


def test_a_pointer_to_the_newest_that_is_not_damaged_is_right(run, store_dir):
    flip(manifest_path(store_dir, 3))
    (store_dir / "checkpoints/latest.txt").write_text("checkpoint_000002")
    assert run("ls", store_dir).err == ""


def test_limit_reads_only_what_it_shows(run, tmp_path, monkeypatch):
    fill(str(tmp_path), 12)
    read = []
    real = LocalObjects.read
    monkeypatch.setattr(
        LocalObjects, "read", lambda self, key, *, limit: read.append(key) or real(self, key, limit=limit)
    )
    ran = run("ls", tmp_path, "--limit", 2)
    assert [row[0].strip() for row in rows(ran.out)[1:]] == ["12", "11"]
    assert "10 older" in ran.err
    assert sorted(key for key in read if "manifest" in key) == [
        "checkpoints/checkpoint_000011/manifest.json",
        "checkpoints/checkpoint_000012/manifest.json",
    ]


def test_a_pipe_gets_all_of_them(run, tmp_path):
    fill(str(tmp_path), 25)
    assert len(run("ls", tmp_path).out.splitlines()) == 26
    assert len(run("ls", tmp_path, "--json").data["checkpoints"]) == 25
    assert run("ls", tmp_path, "--all", "--limit", 3).code == 2


def test_an_empty_store_is_fine_and_a_missing_one_is_not(run, tmp_path):
    empty = run("ls", tmp_path)
    assert (empty.code, empty.out) == (0, "")
    assert "has no checkpoints" in empty.err
    gone = run("ls", tmp_path / "gone")
    assert (gone.code, gone.out) == (3, "")
    assert "gone is not there" in gone.err
    file = tmp_path / "file"
    file.write_text("x")
    assert run("ls", file).code == 3


def test_the_inside_of_a_store_is_recognised(run, store_dir):
    ran = run("ls", store_dir / "checkpoints")
    assert ran.code == 0
    assert f"holdfast ls {store_dir}" in ran.err


def test_a_foreign_checkpoint_that_does_not_tell_its_size_is_measured(run, tmp_path):
    folder = tmp_path / "checkpoints/checkpoint_000001"
    folder.mkdir(parents=True)
    body = json.dumps({"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 5}).encode()
    (folder / "manifest.json").write_bytes(body)
    (folder / "state.bin").write_bytes(b"x" * 100)
    assert run("ls", tmp_path, "--json").data["checkpoints"][0]["size_bytes"] == len(body) + 100
