"""How a pipeline fares, from its store alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
from cli_running import COMMAND, at_terminal, environment

import holdfast
from checkpoint_stores import flip, manifest_path, tree
from holdfast import SinkCommitStatus
from holdfast.checkpoints.heartbeat import DEAD_AFTER, KEY, Heartbeat, beat
from holdfast.errors import Unavailable
from holdfast.storage.objects import LocalObjects
from pipeline_stores import NOW, PipelineStore


@pytest.fixture
def pipeline(tmp_path) -> PipelineStore:
    """Three epochs of a pipeline."""
    made = PipelineStore(tmp_path / "store")
    for epoch in (1, 2, 3):
        made.run_epoch(epoch)
    return made


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_it_tells_everything_that_the_store_knows(run, pipeline):
    before = tree(pipeline.root)
    ran = run("status", pipeline.root)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "pipeline    orders"
    assert lines[1] == "driver      unknown: driver-1 has given no sign of life"
    assert lines[2] == "epoch       3"
    assert lines[3].startswith("checkpoint  3, ")
    assert "generation 1, claimed by driver-1" in ran.out
    assert re.search(r"^watermark   2026-01-01T00:01:19Z  \([\d,]+ days ago\)$", ran.out, re.MULTILINE)
    assert "epoch 2     40 rows, 20.5 rows/s, 1.95 s" in ran.out
    assert ["orders", "(json)", "logOffset", "3"] in words(ran.out)
    assert ["rates", "(table)", "version", "12"] in words(ran.out)
    assert ["hook", "3", "committed", "at-least-once"] in words(ran.out)
    assert ["lake", "3", "committed", "exactly-once"] in words(ran.out)
    assert "resume from checkpoint 3, epoch 3" in ran.out
    assert "then epoch 4" in ran.out
    assert tree(pipeline.root) == before


def test_neither_the_workdir_nor_spark_is_needed(run, pipeline):
    pipeline.lose_workdir()
    assert "resume from checkpoint 3" in run("status", pipeline.root).out


def test_json_is_exact(run, pipeline):
    data = run("status", pipeline.root, "--json").data
    assert data["pipeline"] == "orders"
    assert data["checkpoint"]["watermark"] == NOW
    assert data["checkpoint"]["size_bytes"] == pipeline.store.load_by_id(3).size_bytes
    assert data["checkpoint"]["sink_guarantees"] == {"lake": "exactly-once", "hook": "at-least-once"}
    assert data["lease"]["owner"] == "driver-1"
    assert data["last_epoch"] == {"epoch": 2, "rows": 40, "rows_per_second": 20.5, "seconds": 1.95, "lag": {}}
    assert data["resume"] == {
        "checkpoint_id": 3,
        "epoch": 3,
        "replayed_epoch": 3,
        "next_epoch": 4,
        "owing_sinks": [],
    }
    assert data["skipped"] == []


def test_sinks_that_owe_an_epoch_are_named(run, pipeline):
    pending = {"hook": SinkCommitStatus.pending(), "lake": SinkCommitStatus.failed("no such table")}
    pipeline.run_epoch(4, sink_commit_statuses=pending, sink_epochs={"hook": 3, "lake": 3})
    ran = run("status", pipeline.root)
    assert ["lake", "3", "failed:", "no", "such", "table", "exactly-once"] in words(ran.out)
    assert "sink lake still owes epoch 4 and gets it first\n" in ran.out
    assert "sink hook still owes epoch 4 and gets it first, and may get it twice: it is at-least-once" in ran.out
    assert run("status", pipeline.root, "--json").data["resume"]["owing_sinks"] == ["hook", "lake"]


def test_a_driver_that_has_taken_over_and_done_nothing_yet(run, pipeline):
    pipeline.store.claim("driver-2")
    assert "generation 2, claimed by driver-2 just now, which has not finished an epoch yet" in run(
        "status", pipeline.root
    ).out.replace("1 s ago", "just now")


def give_sign(pipeline: PipelineStore, state: str = "running", *, age: float = 3.0, reason: str | None = None) -> None:
    """A heartbeat of the first driver, so many seconds old."""
    beat(pipeline.store.objects, Heartbeat(1, "driver-1", NOW, state, 0, reason))  # type: ignore[arg-type]
    then = time.time() - age
    os.utime(pipeline.root / KEY, (then, then))


LONG = DEAD_AFTER * 10


@pytest.mark.parametrize(
    ("state", "age", "expected", "words"),
    [
        ("running", 3.0, "running", "running on driver-1 since 2026-01-01T00:01:19Z, last seen "),
        ("running", LONG, "dead", "dead: driver-1 ran since 2026-01-01T00:01:19Z and was last seen 10 min ago"),
        ("stopped", LONG, "stopped", "stopped 10 min ago, on driver-1"),
        ("failed", LONG, "failed", "failed 10 min ago, on driver-1: sink.ahead"),
    ],
)
def test_whether_it_runs(run, pipeline, state, age, expected, words):
    give_sign(pipeline, state, age=age, reason="sink.ahead" if state == "failed" else None)
    assert run("status", pipeline.root).out.splitlines()[1].startswith(f"driver      {words}")
    driver = run("status", pipeline.root, "--json").data["driver"]
    assert (driver["state"], driver["generation"], driver["taken_over_by"]) == (expected, 1, None)
    assert abs(driver["seen_ms"] - (time.time() - age) * 1000) < 30_000


def test_a_driver_that_was_taken_over(run, pipeline):
    give_sign(pipeline)
    pipeline.store.claim("driver-2")
    line = run("status", pipeline.root).out.splitlines()[1]
    assert line.startswith("driver      fenced: driver-1, last seen ")
    assert line.endswith(" ago, was taken over by driver-2")
    data = run("status", pipeline.root, "--json").data
    assert (data["driver"]["state"], data["driver"]["generation"], data["driver"]["taken_over_by"]) == ("fenced", 1, 2)
    assert (data["lease"]["owner"], data["lease"]["holdfast"]) == ("driver-2", holdfast.__version__)


@pytest.mark.parametrize("damage", ["manifest", "batch"])
def test_a_damaged_newest_is_walked_past_and_said(run, pipeline, damage):
    if damage == "manifest":
        flip(manifest_path(pipeline.root, 3))
    else:
        (pipeline.root / "checkpoints/batch-000003.lz4").unlink()
    ran = run("status", pipeline.root)
    assert ran.code == 6
    assert ran.out.startswith("checkpoint 3 is damaged: ")
    assert "resume from checkpoint 2, epoch 2" in ran.out
    assert "recover" in ran.err
    data = run("status", pipeline.root, "--json").data
    assert [one["checkpoint_id"] for one in data["skipped"]] == [3]


def test_every_checkpoint_damaged_is_not_a_fresh_start(run, pipeline):
    for number in (1, 2, 3):
        flip(manifest_path(pipeline.root, number))
    ran = run("status", pipeline.root)
    assert ran.code == 6
    assert "not a fresh start" in ran.out
    assert "driver-1" in ran.out


def test_what_cannot_be_read_is_not_called_damaged(run, pipeline, monkeypatch):
    real = LocalObjects.read

    def read(self, key, *, limit):
        if "000003/manifest" in key:
            raise Unavailable("timed out")
        return real(self, key, limit=limit)

    monkeypatch.setattr(LocalObjects, "read", read)
    ran = run("status", pipeline.root)
    assert ran.code == 8
    assert "checkpoint 3 could not be read: timed out" in ran.out


def test_a_store_without_checkpoints(run, tmp_path):
    ran = run("status", tmp_path)
    assert (ran.code, ran.out) == (0, "")
    assert "no pipeline has finished an epoch here" in ran.err
    holdfast.open_store(tmp_path).claim("driver-1")
    ran = run("status", tmp_path)
    assert ran.out.splitlines()[1].startswith("lease       generation 1, claimed by driver-1")
    data = run("status", tmp_path, "--json").data
    assert (data["checkpoint"], data["resume"], data["lease"]["generation"]) == (None, None, 1)


def test_a_store_that_no_pipeline_wrote(run, store_dir):
    ran = run("status", store_dir)
    assert ran.code == 0
    assert "pipeline    not recorded" in ran.out
    assert "lease       never claimed" in ran.out
    assert "Spark" not in ran.out
    assert run("status", store_dir, "--json").data["resume"]["replayed_epoch"] is None


def test_nonsense_in_the_runtime_section_is_survived(run, tmp_path):
    made = PipelineStore(tmp_path / "store")
    made.run_epoch(1)
    body = holdfast.open_store(made.root).load_by_id(1)
    own = body.own
    for number, runtime in enumerate(
        ({"pipeline": 7}, {"pipeline": "x", "guarantees": 3, "last_epoch": {"epoch": "one"}}), start=2
    ):
        made.run_epoch(number, holdfast=type(own)(batches=own.batches, runtime=runtime))
        ran = run("status", made.root)
        assert ran.code == 0, ran.err
        assert "resume from checkpoint" in ran.out


def watching(*arguments: object) -> subprocess.Popen[str]:
    words = [*COMMAND, "status", *(str(argument) for argument in arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def test_watching_in_a_pipe_is_a_line_at_a_time_until_it_is_interrupted(pipeline):
    child = watching(pipeline.root, "--watch", "1s")
    assert child.stdout
    first = child.stdout.readline()
    assert "  orders  epoch 3  checkpoint 3, " in first
    pipeline.run_epoch(4)
    while "epoch 4" not in child.stdout.readline():
        pass
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")


def test_watching_in_a_pipe_says_whether_it_runs(pipeline):
    give_sign(pipeline, age=LONG)
    child = watching(pipeline.root, "--watch", "1s")
    assert child.stdout
    assert "  orders  dead  epoch 3  " in child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == ""


def test_watching_as_json_is_a_document_per_line(pipeline):
    child = watching(pipeline.root, "--watch", "1s", "--json")
    assert child.stdout
    for _ in range(2):
        assert json.loads(child.stdout.readline())["data"]["checkpoint"]["epoch"] == 3
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == ""
    assert child.returncode == 0


def test_watching_a_store_that_is_gone_says_so_and_goes_on(pipeline):
    child = watching(pipeline.root, "--watch", "1s")
    assert child.stdout
    child.stdout.readline()
    shutil.rmtree(pipeline.root)
    while "no checkpoint yet" not in child.stdout.readline():
        pass
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 0


@pytest.mark.parametrize("columns", [60, 120])
def test_watching_at_a_terminal_redraws_and_leaves_the_last_picture(pipeline, columns):
    ran = at_terminal(
        "status", pipeline.root, "--watch", keys="\x03", after="then epoch", columns=columns, NO_COLOR="1"
    )
    assert ran.code == 0, ran.out
    assert "\x1b[31m" not in ran.out
    assert ran.out.rstrip().endswith("\x1b[?25h")  # the cursor is back
    assert "If it crashed now" in ran.out
    shown = [line for line in ran.out.splitlines() if "\x1b" not in line]
    assert max(len(line) for line in shown) <= columns
    assert "\x1b[1m" in at_terminal("status", pipeline.root, "--watch", keys="\x03", after="then epoch").out
