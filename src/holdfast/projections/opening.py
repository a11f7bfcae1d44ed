"""From an address to a store of events and projections."""

from __future__ import annotations

import importlib
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

from holdfast.base.addresses import CLOUD_SCHEMES, without_secrets
from holdfast.errors import Invalid
from holdfast.projections.backend import Backend
from holdfast.projections.looking import LookedAt
from holdfast.projections.memory import MemoryBackend
from holdfast.projections.sqlite import SqliteBackend
from holdfast.projections.sqlite_looking import SqliteLooker
from holdfast.projections.store import ProjectionStore


def open_projections(
    url: str,
    *,
    read_only: bool = False,
    clock: Callable[[], float] = time.time,
    ids: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> ProjectionStore:
    """Open the store at an address; it is made if it is not there.

    `sqlite:///path` is on this machine, and several processes may have it open. `s3://bucket/path`, `gs://` and `az://`
    are SlateDB on object storage, with settings from the environment: one process at a time, and opening it fences the
    one before. `file:///path` is SlateDB on local files, for development: it does not sync. `memory://` is new each
    time, `memory://name` is shared within this process; both are gone when closed. `clock` gives the time of day and
    `ids` makes the ids of events, for tests.

    `read_only` is for a look: nothing is made or changed, nobody is fenced, and a store that is not there is
    `NotFound`. On SlateDB it is a look at the moment of the opening, and good for some minutes.
    """
    return ProjectionStore(open_backend(url, read_only=read_only), clock=clock, ids=ids)


def open_backend(url: Any, *, read_only: bool = False) -> Backend:
    """The maps of bytes behind a store."""
    if not isinstance(url, str) or "://" not in url or "\0" in url:
        raise _refused(f"{url!r} is not the address of a store.", repr(url))
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "memory":
        memory = MemoryBackend(rest.strip("/"))
        return LookedAt(memory) if read_only else memory
    if scheme == "sqlite":
        path = _path(scheme, rest)
        return LookedAt(SqliteLooker(path)) if read_only else SqliteBackend(path)
    if scheme == "file":
        return _slatedb("file:///", _path(scheme, rest).strip("/"), read_only)
    if scheme in CLOUD_SCHEMES:
        bucket, _, path = rest.partition("/")
        if not bucket or not path.strip("/") or "?" in rest or "#" in rest:
            raise _refused(f"{without_secrets(url)} names no path in a bucket.", without_secrets(url))
        return _slatedb(f"{scheme}://{bucket}", path.strip("/"), read_only)
    raise Invalid(
        f"{scheme}:// is not a kind of store that Holdfast knows.",
        code="address.scheme",
        about=without_secrets(url),
        unchanged="everything",
        next_step="use sqlite:///path, s3://bucket/path, gs://, az://, file:///path or memory://",
    )


def _slatedb(root: str, path: str, read_only: bool) -> Backend:
    try:
        module = importlib.import_module(f"holdfast.projections.{'slatedb_looking' if read_only else 'slatedb'}")
    except ModuleNotFoundError as error:
        raise Invalid(
            f"A store on object storage needs the package {error.name}.",
            code="store.package",
            about=str(error.name),
            unchanged="everything",
            next_step="pip install 'holdfast[slatedb]'",
        ) from error
    backend: Backend = LookedAt(module.SlatedbLooker(root, path)) if read_only else module.SlatedbBackend(root, path)
    return backend


def _path(scheme: str, rest: str) -> str:
    """An absolute path; `sqlite:////path`, as others write it, is the same."""
    if not rest.startswith("/") or "?" in rest or "#" in rest or not rest.strip("/"):
        raise _refused(f"{scheme}://{rest} is not an absolute path.", f"{scheme}://{rest}")
    path = urllib.parse.unquote("/" + rest.lstrip("/"))
    if "\0" in path:
        raise _refused(f"{scheme}://{rest} holds a NUL character.", f"{scheme}://{rest}")
    return path


def _refused(message: str, about: str) -> Invalid:
    return Invalid(
        message,
        code="address.refused",
        about=about,
        unchanged="everything",
        next_step="write sqlite:///directory/file, s3://bucket/path or memory://; %3F and %23 stand for ? and #",
    )
