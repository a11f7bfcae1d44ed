"""What goes wrong in `holdfast run`: exit codes, tracebacks, signals. No Spark."""

from __future__ import annotations

import json

import pytest
from cli_running import at_terminal
from run_in_pipe import in_pipe

from holdfast.cli.run import launch
from holdfast.errors import Fenced, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.sinks import RowsRefused


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


def test_hints_for_what_is_missing():
    lacking = ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    assert launch.failure_of(lacking, "x.py").next_step == "pip install 'holdfast[spark]'"
    assert launch.failure_of(ValueError(), "x.py").message == "x.py failed: ValueError"
    for error in (HoldfastError, Invalid, NotFound):
        assert launch.own_error(error("x")) is not None
