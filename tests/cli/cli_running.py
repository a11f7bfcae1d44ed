"""Running the command line: in this process for speed, in a child for exit codes, at a pseudo-terminal for looks."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60
"""Seconds that a process at a terminal gets."""
COMMAND = [sys.executable, "-m", "holdfast"]


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def data(self) -> Any:
        return self.json["data"]

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "HOLDFAST_DEBUG")}
    return kept | {"TERM": "xterm-256color"} | changes


def in_child(*arguments: object, **changes: str) -> Ran:
    """A process of its own with pipes for streams."""
    words = [*COMMAND, *(str(argument) for argument in arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(**changes), check=False, timeout=60)
    return Ran(done.returncode, done.stdout, done.stderr)


def _wait_until_asleep(child: subprocess.Popen[bytes], deadline: float) -> None:
    """Nobody types faster than a process asks. Python does not hear a signal that comes just before it reads."""
    state = Path(f"/proc/{child.pid}/stat")
    while time.monotonic() < deadline and state.read_text().rpartition(") ")[2][0] == "R":
        time.sleep(0.005)


def at_terminal(
    *arguments: object,
    keys: str = "",
    after: str = "",
    before_typing: Callable[[], object] = lambda: None,
    columns: int = 120,
    command: Sequence[str] | None = None,
    **changes: str,
) -> Ran:
    """A process of its own at a pseudo-terminal, both streams in `out`; `keys` are typed once `after` has appeared."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    words = [*(command or COMMAND), *(str(argument) for argument in arguments)]

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ^C reaches the child
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what it runs in the background

    child = subprocess.Popen(
        words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(COLUMNS="", **changes),
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(slave)
    seen = b""
    deadline = time.monotonic() + PATIENCE
    typed = not keys
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(master, 1 << 16)
            except OSError:  # EIO: the child has gone
                break
            if not piece:
                break
            seen += piece
            if not typed and after.encode() in seen:
                before_typing()
                _wait_until_asleep(child, deadline)
                os.write(master, keys.encode())
                typed = True
        return Ran(child.wait(10), seen.decode().replace("\r\n", "\n"), "")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        os.close(master)
