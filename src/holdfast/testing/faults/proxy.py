"""Fault injection over real HTTP: a proxy that loses replies, refuses and stalls requests, and counts them.

    with seaweedfs_server() as server, FaultyProxy(server.endpoint) as proxy:
        proxy.script = lambda request: LostReply() if request.method == "PUT" else None
        S3Store(server.new_bucket(), config=options_for(proxy.endpoint))

obstore repeats a request after a 5xx and after a lost connection, even a conditional put. A fault that is to reach the
caller must hit every repetition; a fault that happens once (`once`) tests the repetition itself.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import http.server
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

HOLD_TIMEOUT = 60.0
_HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"}


class Request(msgspec.Struct, frozen=True):
    """One request as it arrived."""

    number: int
    """The number of requests before it."""
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    size: int
    """The bytes of the body. The body itself is not kept."""


class Refuse(msgspec.Struct, frozen=True):
    """Drop the connection; the server never sees the request."""


class LostReply(msgspec.Struct, frozen=True):
    """Let the server handle the request, then drop the connection without an answer."""

    reset: bool = False
    """Drop it by a TCP reset, as load balancers and dying servers do, instead of an orderly close."""


class Status(msgspec.Struct, frozen=True):
    """Answer with this status; the server never sees the request."""

    code: int
    body: bytes = b""


class Stall(msgspec.Struct, frozen=True):
    """Hold the request for this many seconds, then forward it."""

    seconds: float


class Strip(msgspec.Struct, frozen=True):
    """Forward the request without these headers (names in lower case), as a gateway does that does not know them."""

    headers: tuple[str, ...]


class Hold:
    """Hold one or more requests until the test releases them.

    Holds the request before the server sees it or, with `reply=True`, the server's answer. The test calls
    `wait_until_held`, acts meanwhile, and calls `release`; later requests with this fault pass at once.
    """

    def __init__(self, *, reply: bool = False) -> None:
        self.reply = reply
        self._held = threading.Event()
        self._released = threading.Event()

    def wait_until_held(self, timeout: float = HOLD_TIMEOUT) -> None:
        if not self._held.wait(timeout):
            raise TimeoutError(f"No request met the hold within {timeout:g} seconds.")

    def release(self) -> None:
        self._released.set()

    def _keep(self) -> None:
        self._held.set()
        self._released.wait(HOLD_TIMEOUT)


Fault = Refuse | LostReply | Status | Stall | Strip | Hold
Script = Callable[[Request], Fault | None]


def once(fault: Fault, when: Callable[[Request], bool] = lambda _: True) -> Script:
    """A script with this fault for the first request that `when` accepts, and for no other."""
    lock = threading.Lock()
    spent = False

    def script(request: Request) -> Fault | None:
        nonlocal spent
        with lock:
            if spent or not when(request):
                return None
            spent = True
            return fault

    return script


class FaultyProxy:
    """A reverse proxy on a free port of 127.0.0.1, running inside a `with` block. Holds each body in memory while its
    request is served.

    `script` is called for every request, on the thread that serves it, and may be replaced at any time. If the script
    raises, the request gets a 500, and `__exit__` raises the error.
    """

    def __init__(self, upstream: str, *, serialize: bool = False) -> None:
        """With `serialize`, the proxy forwards one request at a time."""
        address = urllib.parse.urlsplit(upstream)
        if address.scheme != "http" or address.hostname is None:
            raise ValueError(f"{upstream!r} is not an http:// address.")
        self.script: Script = lambda _: None
        self._upstream = (address.hostname, address.port or 80)
        self._gate: contextlib.AbstractContextManager[object] = (
            threading.Lock() if serialize else contextlib.nullcontext()
        )
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._holds: list[Hold] = []
        self._connections: set[socket.socket] = set()
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self._server = _Server(self)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in the order of arrival; a copy."""
        with self._lock:
            return list(self._requests)

    def forget(self) -> None:
        """Empty `requests`, to count those of one action; numbers start at 0 again."""
        with self._lock:
            self._requests.clear()

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        """Stop: held requests are dropped, connections closed."""
        self._closing.set()
        self._server.shutdown()
        with self._lock:
            holds, connections = list(self._holds), list(self._connections)
        for hold in holds:
            hold.release()
        for connection in connections:
            _drop(connection)
        self._server.server_close()  # waits for the threads
        if self._error is not None and kind is None:
            raise self._error

    def _arrived(self, method: str, target: str, headers: dict[str, str], size: int) -> Fault | None:
        address = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        with self._lock:
            path = urllib.parse.unquote(address.path)
            request = Request(len(self._requests), method, path, query, headers, size)
            self._requests.append(request)
        try:
            fault = self.script(request)
        except BaseException as error:
            self._error = self._error or error
            return Status(500, f"the script raised {error!r}".encode())
        if isinstance(fault, Hold):
            with self._lock:
                self._holds.append(fault)
        return fault


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: clients that disconnect are expected here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._to_server: http.client.HTTPConnection | None = None
        self._proxy = self.server.proxy
        with self._proxy._lock:
            self._proxy._connections.add(self.connection)

    def finish(self) -> None:
        with self._proxy._lock:
            self._proxy._connections.discard(self.connection)
        if self._to_server is not None:
            self._to_server.close()
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        proxy = self._proxy
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = _read_body(self.rfile, headers)
        fault = proxy._arrived(self.command, self.path, headers, len(body))
        if isinstance(fault, Status):
            return self._answer(fault.code, {}, fault.body)
        if isinstance(fault, Stall):
            proxy._closing.wait(fault.seconds)
        elif isinstance(fault, Hold) and not fault.reply:
            fault._keep()
        if isinstance(fault, Refuse) or proxy._closing.is_set():
            return self._hang_up()
        unknown = fault.headers if isinstance(fault, Strip) else ()
        passed_on = {name: value for name, value in headers.items() if name not in unknown}
        status, reply_headers, reply = self._forward(passed_on, body)
        if isinstance(fault, Hold) and fault.reply:
            fault._keep()
        if isinstance(fault, LostReply) or proxy._closing.is_set():
            return self._hang_up(reset=isinstance(fault, LostReply) and fault.reset)
        return self._answer(status, reply_headers, reply)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - the names http.server calls

    def _forward(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        sent = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}
        if body or self.command in ("PUT", "POST"):
            sent["content-length"] = str(len(body))
        if self._to_server is None:
            self._to_server = http.client.HTTPConnection(*self._proxy._upstream, timeout=HOLD_TIMEOUT)
        with self._proxy._gate:
            self._to_server.request(self.command, self.path, body=body or None, headers=sent)
            reply = self._to_server.getresponse()
            content = reply.read()
        return reply.status, dict(reply.getheaders()), content

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers.items():
            if name.lower() == "content-length":
                length = value if self.command == "HEAD" else length
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)

    def _hang_up(self, *, reset: bool = False) -> None:
        self.close_connection = True
        if reset:
            # Linger 0 makes the close a reset. `detach`: a socket object waits for the handler's files to be closed.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            socket.close(self.connection.detach())
        else:
            _drop(self.connection)


def _drop(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _read_body(stream: Any, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        length = int(headers.get("content-length", 0))
        return _exactly(stream, length)
    pieces = []
    while size := int(stream.readline().split(b";")[0], 16):
        pieces.append(_exactly(stream, size))
        stream.readline()
    while stream.readline().strip():
        pass
    return b"".join(pieces)


def _exactly(stream: Any, length: int) -> bytes:
    body: bytes = stream.read(length)
    if len(body) < length:
        raise ConnectionResetError(errno.ECONNRESET, "the client went away in the middle of a request")
    return body
