"""An output that is closed, full or cannot show a character."""

from __future__ import annotations

import os
import subprocess

import pytest
from cli_running import COMMAND, environment, in_child

from checkpoint_stores import fill


def test_a_closed_pipe_ends_quietly(tmp_path):
    fill(str(tmp_path), 3)
    for flags in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*COMMAND, "ls", str(tmp_path), *flags],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
            timeout=60,
        )
        os.close(writer)
        assert done.stderr == b""
        assert done.returncode == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_not_a_bug(store_dir):
    with open("/dev/full", "w") as full:
        words = [*COMMAND, "ls", str(store_dir)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 8
    assert done.stderr == "error: The output could not be written: No space left on device.\n"


def test_an_output_that_cannot_show_a_character(store_dir):
    ran = in_child("diff", store_dir, 1, 2, PYTHONIOENCODING="ascii")
    assert ran.code == 0
    assert "\\u2192" in ran.out
