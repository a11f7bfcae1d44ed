"""A real HDFS on loopback for as long as a `with` block: a NameNode and two DataNodes in one Java process.

Needs Java and the jars of the profile `hdfs` of tests/jars/pom.xml, which Maven fetches once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from maven import require_jars
from servers.process import Kept

START_TIMEOUT = 120.0
ROOT = Path(__file__).parents[2]
MAIN = ROOT / "tests" / "jars" / "HdfsServer.java"


class Missing(Exception):
    """What the server needs is not on this machine. The text says what, and how to get it."""


class HdfsServer:
    """A server. Directories are never removed: take a new one for each test, and forget it."""

    def __init__(self, folder: Path) -> None:
        self.port, self._control = _free_ports(2)
        self.address = f"hdfs://127.0.0.1:{self.port}"
        self._names = itertools.count(1)
        home = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
        self._process = Kept(folder, end_with="KILL", environment=home)

    @property
    def pid(self) -> int:
        return self._process.pid

    def new_folder(self) -> str:
        """The address of a directory that is not there yet."""
        return f"{self.address}/test-{next(self._names)}/store"

    def start(self) -> None:
        """Start it, on the data that it has; it takes files when this returns."""
        (jar, *_) = require_jars("hdfs")
        modest = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        arguments = [str(self._process.folder), str(self.port), str(self._control)]
        self._process.start([java(), *modest, "-cp", f"{jar.parent}/*", MAIN, *arguments])
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError):
                if self.tell("ready") == "ready":
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"The HDFS test server did not start: {self._process.said}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it by SIGKILL; what it has acknowledged stays."""
        self._process.end(keep=True)

    def end(self) -> None:
        self._process.end()

    @contextlib.contextmanager
    def safe_mode(self) -> Iterator[None]:
        """The NameNode refuses every change while the block runs."""
        self.tell("safemode on")
        try:
            yield
        finally:
            self.tell("safemode off")

    def fsyncs(self) -> int:
        """How often the DataNodes have synced a block."""
        return int(self.tell("fsyncs"))

    def tell(self, command: str) -> str:
        """Send one command, as HdfsServer.java lists them, and return its answer."""
        with socket.create_connection(("127.0.0.1", self._control), timeout=START_TIMEOUT) as connection:
            connection.sendall(command.encode() + b"\n")
            with connection.makefile() as answers:
                answer = answers.readline().strip()
        if answer.startswith("error") or not answer:
            raise RuntimeError(f"{command}: {answer}")
        return answer


@contextlib.contextmanager
def hdfs_server() -> Iterator[HdfsServer]:
    """Start a server on free ports of 127.0.0.1; it takes files when this yields and is killed at the end.

    It also ends by itself when this process does, however that ends. Starting takes some seconds: share one among the
    tests of a session.
    """
    server = HdfsServer(Path(tempfile.mkdtemp(prefix="holdfast-hdfs-")))
    try:
        server.start()
        yield server
    finally:
        server.end()


def java() -> str:
    """The Java that runs a source file: that of JAVA_HOME, or the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        raise Missing("tests on HDFS need Java. Next: install a JDK of 17 or newer, or set JAVA_HOME")
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            found.append(int(probe.getsockname()[1]))
        return found
