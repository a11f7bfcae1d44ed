"""Files on HDFS: a client whose calls all end, and whose files can be read once they are written.

hdfs-native waits for ever for a NameNode that takes a request and does not answer. So each call runs in a thread of its
own and is given up after `CALL_LIMIT` seconds. Whether it takes effect later is then unknown, as after a lost reply.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from hdfs_native import Client, FileReader, FileStatus, FileWriter, WriteOptions

from holdfast.base import forks
from holdfast.base.steps import step
from holdfast.storage.objects.store import Chunks

T = TypeVar("T")
Statuses = list[FileStatus]
CALL_LIMIT = 30.0
REPORTED_WITHIN = 30.0
PIECE = 4 << 20
PACKETS_AT_ONCE = 64  # of 64 KiB each: a piece
SETTINGS = {
    # About ten seconds of asking again, the other NameNodes included. By default hdfs-native takes minutes.
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "500",
    "dfs.client.failover.sleep.max.millis": "4000",
    "dfs.client.socket-timeout": "20000",
}
"""Hadoop's names. They override hdfs-site.xml, and the `options` of a store override them."""


class HdfsClient:
    """The files of one NameNode, or of one nameservice. Safe to use from several threads, and after a fork.

    Paths are absolute. The errors are those of hdfs-native, and `TimeoutError`; see `hdfs_errors`.

    The first reads of a forked child may take the socket's timeout: hdfs-native offers it connections to DataNodes that
    only its parent can use, and takes another one only then.
    """

    def __init__(self, url: str, options: Mapping[str, str] | None = None, *, limit: float = CALL_LIMIT) -> None:
        self._url = url
        self._settings = {**SETTINGS, **(options or {})}
        self._limit = limit
        self._client: Client | None = self._opened()  # a wrong setting is found here; nothing is sent yet
        forks.opened(self)

    def forget_in_child(self) -> None:
        forks.leak(self._client)  # its threads are the parent's: even closing it would wait for them
        self._client = None

    def call(self, act: Callable[[Client], T]) -> T:
        """The result of `act`, or its error; `TimeoutError` if there is neither within the limit."""
        if self._client is None:
            self._client = self._opened()
        client = self._client
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(act(client))
            except BaseException as error:  # a panic of the library is not an Exception
                errors.append(error)

        thread = threading.Thread(target=work, name="holdfast-hdfs", daemon=True)
        thread.start()
        thread.join(self._limit)
        if results:
            return results[0]
        if not errors:
            self._client = None  # the next call connects anew
            forks.leak(client)
            raise TimeoutError(f"no answer within {self._limit:g} seconds")
        if isinstance(errors[0], Exception):
            raise errors[0]
        raise RuntimeError(str(errors[0])) from errors[0]

    def _opened(self) -> Client:
        return Client(self._url, self._settings)

    def status(self, path: str) -> FileStatus:
        return self.call(lambda hdfs: hdfs.get_file_info(path))

    def is_there(self, path: str) -> bool:
        try:
            self.status(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, folder: str, *, recursive: bool = False) -> Statuses:
        return self.call(lambda hdfs: list(hdfs.list_status(folder, recursive)))

    def make_folder(self, path: str) -> None:
        """`FileNotFoundError` if the folder above is not there."""
        self.call(lambda hdfs: hdfs.mkdirs(path, 0o755, False))

    def create(self, path: str, *, parents: bool) -> FileWriter:
        """An empty file, open for writing; `FileExistsError` if the name is taken."""
        return self.call(lambda hdfs: hdfs.create(path, WriteOptions(create_parent=parents)))

    def write(self, writer: FileWriter, path: str, chunks: Chunks) -> None:
        """Write and close, as `append` and `finish` do."""
        self.finish(writer, path, self.append(writer, chunks))

    def append(self, writer: FileWriter, chunks: Chunks) -> int:
        """Write, and return the number of bytes. They are nowhere for sure before `finish`."""
        size = 0
        for piece in _slices(chunks):
            self.call(functools.partial(_write_piece, writer, piece))
            size += len(piece)
        return size

    def finish(self, writer: FileWriter, path: str, size: int) -> None:
        """Close a file of so many bytes: then it is on the disks of the DataNodes. Returns when it can be read, too.

        A NameNode may be set up to close a file before the DataNodes have reported its last block. Until they have,
        hdfs-native reads the file without that block, and no error tells.
        """
        self.call(lambda _: writer.close())
        if size:
            deadline, pause = time.monotonic() + REPORTED_WITHIN, 0.001
            while len(self.open(path)) != size:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no DataNode has reported the last block within {REPORTED_WITHIN:g} seconds")
                time.sleep(pause)
                pause = min(2 * pause, 0.1)

    def open(self, path: str) -> FileReader:
        return self.call(lambda hdfs: hdfs.read(path))

    def pieces(self, reader: FileReader, start: int, length: int) -> Iterator[bytes]:
        """A part of the file, which must lie within it, in pieces of bounded size."""
        if length <= 0:
            return
        packets = self.call(lambda _: reader.read_range_stream(start, length))
        while piece := self.call(lambda _: b"".join(itertools.islice(packets, PACKETS_AT_ONCE))):
            yield piece

    def rename(self, old: str, new: str, *, overwrite: bool = False) -> None:
        """Atomic. `FileNotFoundError` if the old name is not there, `FileExistsError` if the new one is."""
        with step("hdfs.rename"):
            self.call(lambda hdfs: hdfs.rename(old, new, overwrite))

    def remove(self, path: str, *, recursive: bool = False) -> bool:
        """True if it was there. A folder that is not empty is an error unless `recursive`."""
        return self.call(lambda hdfs: hdfs.delete(path, recursive))

    def note_times(self, path: str) -> None:
        """An edit of the NameNode's log that changes nothing."""
        found = self.status(path)
        with step("hdfs.secure"):
            self.call(lambda hdfs: hdfs.set_times(path, found.modification_time, found.access_time))

    # Of several calls

    def read(self, path: str, wanted: Callable[[int], int | None]) -> bytes | int:
        """The first bytes of a file, as many as `wanted` says of its size; its size if that says None.

        An update may replace the file between the look and the read, and the DataNodes drop the old blocks: then anew.
        """
        for attempt in itertools.count(1):
            reader = self.open(path)
            size = len(reader)
            length = wanted(size)
            if length is None:
                return size
            try:
                return b"".join(self.pieces(reader, 0, length))
            except TimeoutError:
                raise
            except (RuntimeError, OSError):
                if attempt == 3:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def write_beside(self, path: str, chunks: Chunks) -> str:
        """A file under a name of its own, in the folder where it will be needed."""
        with step("hdfs.write"):
            temporary, writer = self.begin_beside(path)
            try:
                self.write(writer, temporary, chunks)
            except BaseException:
                self.discard(temporary)
                raise
            return temporary

    def begin_beside(self, path: str) -> tuple[str, FileWriter]:
        """An empty file, open for writing, under a name of its own in the folder where it will be needed."""
        folder, name = posixpath.split(path)
        for _ in range(3):
            temporary = f"{folder}/.{name}.{secrets.token_hex(8)}-0.tmp"
            try:
                return temporary, self.create(temporary, parents=True)
            except FileExistsError:
                self.discard(temporary)  # ours, by a try whose reply was lost
        raise TimeoutError("the replies of the NameNode keep getting lost")

    def has_body(self, path: str, chunks: Chunks) -> bool:
        """Whether the file holds exactly these bytes."""
        expected = _slices(chunks)
        try:
            reader = self.open(path)
        except FileNotFoundError:
            return False
        if len(reader) != sum(memoryview(chunk).nbytes for chunk in chunks):
            return False
        rest = b""
        for piece in self.pieces(reader, 0, len(reader)):
            while len(rest) < len(piece):
                rest += next(expected)
            if rest[: len(piece)] != piece:
                return False
            rest = rest[len(piece) :]
        return True

    def discard(self, temporary: str) -> None:
        with contextlib.suppress(Exception):  # a leftover is swept later; it is not worth failing for
            self.remove(temporary)


def _slices(chunks: Chunks) -> Iterator[bytes]:
    for chunk in chunks:
        whole = memoryview(chunk).cast("B")
        yield from (bytes(whole[at : at + PIECE]) for at in range(0, len(whole), PIECE))


def _write_piece(writer: FileWriter, piece: bytes, _: Client) -> None:
    writer.write(piece)
