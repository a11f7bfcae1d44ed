"""The line between the sink and its server, which can be cut at the moment the reply to a COMMIT comes back."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import tempfile
import threading
from pathlib import Path


class Line:
    """A socket file in front of the server's. The next `cuts` connections that commit never get the reply."""

    def __init__(self, server: Path) -> None:
        self.folder = tempfile.mkdtemp(prefix="holdfast-line-")
        self.cuts = 0
        self.commits = 0
        self._server = str(server / ".s.PGSQL.5432")
        self._path = os.path.join(self.folder, ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        os.remove(self._path)
        os.rmdir(self.folder)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._carry, args=(client,)))
                self._threads[-1].start()

    def _carry(self, client: socket.socket) -> None:
        asked = False
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self._server)
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client and b"COMMIT\0" in data:  # not the one in READ COMMITTED
                        self.commits += 1
                        asked = True
                    elif source is server and asked and self.cuts:
                        self.cuts -= 1
                        return
                    (server if source is client else client).sendall(data)
