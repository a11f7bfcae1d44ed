"""A pipeline's file under plain `python FILE`: what it prints, and what Ctrl-C does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_running import Ran, at_terminal, environment

import holdfast
from holdfast.pipeline.epoch_log import epoch_words
from pipeline_stores import report
from sparks import java_options

PIPELINE = """
import sys
from pyspark.sql import SparkSession
from holdfast.sinks.files import FileSink
from holdfast.spark import EpochReport, Pipeline, watch

place = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.ui.showConsoleProgress", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
pipeline = Pipeline("numbers", checkpoints=f"{place}/store")
numbers = pipeline.source("numbers", spark.readStream.format("rate").option("rowsPerSecond", 10).load())
pipeline.sink("out", FileSink(f"{place}/out"))
watch(lambda event: print("seen", event.epoch, flush=True) if isinstance(event, EpochReport) else None)
LISTENER
pipeline.run(numbers)
print("the file goes on", flush=True)
"""
LISTENER = """
@pipeline.on_epoch
def listen(report):
    print("heard", report.epoch, flush=True)
    raise ZeroDivisionError
"""
PYTHON = [sys.executable]
PATHS = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])


def interrupted(tmp_path, after: str, *, listener: str = "") -> tuple[Ran, str]:
    """The file at a terminal, with Ctrl-C once something has been printed; and what was printed from then on."""
    path = tmp_path / "counting.py"
    path.write_text(PIPELINE.replace("LISTENER", listener))
    ran = at_terminal(
        path, tmp_path, java_options(), keys="\x03", after=after, command=PYTHON, SPARK_LOCAL_IP="127.0.0.1"
    )
    return ran, ran.out.partition("^C")[2]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr("cli_running.PATIENCE", 240)


@pytest.mark.slow
def test_ctrl_c_while_epochs_run(tmp_path):
    ran, after = interrupted(tmp_path, "seen 2")
    assert ran.code == 0, ran.out
    assert "numbers: SIGINT: finishing the epoch" in after
    assert "the file goes on" in after
    assert "\tat " not in ran.out
    assert "Traceback" not in ran.out
    told = [line for line in after.splitlines() if "seen " not in line and ": epoch " not in line]
    assert len(told) == 2, after
    newest = holdfast.open_store(tmp_path / "store").load_latest()
    assert newest is not None
    assert newest.is_settled
    assert (tmp_path / "store/workdir/commits" / str(newest.wal_position)).exists()


@pytest.mark.slow
def test_each_epoch_is_a_line_and_a_listener_hears_of_it(tmp_path):
    ran, _ = interrupted(tmp_path, "seen 3", listener=LISTENER)
    assert ran.code == 0, ran.out
    assert "numbers: The pipeline begins with epoch 1 of lineage 0." in ran.out
    for epoch in (1, 2, 3):
        [line] = [line for line in ran.out.splitlines() if f"numbers: epoch {epoch}: " in line]
        assert line.endswith(f"sinks committed, checkpoint {epoch}")
        assert f"heard {epoch}\n" in ran.out
    assert ran.out.count("Traceback") == ran.out.count("a listener of pipeline 'numbers' failed") == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["Using Spark's default log4j profile", "NativeCodeLoader"])
def test_ctrl_c_while_spark_starts(tmp_path, moment):
    """Before its JVM has answered, and in the middle of a call to it.

    PySpark removes the folder in which it waits for the JVM before anybody else hears of the Ctrl-C. A JVM that writes
    there at that very moment prints what it misses, before it can be killed: then once more.
    """
    for number in range(3):
        place = tmp_path / str(number)
        place.mkdir()
        ran, after = interrupted(place, moment)
        if "NoSuchFileException" not in after:
            break
    assert ran.code == -2, ran.out
    *sparks, last = after.splitlines()  # Spark may finish a line or two of its own, or be in the middle of one
    assert last.endswith("Interrupted.")
    assert len(sparks) < 5
    assert not [word for word in ("Traceback", "\tat ", "Py4J", "Error") if word in after]


# Without Spark


TELLING = """
from holdfast.pipeline.epoch_log import log_epoch, show_on_stderr
from pipeline_stores import report
import logging
{}
show_on_stderr()
show_on_stderr()
log_epoch(report())
logging.getLogger("holdfast.checkpoints").warning("old checkpoints were not removed")
logging.getLogger("holdfast.steps").debug("not worth a line")
{}
log_epoch(report(8))
"""


@pytest.mark.parametrize(
    ("before", "between", "expected"),
    [
        ("", "", ["orders: epoch 7: ", "warning: old checkpoints", "orders: epoch 8: "]),
        ("logging.basicConfig(format='own %(message)s')", "", ["own old checkpoints"]),
        ("logging.basicConfig(format='own %(message)s', level='INFO')", "", ["own orders", "own old", "own orders"]),
        ("", "logging.basicConfig(format='own %(message)s')", ["orders: epoch 7: ", "warning: old", "own orders"]),
        ("logging.getLogger('holdfast').setLevel('WARNING')", "", ["warning: old checkpoints"]),
    ],
)
def test_the_log_is_on_standard_error_unless_the_program_logs_itself(before, between, expected):
    words = [*PYTHON, "-c", TELLING.format(before, between)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(PYTHONPATH=PATHS), check=True, timeout=60
    )
    lines = done.stderr.splitlines()
    assert len(lines) == len(expected), done.stderr
    for line, words in zip(lines, expected, strict=True):
        assert words in line


def test_an_epoch_in_words():
    assert epoch_words(report()).startswith("epoch 7: 1,200 rows, ")
    assert epoch_words(report(rows=1, is_replay=True)).startswith("epoch 7 again: 1 row, ")
    assert "sinks lake failed: full" in epoch_words(report(sinks={"lake": "Failed: full"}))
    assert "lag orders 12 offsets" in epoch_words(report(lag={"orders": "12 offsets"}))


INTERRUPTED = """
import sys
{}
from holdfast.base.interrupts import quiet_interrupts
quiet_interrupts()
quiet_interrupts()
def inside():
    raise KeyboardInterrupt
inside.__globals__["__name__"] = {!r}
inside()
"""


@pytest.mark.parametrize(
    ("before", "module", "printed"),
    [
        ("", "py4j.java_gateway", "Interrupted.\n"),
        ("sys.excepthook = lambda *_: print('own', file=sys.stderr)", "py4j.java_gateway", "own\n"),
    ],
)
def test_an_interrupt_inside_spark_is_a_line_unless_the_program_has_its_own_hook(before, module, printed):
    words = [*PYTHON, "-c", INTERRUPTED.format(before, module)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert (done.returncode, done.stderr) == (-2, printed)


def test_an_interrupt_elsewhere_is_what_it_was():
    words = [*PYTHON, "-c", INTERRUPTED.format("", "__main__")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False, timeout=60)
    assert done.returncode == -2
    assert done.stderr.startswith("Traceback")
