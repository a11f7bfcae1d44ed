"""`holdfast run`: a file run and watched. Three tests start Spark; the others run files that only tell events."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_running import COMMAND, Ran, at_terminal, environment

import holdfast
from holdfast.cli.run import launch
from holdfast.cli.run.epochs import Followed, epoch_line, notice_line, sinks_in_words, step_seconds
from holdfast.cli.run.screens import painted
from holdfast.errors import Fenced, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.sinks import RowsRefused
from holdfast.spark import Notice
from holdfast.status.format import watermark_now
from pipeline_stores import NOW, report
from sparks import java_options

TELLING = """
import sys
sys.path.insert(0, {tests!r})
from pipeline_stores import report
from holdfast.spark import Notice
from holdfast.pipeline.reports import tell
"""
QUIET = {"SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def file(tmp_path):
    """Writes a pipeline's file whose body may tell events as a pipeline does."""

    def write(body: str, name: str = "orders.py") -> Path:
        path = tmp_path / name
        path.write_text(TELLING.format(tests=str(Path(__file__).parents[2])) + textwrap.dedent(body))
        return path

    return write


def in_pipe(*arguments: object, **changes: str) -> Ran:
    words = [*COMMAND, "run", *(str(argument) for argument in arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(**changes), check=False, timeout=120)
    return Ran(done.returncode, done.stdout, done.stderr)


# What is said


def test_an_epoch_in_a_line():
    assert epoch_line(report(), NOW + 60_000) == (
        "2026-01-01T00:02:19Z  orders  epoch 7  1,200 rows, 812/s  1.50 s (stage 0.70, capture 0.05, decide 0.01, "
        "commit 0.24, other 0.50)  watermark 2026-01-01T00:01:19Z  lag orders 3 files  sinks committed  "
        "checkpoint 7, 3.5 KiB"
    )


def test_an_epoch_with_nothing_in_it_says_nothing_more():
    line = epoch_line(report(rows=0, watermark=None, lag={}, sinks={}, steps={}, is_replay=True), NOW)
    assert line == (
        "2026-01-01T00:01:19Z  orders  epoch 7  0 rows, run again  1.50 s (stage 0.00, capture 0.00, decide 0.00, "
        "commit 0.00, other 1.50)  checkpoint 7, 3.5 KiB"
    )


def test_sinks_in_words():
    assert sinks_in_words({"a": "Committed", "b": "Failed: no table"}) == "sinks a committed, b failed: no table"
    assert sinks_in_words({}) == ""


def test_steps_never_add_up_to_less_than_nothing():
    assert step_seconds(report(seconds=0.1))["other"] == 0.0


def test_notices():
    assert notice_line(Notice("orders", "hello"), NOW) == "2026-01-01T00:01:19Z  orders  hello"
    assert "orders  warning: hello" in notice_line(Notice("orders", "hello", "warning"), NOW)


@pytest.mark.parametrize(
    ("mark", "said"),
    [(None, "none"), (17, "17"), (NOW, "2026-01-01T00:01:19Z  (1 min behind now)"), (NOW + 120_000, "in 1 min)")],
)
def test_watermarks(mark, said):
    assert watermark_now(mark, NOW + 60_000).endswith(said)


def picture(followed: Followed, columns: int, **variables: str) -> list[str]:
    text = painted(lambda output: followed.draw(output, NOW + 3000), {"NO_COLOR": "1"} | variables, columns)
    return text.splitlines()


def test_the_picture():
    followed = Followed("orders", NOW - 60_000)
    for epoch in range(1, 12):
        followed.take(report(epoch, is_replay=epoch == 10), NOW)
    assert picture(followed, 140) == [
        "",
        "orders  running, last epoch 3 s ago",
        "  epoch      11, checkpoint 11, 3.5 KiB",
        "  total      13,200 rows in 11 epochs, 1 min",
        "  watermark  2026-01-01T00:01:19Z  (3 s behind now)",
        "  lag        orders 3 files",
        "  sinks      lake committed, pg committed",
        "",
        "   EPOCH   ROWS  ROWS/S  SECONDS  STAGE  CAPTURE  DECIDE  COMMIT  OTHER             WATERMARK     SIZE",
        "      11  1,200     812     1.50   0.70     0.05    0.01    0.24   0.50  2026-01-01T00:01:19Z  3.5 KiB",
        "10 again  1,200     812     1.50   0.70     0.05    0.01    0.24   0.50  2026-01-01T00:01:19Z  3.5 KiB",
        *(
            f"{n:>8}  1,200     812     1.50   0.70     0.05    0.01    0.24   0.50  2026-01-01T00:01:19Z  3.5 KiB"
            for n in range(9, 3, -1)
        ),
    ]


@pytest.mark.parametrize("columns", [50, 60, 80, 100])
def test_the_picture_fits(columns):
    followed = Followed("orders", NOW)
    followed.take(report(), NOW)
    assert max(len(line) for line in picture(followed, columns)) <= columns


def test_the_picture_has_colour_where_it_is_wanted():
    followed = Followed("orders", NOW)
    followed.take(report(sinks={"lake": "Failed: \x1b[31mno"}, watermark=None), NOW)
    assert "\x1b[" in "".join(picture(followed, 100, NO_COLOR=""))
    plain = "\n".join(picture(followed, 100))
    assert "\x1b" not in plain
    assert "failed: \\x1b[31mno" in plain
    assert "WATERMARK" not in plain


# How the file is run


def test_it_is_run_as_python_would_run_it(file, tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    path = file(
        """
        import beside
        print(__name__, __file__, beside.WORD, sys.argv)
        tell(Notice("orders", "begun"))
        tell(report())
        """
    )
    ran = in_pipe(path, "a", "--json", "--", "-x")
    assert ran.code == 0, ran.err
    printed, begun, epoch, end = ran.out.splitlines()
    assert printed == f"__main__ {path} found {[str(path), 'a', '--json', '--', '-x']}"
    assert begun.endswith("Z  orders  begun")
    assert "  epoch 7  1,200 rows" in epoch
    assert end.endswith("Z  finished")
    assert ran.err.startswith("note: --json comes after the file")


def test_json_is_all_that_standard_output_has(file):
    path = file(
        """
        import os
        print("from Python")
        os.system("echo from a child")
        tell(Notice("orders", "begun"))
        tell(report())
        """
    )
    ran = in_pipe("--json", path)
    assert ran.code == 0
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert [event["event"] for event in events] == ["notice", "epoch", "end"]
    assert all((event["holdfast"], event["command"]) == (1, "run") for event in events)
    assert events[0]["data"] == {"pipeline": "orders", "level": "info", "text": "begun"}
    assert events[1]["data"]["steps"]["sink.stage"] == 0.7
    assert events[1]["data"]["step_seconds"]["commit"] == pytest.approx(0.24)
    assert events[2]["data"] == {"outcome": "finished", "is_good": True, "epochs": 1, "rows": 1200}
    assert "from Python" in ran.err
    assert "from a child" in ran.err


def test_at_a_terminal_there_is_a_picture_and_what_is_printed_goes_above(file):
    path = file(
        """
        import os
        print("from Python")
        os.system("echo from a child 1>&2")
        tell(Notice("orders", "begun"))
        tell(report(sinks={"lake\\x1b[31m": "Committed"}))
        print("with \\x1b[32mcolour\\x1b[0m and \\x1b]0;a title\\x07", end="")
        """
    )
    ran = at_terminal("run", path, NO_COLOR="1")
    assert ran.code == 0, ran.out
    last = re.split(r"\x1b\[2K", ran.out)[-1]
    assert "orders  finished" in last
    assert "1,200" in last
    assert "from Python" not in last
    for line in ("from Python", "from a child", "begun", "with colour and "):
        assert line in ran.out
    assert "\x1b]0" not in ran.out
    assert "lake\\x1b[31m committed" in ran.out
    assert ran.out.count("\x1b[?25l") == ran.out.count("\x1b[?25h") == 1
    dumb = at_terminal("run", path, TERM="dumb")
    assert "\x1b[?25l" not in dumb.out
    assert "  epoch 7  1,200 rows" in dumb.out


def test_a_reader_that_has_gone_does_not_stop_the_pipeline(file, tmp_path):
    path = file(
        f"""
        import pathlib
        for epoch in range(1, 200):
            tell(report(epoch))
        pathlib.Path({str(tmp_path / "done")!r}).touch()
        """
    )
    reader, writer = os.pipe()
    os.close(reader)
    words = [*COMMAND, "run", str(path)]
    child = subprocess.Popen(words, stdout=writer, stderr=subprocess.PIPE, env=environment())
    os.close(writer)
    _, err = child.communicate(timeout=60)
    assert (tmp_path / "done").exists()
    assert (child.returncode, err) in [(0, b""), (141, b"")]


def test_warnings_of_the_library_are_notices_unless_the_file_logs_itself(file):
    body = """
        import logging
        {}
        log = logging.getLogger("holdfast.checkpoints")
        log.warning("old checkpoints were not removed")
        log.info("not worth a line")
        log.warning("told as well", extra={{"is_told": True}})
        tell(report())
        """
    ran = in_pipe(file(body.format("")))
    assert "checkpoints  warning: old checkpoints were not removed" in ran.out
    assert "not worth" not in ran.out
    assert "told as well" not in ran.out + ran.err
    ran = in_pipe(file(body.format("logging.basicConfig(format='own %(message)s')")))
    assert "old checkpoints" not in ran.out
    assert "own old checkpoints were not removed" in ran.err


def test_restarts_are_passed_on(file):
    path = file(
        """
        from holdfast.pipeline.supervisor import restarts_by_default
        tell(Notice("orders", f"{restarts_by_default()} restarts"))
        """
    )
    assert "3 restarts" in in_pipe(path).out
    assert "7 restarts" in in_pipe("--restarts", 7, path).out
    ran = in_pipe(path, HOLDFAST_RESTARTS="many")
    assert ran.code == 2
    assert "HOLDFAST_RESTARTS is a whole number" in ran.err
    assert in_pipe("--restarts", -1, path).code == 2


# What goes wrong


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("pass", 2, "ended without running a pipeline"),
        ("tell(report()); sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(42)", 42, ""),
        ("sys.exit('in words')", 1, "in words\n"),
        ("raise KeyboardInterrupt", 130, "error: Interrupted."),
        ("import holdfast.errors; raise holdfast.errors.Fenced('Taken over.', next_step='stop')", 5, "  next: stop"),
        (
            "import holdfast.errors\ntry:\n    raise holdfast.errors.Corrupt('Broken.')\n"
            "except Exception as e:\n    raise RuntimeError('around it') from e",
            6,
            "error: Broken.",
        ),
    ],
)
def test_exit_codes(file, body, code, said):
    ran = in_pipe(file(body))
    assert ran.code == code, ran.err
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert "bug" not in ran.err


def test_a_mistake_in_the_file_shows_its_traceback_and_nothing_of_ours(file):
    path = file(
        """
        def work():
            raise ValueError("the file's own\\nmistake")

        tell(Notice("orders", "begun"))
        work()
        """
    )
    for flags in ([], ["--json"]):
        ran = in_pipe(*flags, path)
        assert ran.code == 1
        assert 'raise ValueError("the file' in ran.err
        assert "in work" in ran.err
        assert "runpy" not in ran.err
        assert "holdfast/cli" not in ran.err
    error = json.loads(ran.err.splitlines()[-1])["error"]
    assert (error["kind"], error["message"]) == ("Failed", f"{path} failed: ValueError: the file's own")
    assert json.loads(ran.out.splitlines()[-1])["data"]["outcome"] == "failed: ValueError"


def test_an_error_while_another_is_handled_is_the_later_one(file):
    ran = in_pipe(
        file("import holdfast.errors\ntry:\n    raise holdfast.errors.Fenced('x')\nexcept Exception:\n    nonsense")
    )
    assert ran.code == 1
    assert "NameError" in ran.err


def test_a_file_that_is_no_python(file):
    ran = in_pipe(file("def broken(:"))
    assert ran.code == 1
    assert "SyntaxError" in ran.err
    assert "runpy" not in ran.err


def test_debug_shows_the_traceback_of_our_own_errors_too(file):
    path = file("import holdfast.errors; raise holdfast.errors.Fenced('Taken over.')")
    assert "Traceback" in in_pipe("--debug", path).err


def test_a_file_that_is_not_there(run, tmp_path):
    ran = run("run", tmp_path / "gone.py")
    assert ran.code == 3
    assert ran.err.startswith(f"error: There is no file {tmp_path}/gone.py.")
    assert run("run", tmp_path).code == 2
    assert json.loads(run("run", "--json", tmp_path / "gone.py").err)["error"]["code"] == "run.no-file"
    assert run("run").code == 2
    assert "No such option" in run("run", "--mastr", "local", "x.py").err
    assert run("run", "--conf", "nonsense", "x.py").code == 2


def test_sigterm_before_a_pipeline_runs_leaves_the_terminal_in_order(file):
    path = file(
        """
        import os, signal, threading
        print("waiting")
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        """
    )
    ran = at_terminal("run", path)
    assert ran.code == 143
    assert ran.out.count("\x1b[?25l") == ran.out.count("\x1b[?25h") == 1


def test_errors_that_spark_quotes_are_found():
    from pyspark.errors import PySparkRuntimeError, StreamingQueryException

    quoted = (
        "[STREAM_FAILED] Query terminated with exception: An exception was raised by the Python Proxy. Return Message: "
        "Traceback (most recent call last):\n  File 'x.py'\n    raise\nholdfast.errors.Fenced: /data was taken over.\n"
    )
    found = launch.own_error(StreamingQueryException(quoted))
    assert isinstance(found, Fenced)
    assert found.message == "/data was taken over."
    refused = launch.own_error(StreamingQueryException("x\nholdfast.sinks.sink.RowsRefused: no column a\n"))
    assert isinstance(refused, RowsRefused)
    assert launch.own_error(StreamingQueryException("holdfast.errors.Nonsense: x")) is None
    assert launch.own_error(ValueError("holdfast.errors.Fenced: x")) is None
    wrapped = PySparkRuntimeError("outer")
    wrapped.__cause__ = Unavailable("full")
    assert isinstance(launch.own_error(wrapped), Unavailable)


# What Spark is told


def arguments_for(environment: dict[str, str], **options: object) -> list[str]:
    changes = launch.spark_environment(environment, **{"master": None, "settings": ()} | options)  # type: ignore[arg-type]
    return changes["PYSPARK_SUBMIT_ARGS"].split(" ")


def test_the_command_line_wins_over_the_environment():
    words = arguments_for(
        {"PYSPARK_SUBMIT_ARGS": "--master yarn --conf a=1 pyspark-shell x"},
        master="local[2]",
        settings=[("b", "2 3")],
    )
    given = ["--master", "yarn", "--conf", "a=1"]
    assert words[2:] == [*given, "--master", "'local[2]'", "--conf", "'b=2", "3'", "pyspark-shell", "x"]
    assert arguments_for({}) == ["--conf", "spark.ui.showConsoleProgress=false", "pyspark-shell"]


@pytest.mark.parametrize(
    ("variables", "options", "is_set"),
    [
        ({}, {}, True),
        ({}, {"master": "local[4]"}, True),
        ({}, {"master": "spark://host:7077"}, False),
        ({}, {"settings": [("spark.master", "yarn")]}, False),
        ({}, {"settings": [("spark.pyspark.python", "python3.12")]}, False),
        ({"PYSPARK_PYTHON": "python3.12"}, {}, False),
    ],
)
def test_workers_on_this_machine_run_under_the_same_python(variables, options, is_set):
    changes = launch.spark_environment(variables, **{"master": None, "settings": ()} | options)
    assert (changes.get("PYSPARK_PYTHON") == sys.executable) is is_set


def test_log_settings_of_others_are_respected(tmp_path):
    def has_ours(variables: dict[str, str], *settings: tuple[str, str]) -> bool:
        changes = launch.spark_environment(variables, master=None, settings=settings)
        return "log4j2.properties" in changes.get("SPARK_SUBMIT_OPTS", "")

    assert has_ours({})
    assert has_ours({"SPARK_SUBMIT_OPTS": "-Xss4m"})
    assert not has_ours({"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=x"})
    assert not has_ours({}, ("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=x"))
    assert has_ours({"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "log4j2.properties").touch()
    assert not has_ours({"SPARK_CONF_DIR": str(tmp_path)})
    assert launch.LOG_SETTINGS.exists()


def test_what_did_not_count_is_said():
    asked = {"spark.master": "local[4]", "spark.x": "1", "spark.y": "2"}
    assert list(launch.unheeded(asked, {"spark.master": "local[2]", "spark.x": "1"})) == [
        "--master local[4] does not count: the file itself sets spark.master to local[2]",
        "--conf spark.y=2 does not count: the file itself sets spark.y",
    ]


def test_hints_for_what_is_missing():
    lacking = ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    assert launch.failure_of(lacking, "x.py").next_step == "pip install 'holdfast[spark]'"
    assert launch.failure_of(ValueError(), "x.py").message == "x.py failed: ValueError"
    for error in (HoldfastError, Invalid, NotFound):
        assert launch.own_error(error("x")) is not None


# With Spark

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
