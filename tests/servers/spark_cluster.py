"""A Spark standalone cluster of real processes: a master, and workers that may have disks of their own."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

from servers.process import Kept
from sparks import java_options

_CLASSES = "org.apache.spark.deploy"


class SparkCluster:
    """A master on loopback; workers are added one by one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._workers = 0
        port = _free_port()
        self.master = f"spark://127.0.0.1:{port}"
        server = self._start(["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"], "master.Master")
        _await_port(port, server)

    def add_worker(self, *, hidden: Sequence[Path] = ()) -> Kept:
        """Start a worker with one core. In its mount namespace the `hidden` directories are empty disks of its own.

        Ended, it is killed, and its executors end by themselves.
        """
        self._workers += 1
        arguments = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", self.master]
        return self._start(arguments, "worker.Worker", hidden)

    def _start(self, arguments: list[str], name: str, hidden: Sequence[Path] = ()) -> Kept:
        folder = Path(tempfile.mkdtemp(prefix="spark-"))
        environment = {
            **os.environ,
            "SPARK_HOME": os.path.dirname(pyspark.__file__),
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"{_CLASSES}.{name}", *arguments]
        if hidden:
            mounts = " && ".join(f"mount -t tmpfs none {shlex.quote(str(path))}" for path in hidden)
            command = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "worker", *command]
        server = Kept(folder, end_with="KILL", environment=environment)
        self._stack.callback(server.end)
        server.start(command)
        return server


def executors_of(worker: Kept) -> list[int]:
    """The processes of the executors that a worker has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # gone in between
            parent = entry.name.isdigit() and (entry / "stat").read_text().rpartition(") ")[2].split()[1]
            if parent == str(worker.pid) and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@contextmanager
def spark_cluster() -> Iterator[SparkCluster]:
    """A cluster without workers, ended with everything that was added to it."""
    with ExitStack() as stack:
        yield SparkCluster(stack)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, server: Kept) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Spark's master did not start: {server.said}") from None
            time.sleep(0.05)
