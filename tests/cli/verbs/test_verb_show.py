from __future__ import annotations

import json

from cli_running import in_child

import holdfast
from checkpoint_stores import flip, manifest, manifest_path
from holdfast import SinkCommitStatus


def test_shows_every_part(run, store_dir):
    ran = run("show", store_dir, 2)
    assert ran.code == 0
    words = " ".join(ran.out.split())
    assert words.startswith("checkpoint 2 epoch 20 created 2023-11-14T22:15:20Z")
    for part in (
        "topology clicks, orders → lake, pg",
        "hash 000000000000feed",
        "watermark 1700000000002 (2023-11-14T22:13:20.002Z)",
        "orders 0 2000 20",
        "clicks file part-2 20",
        "lake 20 committed",
        "agg 4.8 KiB sidecar, from byte 0",
        "tiny 1 B manifest",
        "sidecar checkpoints/checkpoint_000002/state.bin (4.8 KiB)",
        "partitions 256",
    ):
        assert part in words


def test_latest_is_the_default_and_the_highest_id(run, store_dir):
    (store_dir / "checkpoints/latest.txt").write_text("checkpoint_000001")
    assert run("show", store_dir, "--json").data["checkpoint_id"] == 3
    assert run("show", store_dir, "latest", "--json").data["checkpoint_id"] == 3


def test_json_holds_the_manifest_as_it_is_stored(run, store_dir, memory_url):
    data = run("show", store_dir, 2, "--json").data
    assert data["manifest"] == json.loads(manifest_path(store_dir, 2).read_bytes())
    assert run("show", memory_url, 2, "--json").data["manifest"]["epoch"] == 20


def test_raw_is_byte_for_byte_also_when_damaged(run, store_dir):
    path = manifest_path(store_dir, 2)
    assert run("show", store_dir, 2, "--raw").out.encode() == path.read_bytes()
    path.write_bytes(b'{"version": \x1b[31m')
    ran = in_child("show", store_dir, 2, "--raw")
    assert (ran.code, ran.out) == (0, '{"version": \x1b[31m')
    assert run("show", store_dir, 2, "--raw", "--json").code == 2


def test_a_damaged_one_says_where_and_what_next(run, store_dir):
    flip(manifest_path(store_dir, 3))
    ran = run("show", store_dir)
    assert (ran.code, ran.out) == (6, "")
    assert str(manifest_path(store_dir, 3)) in ran.err
    assert f"holdfast recover {store_dir} --dry-run" in ran.err


def test_one_that_is_not_there(run, store_dir, tmp_path):
    ran = run("show", store_dir, 9)
    assert (ran.code, ran.out) == (3, "")
    assert f"holdfast ls {store_dir}" in ran.err
    (tmp_path / "empty").mkdir()
    assert run("show", tmp_path / "empty").code == 3


def test_incremental_ones_say_where_state_lies_and_failed_sinks_why(run, tmp_path):
    store = holdfast.open_store(tmp_path, max_retained=None)
    store.save_states(manifest(1), {"a": b"1", "b": b"2"})
    failed = {"lake": "Committed", "pg": SinkCommitStatus.failed("no route")}
    store.save_states(manifest(2, sink_commit_statuses=failed), {"a": b"1", "b": b"3"})
    words = " ".join(run("show", tmp_path).out.split())
    assert "kind incremental of 1 (needs 1 ancestor)" in words
    assert "a 1 B unchanged, in checkpoint 1" in words
    assert "pg 20 failed: no route" in words
