"""`holdfast run` with its output in a pipe."""

from __future__ import annotations

import subprocess

from cli_running import COMMAND, Ran, environment


def in_pipe(*arguments: object, **changes: str) -> Ran:
    words = [*COMMAND, "run", *(str(argument) for argument in arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(**changes), check=False, timeout=120)
    return Ran(done.returncode, done.stdout, done.stderr)
