from __future__ import annotations

import json

import msgspec
from cli_running import at_terminal, in_child

import holdfast
from checkpoint_stores import flip, manifest, manifest_path
from holdfast import ConnectorCheckpoint, SinkCommitStatus
from pipeline_stores import NOW, PipelineStore


def test_shows_every_part(run, store_dir):
    ran = run("show", store_dir, 2)
    assert ran.code == 0
    words = " ".join(ran.out.split())
    assert words.startswith("checkpoint 2 epoch 20 created 2023-11-14T22:15:20Z")
    for part in (
        "topology clicks, orders → lake, pg",
        "pipeline hash 000000000000feed",
        "watermark 2023-11-14T22:13:20Z (",
        "orders 0 2000",
        "clicks file part-2",
        "lake 20 committed",
        "agg 4.8 KiB sidecar, from byte 0",
        "tiny 1 B manifest",
        "sidecar checkpoints/checkpoint_000002/state.bin (4.8 KiB)",
        "state partitions 256",
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
    assert ", incremental of 1 (needs 1 ancestor)" in words
    assert "a 1 B unchanged, in checkpoint 1" in words
    assert "pg 20 failed: no route" in words


def test_a_pipelines_checkpoint_reads_from_the_top(run, tmp_path):
    made = PipelineStore(tmp_path / "store")
    made.run_epoch(1)
    ran = run("show", made.root)
    lines = ran.out.splitlines()
    assert lines[:2] == ["checkpoint  1 of pipeline orders", "epoch       1"]
    assert lines[3].startswith("watermark   2026-01-01T00:01:19Z  (")
    assert lines[3].endswith(" ago)")
    assert lines[6] == "epoch 0     40 rows, 20.5 rows/s, 1.95 s"
    assert "  hook      1  committed  at-least-once" in lines
    assert "  Spark             4.0.0, batch 0" in lines
    assert "{" not in ran.out  # nothing as a program would print it
    details = lines.index("Details")
    for technical in ("manifest", "written by", "pipeline hash", "workdir", "query id"):
        assert [n for n, line in enumerate(lines) if line.strip().startswith(technical)] > [details]


def test_watermarks_are_times_for_people_and_milliseconds_for_programs(run, tmp_path):
    made = PipelineStore(tmp_path / "store")
    made.run_epoch(1, source_watermarks={"orders": NOW, "clicks": NOW + 60_000})
    ran = run("show", made.root)
    assert "  clicks  2026-01-01T00:02:19Z  (" in ran.out
    assert str(NOW) not in ran.out
    found = run("show", made.root, "--json").data["manifest"]
    assert (found["watermark"], found["source_watermarks"]["clicks"]) == (NOW, NOW + 60_000)
    made.run_epoch(2, source_watermarks={"orders": NOW})
    assert "Watermarks" not in run("show", made.root).out  # said already
    made.run_epoch(3, source_watermarks={"orders": NOW}, source_names=["clicks", "orders"])
    assert "Watermarks" in run("show", made.root).out  # of one source among several


def test_offsets_of_another_epoch_are_marked(run, tmp_path):
    store = holdfast.open_store(tmp_path)
    behind = {"orders": ConnectorCheckpoint({"0": "17"}, 7)}
    store.save(msgspec.structs.replace(manifest(1), source_offsets=behind))
    assert "SOURCE PARTITION OFFSET EPOCH orders 0 17 7" in " ".join(run("show", tmp_path).out.split())


def test_a_path_is_not_broken_at_a_narrow_terminal(tmp_path):
    made = PipelineStore(tmp_path / "a-long-name-for-a-store-of-checkpoints")
    made.run_epoch(1)
    ran = at_terminal("show", made.root, columns=60, NO_COLOR="1")
    assert f"{made.root}/checkpoints/checkpoint_000001/manifest.json" in ran.out
