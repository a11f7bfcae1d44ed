"""`holdfast run` with Spark."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_running import COMMAND, at_terminal, environment

import holdfast
from sparks import java_options

QUIET = {"SPARK_LOCAL_IP": "127.0.0.1"}


PIPELINE = """
import sys
from pyspark.sql import SparkSession
from holdfast.sinks.files import FileSink
from holdfast.spark import Pipeline

place, trigger = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
pipeline = Pipeline("numbers", checkpoints=f"{place}/store")
numbers = pipeline.source("numbers", spark.readStream.format(FORMAT).OPTIONS.load())
pipeline.sink("out", FileSink(f"{place}/out"))
pipeline.run(numbers, trigger={trigger: True} if trigger == "availableNow" else {trigger: "500 milliseconds"})
print("the file goes on")
"""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # For a JVM that lives for seconds, and rows by the dozen.
    "spark.driver.extraJavaOptions": java_options(),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SPARK = ["--master", "local[1]", *(word for pair in SETTINGS.items() for word in ("--conf", "=".join(pair)))]


@pytest.fixture
def numbers(tmp_path) -> Path:
    """A pipeline that never ends by itself."""
    path = tmp_path / "numbers.py"
    path.write_text(PIPELINE.replace("FORMAT", '"rate"').replace("OPTIONS", 'option("rowsPerSecond", 10)'))
    return path


@pytest.mark.slow
def test_a_pipeline_in_a_pipe(tmp_path, run):
    path = tmp_path / "lines.py"
    options = f'option("maxFilesPerTrigger", 1).option("path", "{tmp_path}/in")'
    path.write_text(PIPELINE.replace("FORMAT", '"text"').replace("OPTIONS", options))
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / name).write_text("1\n2\n3\n")
    overruled = ["--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    words = [*COMMAND, "run", *SPARK, *overruled, str(path), str(tmp_path), "availableNow"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(**QUIET), check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = [line.partition("Z  ")[2] for line in done.stdout.splitlines()]
    assert "numbers  The pipeline begins with epoch 1 of lineage 0." in lines
    assert (
        "numbers  warning: --conf spark.sql.session.timeZone=Asia/Tokyo does not count: "
        "the file itself sets spark.sql.session.timeZone to UTC"
    ) in lines
    epochs = [line for line in lines if line.startswith("numbers  epoch ")]
    assert [line.split("  ")[1:3][0] for line in epochs] == ["epoch 1", "epoch 2"]
    assert all("3 rows" in line and "sinks committed" in line and "stage" in line for line in epochs)
    assert lines[-1] == "finished"
    assert "the file goes on" in done.stdout
    assert "log4j" not in done.stderr
    assert "NativeCodeLoader" not in done.stderr

    shown = run("status", tmp_path / "store")
    assert shown.code == 0
    assert "resume from checkpoint 2, epoch 2" in shown.out
    assert "numbers (text)" in shown.out
    planned = run("recover", tmp_path / "store", "--dry-run")
    assert planned.code == 0
    assert "Go on with the workdir as it is: it matches the checkpoint." in planned.out


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_finishes_the_epoch_and_exits_0(tmp_path, numbers, monkeypatch):
    monkeypatch.setattr("cli_running.PATIENCE", 240)
    ran = at_terminal(
        "run", *SPARK, numbers, tmp_path, "processingTime", keys="\x03", after="checkpoint 2,", NO_COLOR="1", **QUIET
    )
    assert ran.code == 0, ran.out
    assert "SIGINT: finishing the epoch" in ran.out
    assert "the file goes on" in ran.out
    assert "numbers  finished" in ran.out
    assert "Traceback" not in ran.out
    assert "Exception" not in ran.out
    assert ran.out.count("\x1b[?25l") == ran.out.count("\x1b[?25h") == 1
    newest = holdfast.open_store(tmp_path / "store").load_latest()
    assert newest is not None
    assert newest.sink_commit_statuses == {"out": "Committed"}
    assert (tmp_path / "store/workdir/commits" / str(newest.wal_position)).exists()


@contextlib.contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    words = [*COMMAND, "run", *(str(argument) for argument in arguments)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**QUIET))
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.communicate()


@pytest.mark.slow
def test_a_driver_that_is_taken_over_exits_5(tmp_path, numbers):
    with running("--json", *SPARK, numbers, tmp_path, "processingTime") as child:
        assert child.stdout
        while json.loads(child.stdout.readline())["event"] != "epoch":
            pass
        holdfast.open_store(tmp_path / "store").claim("somebody else")
        out, err = child.communicate(timeout=120)
    assert child.returncode == 5, err
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["data"]["is_good"]) == ("end", False)
    error = json.loads(err.splitlines()[-1])["error"]
    assert (error["kind"], error["code"], error["exit_code"]) == ("Fenced", "lease.lost", 5)
    assert "somebody else" in error["message"]
    assert "Traceback" not in err
