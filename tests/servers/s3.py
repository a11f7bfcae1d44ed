"""A real S3 server over real HTTP, on loopback, for as long as a `with` block: moto, in a process of its own.

moto checks the condition of a conditional put and stores the object without a lock in between: of some
thousand eight-way races on one key, one had two winners. Here only one request at a time is inside moto,
after its body has arrived whole, so that exactly one wins, as on S3, and a frozen client holds nobody up.

Needs `moto[server]`; it is imported only in the server's process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

START_TIMEOUT = 60.0
ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"  # any value does: moto verifies no signature
REGION = "us-east-1"

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from servers.s3 import serve; serve()"


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


class S3Server:
    """A running server. Buckets are never removed: make a new one for each test, and forget it."""

    def __init__(self, endpoint: str, pid: int) -> None:
        self.endpoint = endpoint
        """`http://127.0.0.1:port`"""
        self.pid = pid

    @property
    def options(self) -> dict[str, str]:
        return options_for(self.endpoint)

    def environment(self, bucket: str | None = None) -> dict[str, str]:
        named = {"AWS_BUCKET": bucket} if bucket else {}
        return environment_for(self.endpoint) | named

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name, which no other bucket has."""
        name = f"bucket-{uuid.uuid4().hex}"
        _ask(f"{self.endpoint}/{name}", "PUT")
        return name


@contextlib.contextmanager
def moto_server() -> Iterator[S3Server]:
    """Start a server on a free port of 127.0.0.1; it answers when this yields and is killed at the end.

    It also ends by itself when this process does, however that ends. Starting takes a second or two: share
    one among the tests of a session.
    """
    if importlib.util.find_spec("moto") is None:
        raise ModuleNotFoundError("The S3 test server is moto. Next: pip install 'moto[server]'.", name="moto")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,  # never written to: its end tells the server that we are gone
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            server = S3Server(f"http://127.0.0.1:{_port_of(process, log)}", process.pid)
            _ask(server.endpoint, "GET")  # the first request takes moto a hundred times as long as any other
            yield server
        finally:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()


def _port_of(process: subprocess.Popen[bytes], log: IO[bytes]) -> int:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
    line = process.stdout.readline() if ready else b""
    if not line.strip().isdigit():
        log.seek(0)
        raise RuntimeError(f"The S3 test server did not start: {log.read().decode(errors='replace')[-2000:]}")
    return int(line)


def _ask(url: str, method: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback: whatever HTTP_PROXY says
    request = urllib.request.Request(url, method=method, headers=_SIGNED)
    with opener.open(request, timeout=START_TIMEOUT) as reply:
        body: bytes = reply.read()
        return body


_SIGNED = {  # without a credential moto takes the request for an anonymous one, and may answer 403
    "Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/{REGION}/s3/aws4_request, "
    "SignedHeaders=host, Signature=none"
}


def serve() -> None:
    """The server's process: print the port, then serve until standard input ends."""
    import logging

    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = _one_at_a_time(create_backend_app("s3"))  # finding out the service takes half of a request's time
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(server.port, flush=True)
    server.serve_forever()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


_Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def _one_at_a_time(application: _Application) -> _Application:
    lock = threading.Lock()

    def serialized(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        _gather(environ)
        with lock:
            reply = application(environ, start_response)
            try:
                return list(reply)
            finally:
                getattr(reply, "close", lambda: None)()

    return serialized


def _gather(environ: dict[str, Any]) -> None:
    """Read the request's body before the lock. One that the client left short is refused further in, with 400."""
    stream = environ["wsgi.input"]
    whole = environ.get("wsgi.input_terminated")  # set for a chunked body, which has no length
    environ["wsgi.input"] = io.BytesIO(stream.read() if whole else stream.read(int(environ.get("CONTENT_LENGTH") or 0)))
