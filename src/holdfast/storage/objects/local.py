"""Objects as files on a local disk, durable when a call returns.

A new object is written under a name of its own, synced, given its real name, and then every directory
whose entries changed is synced. A crash in between leaves a temporary name that no listing shows.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import posixpath
import uuid
from collections.abc import Iterator, Sequence

from holdfast.errors import Conflict, Corrupt, HoldfastError, NotFound, Unavailable
from holdfast.storage.files.disk import CANNOT_SYNC, Disk, Entry, PosixDisk, is_temporary
from holdfast.storage.objects.keys import check_key, check_prefix
from holdfast.storage.objects.store import BEGINNING, UPDATE_LIMIT, Bytes, Change, Chunks, Listing, ObjectInfo

PIECE = 1 << 20


class LocalObjects:
    """The `ObjectStore` of one directory. Nothing is made on disk before the first write."""

    visible_is_durable = False
    looks_are_free = True
    service: str | None = None

    def __init__(self, root: str, *, disk: Disk | None = None, writer: str | None = None) -> None:
        """`writer` is part of the names of this instance's temporary files; no other instance may have the same."""
        self.root = os.path.abspath(root)
        self._disk = disk or PosixDisk()
        self._writer = writer or uuid.uuid4().hex[:16]
        self._writes = itertools.count()
        self._anchored: set[str] = set()
        self._nearly_anchored: set[str] = set()
        self._deferred: dict[str, None] | None = None

    def __copy__(self) -> LocalObjects:
        """Another handle on the same directory, for another thread."""
        return LocalObjects(self.root, disk=self._disk)

    @property
    def address(self) -> str:
        return self.root

    def create(self, key: str, chunks: Chunks) -> None:
        path = self._path(key)
        with self._explained(key, writing=True):
            temporary = self._write_beside(path, chunks)
            try:
                self._disk.link(temporary, path)
            except FileExistsError:
                # Its writer may have died before its own sync, and our caller may go on to rely on it.
                self._make_durable(os.path.dirname(path))
                raise Conflict(f"{key} exists already.", code="object.exists", about=path) from None
            finally:
                self._discard(temporary)
            self._make_durable(os.path.dirname(path))

    def update(self, key: str, change: Change, *, limit: int = UPDATE_LIMIT, is_hint: bool = False) -> bool:
        path = self._path(key)
        folder = os.path.dirname(path)
        with self._explained(key, writing=True):
            try:
                return self._update_locked(path, folder, change, limit, is_hint)
            except FileNotFoundError:
                if change(None) is None:
                    return False  # nothing there and nothing wanted: not even a folder is made
            self._make_directories(folder)
            return self._update_locked(path, folder, change, limit, is_hint)

    def check_conditions(self, key: str) -> None:
        """Nothing to do: the kernel gives a name once, and the lock is held over an update."""

    def secure(self, keys: Sequence[str]) -> None:
        # Never deferred: a reader may lack the right to sync, and that is forgiven only here.
        deferred, self._deferred = self._deferred, None
        try:
            for folder in sorted({os.path.dirname(self._path(key)) for key in keys}):
                with self._explained(folder, writing=True):
                    try:
                        self._make_durable(folder)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        if error.errno not in CANNOT_SYNC:
                            raise
        finally:
            self._deferred = deferred

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        if self._deferred is not None:
            yield
            return
        try:
            self._deferred = {}
            yield
        finally:
            folders, self._deferred = self._deferred or {}, None
            anchors, self._nearly_anchored = self._nearly_anchored, set()
            for folder in folders:
                with self._explained(folder, writing=True), self._unless_removed(folder):
                    self._disk.sync_directory(folder)
            self._anchored |= anchors

    def read(self, key: str, *, limit: int) -> bytes:
        path = self._path(key)
        with self._explained(key):
            size = self._disk.entry(path).size
            body = self._read_up_to(path, limit) if size <= limit else b""
            if body is None:
                raise FileNotFoundError(errno.ENOENT, "removed while it was being read", path)
        if size > limit:
            raise Corrupt(f"{key} is {size} bytes, more than {limit}.", code="object.too-large", about=path)
        return body

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[Bytes]:
        if length == 0:
            return
        with self._explained(key), self._disk.open_file(self._path(key)) as file:
            if start >= file.seek(0, os.SEEK_END):
                return
            file.seek(start)
            remaining = length
            while remaining is None or remaining > 0:
                piece = file.read(PIECE if remaining is None else min(PIECE, remaining))
                if not piece:
                    return
                if remaining is not None:
                    remaining -= len(piece)
                yield piece

    def info(self, key: str) -> ObjectInfo | None:
        with self._explained(key):
            try:
                found = self._disk.entry(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                return None
            return None if found.is_directory else ObjectInfo(key, found.size, found.modified)

    def list(self, prefix: str) -> Listing:
        with self._explained(prefix or self.root):
            found = self._walk(check_prefix(prefix).rstrip("/"))
            return sorted(
                (ObjectInfo(key, entry.size, entry.modified) for key, entry in found if not is_temporary(entry.name)),
                key=lambda info: info.key,
            )

    def delete(self, keys: Sequence[str], then: Sequence[str] = ()) -> None:
        with self._explained((*keys, *then, "")[0], writing=True):
            then = [key for key in then if self._is_there(key)]
            folders = self._remove_all(keys, locked=True)
            if then:
                for folder in sorted(folders):
                    with contextlib.suppress(FileNotFoundError):
                        self._disk.sync_directory(folder)
            folders |= self._remove_all(then)
            for folder in sorted(folders):
                self._remove_if_empty(folder)

    def leftovers(self, prefix: str = "") -> Listing:
        with self._explained(prefix or self.root):
            found = self._walk(check_prefix(prefix).rstrip("/"), empty_folders=True)
            return sorted(
                (
                    ObjectInfo(key + "/" if entry.is_directory else key, entry.size, entry.modified)
                    for key, entry in found
                    if entry.is_directory or is_temporary(entry.name)
                ),
                key=lambda info: info.key,
            )

    def _update_locked(self, path: str, folder: str, change: Change, limit: int, is_hint: bool) -> bool:
        with self._disk.locked(folder):
            body = change(self._read_for_update(path, limit))
            if body is None:
                return False
            temporary = self._write_beside(path, [body], sync=not is_hint)
            try:
                self._disk.rename(temporary, path)
            except OSError:
                self._discard(temporary)
                raise
            self._make_durable(folder)
        return True

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))

    def _write_beside(self, path: str, chunks: Chunks, *, sync: bool = True) -> str:
        """A file under a name of its own, in the folder where it will be needed."""
        temporary = self._temporary_name(path)
        try:
            self._write_making_folder(temporary, chunks, sync)
        except OSError:
            self._discard(temporary)
            raise
        return temporary

    def _temporary_name(self, path: str) -> str:
        folder, name = os.path.split(path)
        return os.path.join(folder, f".{name}.{self._writer}-{next(self._writes)}.tmp")

    def _discard(self, temporary: str) -> None:
        with contextlib.suppress(OSError):  # a leftover is swept later; it is not worth failing for
            self._disk.remove_file(temporary)

    def _write_making_folder(self, path: str, chunks: Chunks, sync: bool) -> None:
        folder = os.path.dirname(path)
        if not self._is_permanent(folder):  # most often a folder of this object's own, and still to be made
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                self._disk.make_directory(folder)
        for _ in range(100):
            try:
                return self._disk.write_file(path, chunks, sync=sync)
            except FileNotFoundError:
                # Missing, or a clean-up removed the empty folder under us: it may do so again, not for ever.
                self._make_directories(folder)
        raise OSError(errno.ENOENT, "the folder keeps disappearing", path)

    def _make_directories(self, folder: str) -> None:
        try:
            self._disk.make_directory(folder)
        except FileExistsError:
            if not self._disk.entry(folder).is_directory:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", folder) from None
        except FileNotFoundError:
            self._make_directories(os.path.dirname(folder))
            with contextlib.suppress(FileExistsError):
                self._disk.make_directory(folder)

    def _make_durable(self, folder: str) -> None:
        """Sync `folder` and every entry that leads to it.

        Not only those made here: another process may have made them and died before its own sync. Folders
        that are never removed need that once per instance. One that is gone was removed with all that we put
        there, which is then as if it had been removed right after this.
        """
        with self._unless_removed(folder):
            self._sync(folder)
        climbed = []
        is_deferred = False
        while folder not in self._anchored and folder != os.path.dirname(folder):
            parent = os.path.dirname(folder)
            is_deferred |= self._deferred is not None and parent in self._anchored
            try:
                self._sync(parent)
            except OSError as error:
                if self._is_inside(parent) or error.errno not in CANNOT_SYNC:
                    raise  # above the store are directories that are not ours, some of them on odd file systems
            climbed.append(folder)
            folder = parent
        # Reached only if no sync failed. As long as one of them is deferred, the folders are not anchored.
        anchors = self._nearly_anchored if is_deferred else self._anchored
        anchors.update(folder for folder in climbed if self._is_permanent(folder))

    def _unless_removed(self, folder: str) -> contextlib.AbstractContextManager[None]:
        """A folder that may be removed can be gone before its sync, together with everything that it held."""
        return contextlib.suppress(*(() if self._is_permanent(folder) else (FileNotFoundError,)))

    def _sync(self, folder: str) -> None:
        if self._deferred is not None and (folder in self._anchored or not self._is_permanent(folder)):
            self._deferred[folder] = None
        else:
            self._disk.sync_directory(folder)

    def _is_inside(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + os.sep)

    def _is_permanent(self, path: str) -> bool:
        return not self._is_inside(path) or os.path.dirname(path) == self.root or path == self.root

    def _is_there(self, key: str) -> bool:
        try:
            self._disk.entry(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _remove_all(self, keys: Sequence[str], *, locked: bool = False) -> set[str]:
        """Remove files. With `locked` no update runs meanwhile: it could write an object again that was removed."""
        folders = set()
        for key in keys:
            path = os.path.join(self.root, check_key(key.rstrip("/"), temporary=True))
            if key.endswith("/"):
                self._remove_if_empty(path)
                continue
            folder = os.path.dirname(path)
            lock = self._disk.locked(folder) if locked else contextlib.nullcontext()
            with contextlib.suppress(FileNotFoundError), lock:
                self._disk.remove_file(path)
            folders.add(folder)
        return folders

    def _remove_if_empty(self, folder: str) -> None:
        if not self._is_permanent(folder):
            with contextlib.suppress(OSError):
                self._disk.remove_directory(folder)

    def _read_for_update(self, path: str, limit: int) -> bytes | None:
        try:
            is_too_large = limit > PIECE and self._disk.entry(path).size > limit
        except FileNotFoundError:
            return None
        return self._read_up_to(path, BEGINNING if is_too_large else limit)

    def _read_up_to(self, path: str, most: int) -> bytes | None:
        """The first bytes of a file, None if there is none."""
        try:
            with self._disk.open_file(path) as file:
                expected = file.seek(0, os.SEEK_END)
                file.seek(0)
                # In one piece, which is then the answer, unless the file grows meanwhile.
                pieces, left = [], most
                while left > 0 and (piece := file.read(min(expected or PIECE, left))):
                    pieces.append(piece)
                    left -= len(piece)
                    expected = PIECE
                return b"".join(pieces)
        except FileNotFoundError:
            return None

    def _walk(
        self, prefix: str, *, empty_folders: bool = False, above: frozenset[object] = frozenset()
    ) -> Iterator[tuple[str, Entry]]:
        folder = os.path.join(self.root, prefix)
        try:
            entries = self._disk.scan(folder)
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise self._as_unavailable(error, folder, writing=False) from error
        for entry in entries:
            key = posixpath.join(prefix, entry.name)
            if not entry.is_directory:
                yield key, entry
                continue
            if entry.identity is not None and entry.identity in above:
                continue  # a link back up: following it would never end
            below = list(self._walk(key, empty_folders=empty_folders, above=above | {entry.identity}))
            yield from below
            if empty_folders and not below and not self._is_permanent(os.path.join(self.root, key)):
                yield key, entry

    @contextlib.contextmanager
    def _explained(self, key: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            if writing:
                raise self._as_unavailable(error, key, writing) from error
            raise NotFound(f"{key} is not there.", code="object.not-found", about=self._shown(key)) from error
        except OSError as error:
            raise self._as_unavailable(error, key, writing) from error

    def _shown(self, key: str) -> str:
        return key if os.path.isabs(key) else os.path.join(self.root, key)

    def _as_unavailable(self, error: OSError, key: str, writing: bool) -> Unavailable:
        code, advice = _ADVICE.get(error.errno or 0, ("disk.error", "check the disk and its mount"))
        done = "write" if writing else "read"
        return Unavailable(
            f"Could not {done} {self._shown(key)}: {error.strerror or error}.",
            code=code,
            about=self._shown(key),
            unchanged="everything that was acknowledged before" if writing else "the store",
            next_step=advice,
        )


_ADVICE = {
    errno.ENOENT: ("disk.swept", "try again; a clean-up removed the unfinished file, or the directory was removed"),
    errno.ENOTDIR: ("disk.not-a-directory", "remove the file that stands where a directory should be"),
    errno.ENOSPC: ("disk.full", "free some space and try again"),
    errno.EDQUOT: ("disk.full", "raise the quota or free some space, and try again"),
    errno.EROFS: ("disk.read-only", "mount the disk writable"),
    errno.EACCES: ("disk.denied", "give this user access to the directory"),
    errno.EPERM: ("disk.denied", "give this user access; the file system must also allow hard links"),
    errno.ENOTSUP: ("disk.no-links", "use a file system with hard links: exclusive creation needs them"),
    errno.EXDEV: ("disk.no-links", "use one file system for the whole store: exclusive creation needs hard links"),
}
