"""The line between an index and its server, which can be cut around one request."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal

from holdfast.base.steps import Phase, observe

Cut = Literal["request", "reply", "late"]
"""The request never arrives; it arrives and the reply is lost; the client gives up on it, and it arrives later."""


@contextlib.contextmanager
def interrupted_at(name: str, phase: Phase) -> Iterator[None]:
    """^C at the first moment of this kind."""
    is_left = True

    def interrupt(step: str, at: Phase, _: float) -> None:
        nonlocal is_left
        if is_left and (step, at) == (name, phase):
            is_left = False
            raise KeyboardInterrupt

    stop = observe(interrupt)
    try:
        yield
    finally:
        stop()


class CutLine:
    """A port in front of a server's port or socket file. The next `cuts` requests that hold `marker` meet the cut."""

    def __init__(self, server: int | Path, marker: bytes) -> None:
        self.cut: Cut = "reply"
        self.cuts = 0
        self.is_down = False
        """New connections are refused."""
        self._server = server
        self._marker = marker
        self._kept: list[tuple[socket.socket, bytes]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> CutLine:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for server, _ in self._kept:
            server.close()
        for thread in self._threads:
            thread.join()

    def deliver(self, until: bytes | None = None) -> bytes:
        """Let the requests that are late arrive now; what the server says to the last one, until this or its end."""
        answer = b""
        for server, request in self._kept:
            server.settimeout(10)
            answer = b""
            with contextlib.suppress(ConnectionError):  # the server may have hung up
                server.sendall(request)
                while (until is None or until not in answer) and (said := server.recv(65536)):
                    answer += said
        return answer

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_down:
                    client.close()
                else:
                    self._start(self._carry, client)

    def _connected(self) -> socket.socket:
        if isinstance(self._server, int):
            return socket.create_connection(("127.0.0.1", self._server))
        found = socket.socket(socket.AF_UNIX)
        found.connect(str(self._server))
        return found

    def _carry(self, client: socket.socket) -> None:
        is_waiting = False
        with client, contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            server = self._connected()
            stack.push(server)
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data or (source is server and is_waiting):
                        return
                    if source is client and self.cuts and self._marker in data:
                        self.cuts -= 1
                        if self.cut == "late":
                            stack.pop_all()
                            self._kept.append((server, data))
                        if self.cut != "reply":
                            return
                        is_waiting = True
                    (server if source is client else client).sendall(data)
