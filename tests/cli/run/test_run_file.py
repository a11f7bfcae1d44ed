"""How `holdfast run` runs a file. No Spark: the files only tell events."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from cli_running import COMMAND, at_terminal, environment
from run_in_pipe import in_pipe


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
    assert events[2]["data"] == {"outcome": "finished", "is_good": True, "epochs": 1, "rows": 1200, "refused": 0}
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


def test_verify_is_passed_on(file):
    path = file(
        """
        from holdfast.pipeline.supervisor import verifies_by_default
        tell(Notice("orders", f"verifies: {verifies_by_default()}"))
        """
    )
    assert "verifies: False" in in_pipe(path).out
    assert "verifies: True" in in_pipe("--verify", path).out
    ran = in_pipe(path, HOLDFAST_VERIFY="yes")
    assert ran.code == 2
    assert "HOLDFAST_VERIFY is 0 or 1" in ran.err
