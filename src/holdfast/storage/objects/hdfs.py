"""Objects as files on HDFS, through hdfs-native: no Java on this side.

A new object is written under a name of its own, closed, and renamed; the NameNode refuses the rename if the name is
taken. Closing is durable: hdfs-native asks every DataNode to sync a block before it acknowledges the last packet of it.
So is a rename: the NameNode syncs its log before it answers.

HDFS cannot replace a file on condition that it is still the one that was read. It can rename a file on condition that
the *source* is still there, and `update` is built on that:

1. Register: create an empty file beside the object, a *contender*, under a name that nobody else uses.
2. List the contenders of this object and remove all others. None of them can replace the object any more.
3. Read the object, compute the new body, write it into the contender and close that.
4. Rename the contender over the object. It fails if a rival has removed the contender meanwhile: then begin again.

Of two updates that both succeed, let A be the one that registered first. When B lists, A has either been renamed
already, or B removes it, which makes A fail. So A's rename came before B's read, and B saw what A wrote. A dead process
leaves a contender that blocks nobody: the next one removes it. `Turns` waits a few seconds for a contender that was
there first, which keeps live writers from starving each other; nothing in this argument depends on it.

`delete` takes part with a folder as its contender, one for all keys of a directory: the objects are renamed into it,
which fails if it is gone. So an update that has read an object which is then deleted cannot bring it back.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence

from hdfs_native import FileStatus, FileWriter

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, HoldfastError, OutcomeUnknown, Unavailable, one_line
from holdfast.storage.files.disk import is_temporary
from holdfast.storage.objects.hdfs_client import HdfsClient
from holdfast.storage.objects.hdfs_errors import translated
from holdfast.storage.objects.hdfs_turns import Turns
from holdfast.storage.objects.keys import check_key, check_prefix
from holdfast.storage.objects.store import BEGINNING, UPDATE_LIMIT, Bytes, Change, Chunks, Listing, ObjectInfo

Paths = list[str]
Statuses = list[tuple[str, FileStatus]]
LISTING_ATTEMPTS = 20


class HdfsObjects:
    """The `ObjectStore` of one directory. Nothing is made before the first write."""

    # A reader may see a rename a moment before the NameNode has synced it to its log.
    visible_is_durable = False
    looks_are_free = False
    service: str | None = None
    """The NameNode enforces what is relied on here, and has no setting that would change that."""

    def __init__(self, client: HdfsClient, root: str, address: str) -> None:
        """`root` is an absolute path without a slash at its end, empty for the root of HDFS."""
        self.root = root
        self.client = self._hdfs = client
        self._address = address

    def __copy__(self) -> HdfsObjects:
        """Another handle on the same directory, for another thread."""
        return HdfsObjects(self._hdfs, self.root, self._address)

    @property
    def address(self) -> str:
        return self._address

    # Writing

    def create(self, key: str, chunks: Chunks) -> None:
        path = self._path(key)
        with step("object.create", key=key), self._explained(key, writing=True):
            temporary = self._hdfs.write_beside(path, chunks)
            try:
                self._hdfs.rename(temporary, path)
            except FileExistsError:
                # Once this is acknowledged, the object that was found is in the NameNode's synced log, too.
                self._hdfs.remove(temporary)
                raise self._taken(key) from None
            except Exception as error:
                if not self._took_effect(temporary, key, chunks, error):
                    raise

    def writer(self, key: str) -> _HdfsFile:
        """As `WritesPieces` says: under a name of its own, renamed in the end."""
        path = self._path(key)
        with self._explained(key, writing=True):
            temporary, opened = self._hdfs.begin_beside(path)
        return _HdfsFile(self, key, path, temporary, opened)

    def update(self, key: str, change: Change, *, limit: int = UPDATE_LIMIT, is_hint: bool = False) -> bool:
        """As the protocol says; a hint is written like everything else."""
        path = self._path(key)
        with self._explained(key, writing=True):
            turns = Turns(self._hdfs, [path], about=self._shown(key))
            while True:
                try:
                    contender, writer = turns.take(lambda name: self._registered(name, change))
                except _NothingWanted:
                    return False
                try:
                    outcome = self._replace(key, contender, writer, change, limit)
                except BaseException:
                    self._hdfs.discard(contender)
                    raise
                if outcome is not None:
                    return outcome
                turns.lost()

    def check_conditions(self, key: str) -> None:
        """Nothing to do: every NameNode refuses a rename whose source is gone or whose target is there."""

    def secure(self, keys: Sequence[str]) -> None:
        """One edit of the NameNode's log: when it is acknowledged, everything that was seen before it is synced, too.

        The edit notes the same times of a file once more. Not being allowed to write is forgiven: a reader may look.
        """
        for key in keys:
            try:
                self._hdfs.note_times(self._path(key))
                break
            except FileNotFoundError:
                continue
            except Exception as error:
                explained = translated(error, self._shown(key), writing=True)
                if explained.code in ("hdfs.denied", "hdfs.safe-mode"):
                    break
                raise explained from error

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do: every write is acknowledged by itself."""
        return contextlib.nullcontext()

    # Reading

    def read(self, key: str, *, limit: int) -> bytes:
        path = self._path(key)
        with self._explained(key):
            body = self._hdfs.read(path, lambda size: size if size <= limit else None)
        if isinstance(body, int):
            raise Corrupt(f"{key} is {body} bytes, more than {limit}.", code="object.too-large", about=self._shown(key))
        return body

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[Bytes]:
        path = self._path(key)
        if length == 0:
            return
        with self._explained(key):
            reader = self._hdfs.open(path)
            size = len(reader)
            if start < size:
                yield from self._hdfs.pieces(
                    reader, start, size - start if length is None else min(length, size - start)
                )

    def info(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with self._explained(key):
            try:
                found = self._hdfs.status(path)
            except FileNotFoundError:
                return None
            return None if found.isdir else self._as_info(key, found)

    def list(self, prefix: str) -> Listing:
        with self._explained(prefix):
            return sorted(
                (
                    self._as_info(key, found)
                    for key, found in self._below(prefix)
                    if not found.isdir and not any(map(is_temporary, key.split("/")))
                ),
                key=lambda info: info.key,
            )

    def leftovers(self, prefix: str = "") -> Listing:
        with self._explained(prefix):
            below = self._below(prefix)
        parents = {posixpath.dirname(key) for key, _ in below}
        found = []
        for key, status in below:
            folder, name = posixpath.split(key)
            if any(map(is_temporary, folder.split("/"))):
                continue  # goes with the folder
            if is_temporary(name):
                found.append(self._as_info(key, status))
            elif status.isdir and key not in parents and folder:
                found.append(self._as_info(key + "/", status))
        return sorted(found, key=lambda info: info.key)

    # Deleting

    def delete(self, keys: Sequence[str], then: Sequence[str] = ()) -> None:
        if not keys and not then:
            return
        with step("object.delete", keys=len(keys) + len(then)), self._explained((*keys, *then)[0], writing=True):
            by_folder: dict[str, list[str]] = {}
            for key in keys:
                path = self._path(key.rstrip("/"), temporary=True)
                if key.endswith("/"):
                    self._remove_if_empty(path)
                elif is_temporary(posixpath.basename(path)):
                    self._hdfs.remove(path, recursive=True)  # a deletion's folder, it may be
                else:
                    by_folder.setdefault(posixpath.dirname(path), []).append(path)
            for folder, paths in by_folder.items():
                self._remove_from(folder, paths)
            removed = [self._path(key, temporary=True) for key in then]
            for path in removed:
                self._remove_file(path)
            for folder in sorted({*by_folder, *map(posixpath.dirname, removed)}):
                self._remove_if_empty(folder)

    def _remove_from(self, folder: str, paths: Sequence[str]) -> None:
        """Remove objects of one folder, each when it is not the turn of an update."""
        try:
            files = {status.path for status in self._hdfs.list(folder) if not status.isdir}
        except FileNotFoundError:
            return
        remaining = [path for path in paths if path in files]  # never a folder: it would go with all that is in it
        turns = Turns(self._hdfs, remaining, about=self._address, removes=True) if remaining else None
        while turns and remaining:
            aside, _ = turns.take(self._hdfs.make_folder)
            remaining = self._moved_into(aside, remaining)
            self._hdfs.remove(aside, recursive=True)
            if remaining:
                turns.lost()

    def _moved_into(self, aside: str, paths: Paths) -> Paths:
        """Move objects out of sight; returns those that are left because a rival has removed the folder `aside`."""
        for number, path in enumerate(paths):
            try:
                self._hdfs.rename(path, f"{aside}/{number}")
            except FileNotFoundError:
                if not self._hdfs.is_there(aside):
                    return paths[number:]
        return []

    def _remove_file(self, path: str) -> None:
        try:
            self._hdfs.remove(path)
        except RuntimeError as error:
            explained = translated(error, path, writing=True)
            if "PathIsNotEmptyDirectory" not in str(error) and explained.code != "hdfs.not-a-directory":
                raise  # else there is no such object: a folder has its name, or a file that of its folder

    def _remove_if_empty(self, folder: str) -> None:
        """Folders right below the store stay, as on local disk."""
        if "/" in folder[len(self.root) + 1 :]:
            with contextlib.suppress(Exception):
                if self._hdfs.status(folder).isdir:  # HDFS removes a file by the same call
                    self._hdfs.remove(folder)

    # Replacing

    def _registered(self, name: str, change: Change) -> FileWriter:
        try:
            return self._hdfs.create(name, parents=False)
        except FileNotFoundError:
            if change(None) is None:
                raise _NothingWanted from None  # nothing there and nothing wanted: not even a folder is made
            return self._hdfs.create(name, parents=True)

    def _replace(self, key: str, contender: str, writer: FileWriter, change: Change, limit: int) -> bool | None:
        """Steps 3 and 4 of an update. None if it has to begin again: another writer came first."""
        path = self._path(key)
        current = self._read_for_update(path, limit)
        body = change(current)
        if body is None:
            self._hdfs.discard(contender)
            return False
        with step("object.update", key=key):
            try:
                with step("hdfs.write"):
                    self._hdfs.write(writer, contender, [body])
            except FileNotFoundError:
                return None  # a rival has removed the contender
            try:
                self._hdfs.rename(contender, path, overwrite=current is not None)
            except FileExistsError:
                self._hdfs.discard(contender)  # created since we looked
                return None
            except FileNotFoundError:  # removed by a rival, or renamed by a try whose reply was lost
                return True if self._hdfs.has_body(path, [body]) else None
            except Exception as error:
                with contextlib.suppress(Conflict):
                    if not self._took_effect(contender, key, [body], error):
                        raise
                    return True
                return None
        return True

    def _read_for_update(self, path: str, limit: int) -> bytes | None:
        try:
            body = self._hdfs.read(path, lambda size: size if size <= limit else min(limit, BEGINNING))
        except FileNotFoundError:
            return None
        assert isinstance(body, bytes)
        return body

    # Lost replies

    def _took_effect(self, temporary: str, key: str, chunks: Chunks, error: Exception) -> bool:
        """Find out whether a rename without an answer took effect; False if it did not and cannot any more.

        Removing its source tells: what is removed was not renamed, and cannot be renamed later. A source that is gone
        was renamed, or a clean-up removed it; then the bodies are compared, and `Conflict` says that they differ.
        """
        try:
            if self._withdrawn(temporary):
                return False
            if self._hdfs.has_body(self._path(key), chunks):
                return True
            if self.info(key) is None:
                return False
        except Exception as second:
            raise OutcomeUnknown(
                f"Writing {self._shown(key)} failed and it could not be read back: it may or may not be there. "
                f"{translated(error, self._shown(key), writing=True).message} {one_line(second)}",
                code="object.outcome-unknown",
                about=self._shown(key),
                unchanged="everything that was acknowledged before",
                next_step="read the object back when HDFS answers again, then decide",
            ) from error
        raise self._taken(key) from error

    def _withdrawn(self, temporary: str) -> bool:
        try:
            return self._hdfs.remove(temporary)
        except Exception:
            if self._hdfs.is_there(temporary):
                return True  # the NameNode answers, and changes nothing: in safe mode, for one
            raise

    # Listing

    def _below(self, prefix: str) -> Statuses:
        """Every file and folder below a prefix, with its key."""
        folder = self._path(check_prefix(prefix).rstrip("/")) if prefix else self.root or "/"
        for _ in range(LISTING_ATTEMPTS):
            try:
                found = self._hdfs.list(folder, recursive=True)
            except FileNotFoundError:
                if not self._hdfs.is_there(folder):
                    return []
                continue  # a folder below was removed meanwhile
            if len(found) == 1 and found[0].path == folder:
                raise Unavailable(
                    f"{self._shown(prefix)} is not a directory.",
                    code="hdfs.not-a-directory",
                    about=self._shown(prefix),
                    unchanged="the store",
                    next_step="remove the file that stands where a directory should be",
                )
            return [(_decoded(status.path[len(self.root) + 1 :]), status) for status in found]
        raise Unavailable(
            f"{self._shown(prefix)} kept changing while it was listed.",
            code="hdfs.changing",
            about=self._shown(prefix),
            unchanged="the store",
            next_step="try again",
        )

    # Names and errors

    def _path(self, key: str, *, temporary: bool = False) -> str:
        return f"{self.root}/{_encoded(check_key(key, temporary=temporary))}"

    def _as_info(self, key: str, found: FileStatus) -> ObjectInfo:
        return ObjectInfo(key, found.length, found.modification_time / 1000)

    def _shown(self, key: str) -> str:
        return f"{self._address.rstrip('/')}/{key}"

    def _taken(self, key: str) -> Conflict:
        return Conflict(f"{key} exists already.", code="object.exists", about=self._shown(key))

    @contextlib.contextmanager
    def _explained(self, key: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            raise translated(error, self._shown(key), writing=writing) from error


class _HdfsFile:
    """The `NewFile` of a file that has a name of its own until it is closed."""

    def __init__(self, objects: HdfsObjects, key: str, path: str, temporary: str, opened: FileWriter) -> None:
        self._objects = objects
        self._key = key
        self._path = path
        self._temporary = temporary
        self._opened = opened
        self._size = 0

    def write(self, piece: Bytes) -> None:
        with step("hdfs.write"), self._objects._explained(self._key, writing=True):
            self._size += self._objects.client.append(self._opened, [piece])

    def close(self) -> None:
        with step("object.put", key=self._key), self._objects._explained(self._key, writing=True):
            self._objects.client.finish(self._opened, self._temporary, self._size)
            self._objects.client.rename(self._temporary, self._path, overwrite=True)

    def abandon(self) -> None:
        self._objects.client.discard(self._temporary)


class _NothingWanted(Exception):
    """An update of an object that is not there, in a folder that is not there, was declined."""


def _encoded(key: str) -> str:
    """HDFS takes no colon in a name."""
    return key.replace("%", "%25").replace(":", "%3A")


def _decoded(path: str) -> str:
    return path.replace("%3A", ":").replace("%25", "%")
