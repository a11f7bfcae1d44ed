"""A server's process that ends with the test process, however that ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Ends the server when standard input ends: by itself when the test process is gone, however that went.
_KEEPER = """
"$@" &
server=$!
echo "$server" > pid
read -r order
kill -"$SIGNAL" "$server" 2>/dev/null
wait "$server" 2>/dev/null
[ "$order" = keep ] && exit
for _ in 1 2 3 4 5; do  # a process of the server's may still be writing its last file
    rm -rf "$FOLDER" && exit
    sleep 0.2
done
"""


class Kept:
    """One process of a server at a time, which runs in a folder of its own; the folder goes with the last one."""

    def __init__(self, folder: Path, *, end_with: str, environment: Mapping[str, str], **options: Any) -> None:
        """`end_with` is the signal that ends it, `options` those of the process."""
        self.folder = folder
        self._environment = {"FOLDER": str(folder), "SIGNAL": end_with, **environment}
        self._options = options
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._keeper is not None

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def said(self) -> str:
        """The end of its log."""
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def start(self, command: Sequence[str | os.PathLike[str]]) -> None:
        assert self._keeper is None, "the server is running"
        with open(self.folder / "log", "ab") as log:
            self._keeper = subprocess.Popen(
                ["sh", "-c", _KEEPER, "keeper", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                cwd=self.folder,
                env=self._environment,
                process_group=0,  # ^C is for the tests; the server ends after them
                **self._options,
            )

    def end(self, *, keep: bool = False) -> None:
        """End it, if it runs; its folder stays if it is kept."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            if keep:
                self._keeper.stdin.write(b"keep\n")
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None
