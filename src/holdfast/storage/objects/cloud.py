"""Objects in S3, Google Cloud Storage, Azure, or this process's memory, through obstore.

All safety rests on two conditional writes: create if absent, and replace if the object is still the one that was read.
After a lost reply the object is read back and its body compared; the outcome is never guessed.
"""

from __future__ import annotations

import builtins
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import obstore

from holdfast.base.steps import step
from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid, NotFound, OutcomeUnknown
from holdfast.storage.objects.cloud_errors import ABSENT, CHANGED, TAKEN, translated, unconditional
from holdfast.storage.objects.keys import check_key, check_prefix
from holdfast.storage.objects.refusals import said_by_service
from holdfast.storage.objects.retry import Unanswered, has_no_reason, lacks_credentials, patiently, send, until_answered
from holdfast.storage.objects.store import BEGINNING, UPDATE_LIMIT, Bytes, Change, Chunks, Listing, ObjectInfo

MAX_SINGLE_PUT = 5 * 1024**3  # S3's limit for one conditional request
PIECE = 4 << 20
UPLOADED_PART = 8 << 20  # S3 takes 10,000 parts of an object: 78 GiB
UPLOADS_AT_ONCE = 4
REMEMBERED_OBJECTS = 16
MAX_UPDATE_ATTEMPTS = 100  # lost to other writers before an update gives up
REMEMBERED_BYTES = 1 << 20
Version = dict[str, str]
"""What tells one body of an object from the next, as obstore takes it in `mode`: the entity tag and, where the service
has one, the version. S3 and Azure compare the entity tag, Google Cloud Storage the version (there the generation)."""


class CloudObjects:
    """The `ObjectStore` of one bucket and prefix."""

    visible_is_durable = True
    looks_are_free = False

    def __init__(self, store: Any, address: str, *, writes: Any = None, service: str | None = None) -> None:
        """`writes` is the same place opened without retries of its own, for conditional writes."""
        self.service = service
        self._store = store
        self._writes = writes or store
        self._address = address
        self._written: OrderedDict[str, tuple[Version, bytes]] = OrderedDict()
        self._was_answered = False
        """Whether any request had an answer. From then on missing credentials are a fault that passes."""

    def __copy__(self) -> CloudObjects:
        """Another handle on the same place, for another thread."""
        other = CloudObjects(self._store, self._address, writes=self._writes, service=self.service)
        other._was_answered = self._was_answered
        return other

    @property
    def address(self) -> str:
        return self._address

    def create(self, key: str, chunks: Chunks) -> None:
        check_key(key)
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        if size > MAX_SINGLE_PUT:
            raise Invalid(
                f"{key} would be {size} bytes; one conditional write takes at most {MAX_SINGLE_PUT}.",
                code="object.too-large",
                about=self._shown(key),
                unchanged="the store",
                next_step="pack the state with CheckpointBatcher, which splits it",
            )
        body = b"".join(chunks) if len(chunks) != 1 else chunks[0]
        with step("object.create", key=key):
            try:
                version = self._put(key, body, "create", TAKEN)
            except TAKEN:
                raise self._taken(key) from None
            except Unanswered as failed:
                self._settle(key, body, failed)
                return
        self._remember(key, version, body)

    def update(self, key: str, change: Change, *, limit: int = UPDATE_LIMIT, is_hint: bool = False) -> bool:
        check_key(key)
        version, current = self._written.get(key, (None, None))
        body = _unless_refused(change, current)
        if body is None:  # decided from a remembered body, or from none: read the current one before giving up
            version, current = self._read_versioned(key, limit)
            body = change(current)
        for _ in range(MAX_UPDATE_ATTEMPTS):
            if body is None:
                return False
            with step("object.update", key=key):
                if self._replace(key, version, body):
                    return True
            version, current = self._read_versioned(key, limit)
            if current == body:
                return True
            body = change(current)
        raise Conflict(
            f"{key} kept changing while it was being updated.",
            code="object.contended",
            about=self._shown(key),
            unchanged="nothing of this update was written",
            next_step="find the other writer",
        )

    def check_conditions(self, key: str) -> None:
        if self.service is None:
            return
        try:
            self.create(key, [b"1"])
            old = self._written[key][0] if key in self._written else self._read_versioned(key, PIECE)[0]
            try:
                self.create(key, [b"2"])
            except Conflict:
                pass
            else:
                raise unconditional(self._address, "a second object was created under a name that was taken")
            if not self._replace(key, old, b"3"):
                raise unconditional(self._address, "an object that nobody had changed could not be replaced")
            if self._replace(key, old, b"4"):
                raise unconditional(self._address, "an object was replaced although it had changed meanwhile")
        finally:
            with contextlib.suppress(HoldfastError):  # swept by a later claim; not worth failing for
                self.delete([key])

    def secure(self, keys: Sequence[str]) -> None:
        """Nothing to do: every object that can be read was acknowledged by the service."""

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do: every request is acknowledged by itself."""
        return contextlib.nullcontext()

    def read(self, key: str, *, limit: int) -> bytes:
        check_key(key)
        with self._explained(key):
            found = patiently(lambda: obstore.get(self._store, key))
            if found.meta["size"] > limit:
                raise Corrupt(
                    f"{key} is {found.meta['size']} bytes, more than the {limit} it may have.",
                    code="object.too-large",
                    about=self._shown(key),
                )
            return bytes(found.bytes())

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[Bytes]:
        check_key(key)
        if length == 0:
            return
        options: Any = {}
        if start or length is not None:
            info = self.info(key)  # a range beyond the end is an error to the service, and empty here
            end = info.size if info else 0
            if info and start >= end:
                return
            options = {"range": (start, end if length is None else min(end, start + length))} if info else {}
        with self._explained(key):
            found = patiently(lambda: obstore.get(self._store, key, options=options))
            for piece in found.stream(min_chunk_size=PIECE):
                whole = memoryview(piece)
                yield from (whole[at : at + PIECE] for at in range(0, len(whole), PIECE))

    def writer(self, key: str) -> _Upload:
        """As `WritesPieces` says: in parts, several under way at a time."""
        check_key(key)
        opened = obstore.open_writer(self._store, key, buffer_size=UPLOADED_PART, max_concurrency=UPLOADS_AT_ONCE)
        return _Upload(opened, lambda: self._explained(key, writing=True), key)

    def info_and_body(self, key: str, *, limit: int) -> tuple[ObjectInfo | None, bytes | None]:
        """What `info` returns and, if that has at most `limit` bytes, the body: in one request."""
        check_key(key)
        try:
            with self._explained(key):
                found = patiently(lambda: obstore.get(self._store, key))
                info = _as_info(found.meta)
                return info, bytes(found.bytes()) if info.size <= limit else None
        except NotFound as error:
            if error.code == "bucket.not-found":
                raise
            return None, None

    def info(self, key: str) -> ObjectInfo | None:
        check_key(key)
        try:
            with self._explained(key):
                return _as_info(patiently(lambda: self._head(key)))
        except NotFound:
            return None

    def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        with self._explained(prefix):
            return patiently(lambda: self._listed(prefix))

    def folders(self) -> builtins.list[str]:
        """The names of the topmost folders: one request, however much is in them."""
        with self._explained(""):
            return sorted(patiently(lambda: obstore.list_with_delimiter(self._store))["common_prefixes"])

    def some(self, prefix: str, most: int) -> Listing:
        """The first `most` objects below `prefix`, in the service's order: a look into what may be large."""
        check_prefix(prefix)
        with self._explained(prefix):
            page = patiently(lambda: next(iter(obstore.list(self._store, prefix or None, chunk_size=most)), []))
            return [_as_info(meta) for meta in page][:most]

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the service, over whatever is at `target`. Durable on return.

        Guarantees: no reader ever sees part of the body; repeating it is harmless. `NotFound` with the code
        `object.not-found` if the source is not there.
        Does not guarantee: more than 5 GiB, which S3 does not copy in one request.
        """
        check_key(source)
        check_key(target)
        with step("object.copy", key=target):
            try:
                with _no_panic():
                    patiently(lambda: obstore.copy(self._store, source, target))
            except ABSENT as error:
                raise self._translated(error, source, writing=False) from error
            except Exception as error:
                raise self._translated(error, target, writing=True) from error

    def delete(self, keys: Sequence[str], then: Sequence[str] = ()) -> None:
        """One bulk request where the service has one; the order of its removals is not defined."""
        doomed = [check_key(key) for key in (*keys, *then)]
        for key in doomed:
            self._written.pop(key, None)
        if doomed:
            with step("object.delete", keys=len(doomed)), self._explained(doomed[0], writing=True):
                until_answered(lambda: self._delete_all(doomed))

    def leftovers(self, prefix: str = "") -> Listing:
        """Always empty: a conditional write is one request, and leaves nothing when it fails."""
        return []

    def _head(self, key: str) -> Any:
        try:
            return obstore.head(self._store, key)
        except Exception as error:
            if not has_no_reason(error):
                raise
        return obstore.get(self._store, key).meta  # the same question, by a request whose answer has words

    def _listed(self, prefix: str) -> Listing:
        pages = obstore.list(self._store, prefix or None, chunk_size=1000)
        return sorted((_as_info(meta) for page in pages for meta in page), key=lambda info: info.key)

    def _delete_all(self, keys: Sequence[str]) -> None:
        try:
            obstore.delete(self._store, keys)
        except ABSENT:
            # A service without bulk requests stops at the first key that is absent: the rest one by one.
            for key in keys:
                with contextlib.suppress(*ABSENT):
                    obstore.delete(self._store, key)

    def _replace(self, key: str, version: Version | None, body: bytes) -> bool:
        """Replace the body of this version (None: create a new one); False if another writer has changed it."""
        self._written.pop(key, None)
        try:
            if version is None:
                new_version = self._put(key, body, "create", TAKEN)
            else:
                new_version = self._put(key, body, version, CHANGED)
        except (*TAKEN, *CHANGED):
            return False
        except Unanswered as failed:
            try:
                self._settle(key, body, failed)
            except Conflict:
                if isinstance(failed.last, (*TAKEN, *CHANGED)):
                    return False
                raise self._translated(failed.last, key, writing=True) from failed
            return True
        self._remember(key, new_version, body)
        return True

    def _put(self, key: str, body: Bytes, mode: Any, answers: tuple[type[Exception], ...]) -> Version | None:
        def write() -> Version | None:
            with _no_panic():
                return _version_in(obstore.put(self._writes, key, body, mode=mode))

        version = send(write, answers, is_hopeless=self._lacks_credentials)
        self._was_answered = True
        return version

    def _read_versioned(self, key: str, limit: int) -> tuple[Version | None, bytes | None]:
        try:
            with self._explained(key):
                found = patiently(lambda: obstore.get(self._store, key))
                version = _version_in(found.meta)
                if found.meta["size"] <= limit:
                    return version, bytes(found.bytes())
                return version, bytes(next(iter(found.stream(min_chunk_size=1)), b""))[: min(limit, BEGINNING)]
        except NotFound:
            return None, None

    def _remember(self, key: str, version: Version | None, body: Bytes) -> None:
        """Keep the body that we wrote: its next update needs no read, since the version proves it current."""
        if version is None or memoryview(body).nbytes > REMEMBERED_BYTES:
            return
        self._written[key] = (version, bytes(body))
        self._written.move_to_end(key)
        while len(self._written) > REMEMBERED_OBJECTS:
            self._written.popitem(last=False)

    def _settle(self, key: str, body: Bytes, failed: Unanswered) -> None:
        """Find out whether a write without an answer took effect: return if it did, raise if it did not."""
        if not failed.may_have_arrived:
            raise self._translated(failed.last, key, writing=True) from failed
        try:
            found = self.read(key, limit=max(memoryview(body).nbytes, PIECE))
        except NotFound:
            raise self._translated(failed.last, key, writing=True) from failed
        except Corrupt:
            raise self._taken(key) from failed  # larger than anything we sent
        except HoldfastError:
            raise OutcomeUnknown(
                f"Writing {self._shown(key)} failed and it could not be read back: it may or may not be there. "
                f"{said_by_service(failed.last)}.",
                code="object.outcome-unknown",
                about=self._shown(key),
                unchanged="everything that was acknowledged before",
                next_step="read the object back when the store answers again, then decide",
            ) from failed
        if found != body:
            raise self._taken(key) from failed

    def _taken(self, key: str) -> Conflict:
        return Conflict(f"{key} exists already.", code="object.exists", about=self._shown(key))

    @contextlib.contextmanager
    def _explained(self, key: str, *, writing: bool = False) -> Iterator[None]:
        try:
            with _no_panic():
                yield
            self._was_answered = True
        except HoldfastError:
            raise
        except Exception as error:
            raise self._translated(error, key, writing=writing) from error

    def _lacks_credentials(self, error: Exception) -> bool:
        return not self._was_answered and lacks_credentials(error)

    def _translated(self, error: Exception, key: str, *, writing: bool) -> HoldfastError:
        return translated(error, self._address, self._shown(key), writing=writing, was_answered=self._was_answered)

    def _shown(self, key: str) -> str:
        return self._address.rstrip("/") + "/" + key if not self._address.endswith("//") else self._address + key


class _Upload:
    """The `NewFile` of an upload in parts; of what fits into one part it makes a single request."""

    def __init__(self, opened: Any, explained: Callable[[], contextlib.AbstractContextManager[None]], key: str) -> None:
        self._opened = opened
        self._explained = explained
        self._key = key

    def write(self, piece: Bytes) -> None:
        whole = memoryview(piece)
        with self._explained():
            for at in range(0, len(whole), PIECE):
                self._opened.write(whole[at : at + PIECE])

    def close(self) -> None:
        with step("object.put", key=self._key), self._explained():
            self._opened.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception), _no_panic():
            # Left with an error it removes the parts that the service has; without one it would finish the object.
            self._opened.__exit__(RuntimeError, RuntimeError("abandoned"), None)


@contextlib.contextmanager
def _no_panic() -> Iterator[None]:
    """A panic in the library's Rust code, which is no `Exception`, as an error like any other."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the client library failed: {error}") from error


def _unless_refused(change: Change, current: bytes | None) -> bytes | None:
    try:
        return change(current)
    except HoldfastError:
        return None


def _version_in(found: Any) -> Version | None:
    """The version in a reply to a put or a get. What the service did not tell is left out: obstore refuses a None."""
    return {name: found[name] for name in ("e_tag", "version") if found.get(name)} or None


def _as_info(meta: Any) -> ObjectInfo:
    version = meta.get("e_tag") or meta.get("version") or ""
    # A listing of Azure leaves the quotes out: one object, one version, however it is asked.
    if version and '"' not in version:
        version = f'"{version}"'
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp(), version)
