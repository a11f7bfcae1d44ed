"""The parser of addresses: local or remote, and the path that a local address means.

| form | means |
|---|---|
| `path`, `/path`, `~/path` | a path; a relative one starts from where the process runs now |
| `file:///path`, `file://localhost/path`, `file:/path` (as Spark writes it) | an absolute path, percent-encoded |
| `sqlite:///path`, `rocksdb:///path` | a key-value store at a relative path, percent-encoded, as SQLAlchemy has it |
| `sqlite:////path`, `rocksdb:////path` | a key-value store at an absolute path |
| `scheme://...` | a service |

Schemes are case-insensitive. Nothing here touches a disk, except that `kv_path` looks whether files exist.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import urllib.parse
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import Invalid

log = logging.getLogger("holdfast.sources")
S3_SCHEMES = ("s3", "s3a")
CONTAINER_FIRST = ("abfs", "abfss")
"""Schemes with a container, not a user, before the @."""

AZURE_SCHEMES = ("az", *CONTAINER_FIRST)
CLOUD_SCHEMES = (*S3_SCHEMES, "gs", *AZURE_SCHEMES)
"""Object storage."""

HDFS_SCHEME = "hdfs"

_KV_SCHEMES = ("sqlite", "rocksdb", "redis", "rediss", "valkey", "valkeys", "postgresql", "postgres", "memory", "file")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # two letters at least: C:/ is a drive

_UNFIT_FOR_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 200


def scheme_of(address: str) -> str:
    """The scheme in lower case; `file` for a plain path."""
    found = _SCHEME.match(address)
    if found:
        return found[1].lower()
    return "file"


def is_local(address: str | os.PathLike[str]) -> bool:
    """True for a path and for a `file:` address."""
    return scheme_of(os.fspath(address)) == "file"


def is_cloud(address: str | os.PathLike[str]) -> bool:
    """True for an address on object storage."""
    return scheme_of(os.fspath(address)) in CLOUD_SCHEMES


def spark_address(address: str) -> str:
    """An address as Spark's connectors want it: `s3a://` for S3, a `file:` address for a path.

    The path is not escaped: Hadoop would take %20 for a part of the name.
    """
    if is_local(address):
        return f"file://{local_path(address)}"
    scheme, host, path = remote_parts(address)
    return f"{'s3a' if scheme == 's3' else scheme}://{host}{'/' if path else ''}{path}"


class RemoteParts(NamedTuple):
    """An address on object storage or HDFS, in parts."""

    scheme: str
    """In lower case."""

    host: str
    """The bucket, or the server; the container, an @ and the account for `abfss://`. Empty if there is none."""

    path: str
    """Without the slash before it, and without those at its end."""


def remote_parts(address: str, *, code: str | None = None) -> RemoteParts:
    """The parts of an address on object storage or HDFS. For every store, sink and workdir the same addresses fit.

    `Invalid`, with the code `code`, for what our clients and Spark's would each read in another way or leave out:
    a user or password, a query, a fragment, and `.` or `..` as a part of the path.
    """
    scheme, rest = scheme_of(address), address.partition("://")[2]
    host, _, path = rest.partition("/")
    bare = host.rpartition("@")[0] if scheme in CONTAINER_FIRST else host
    if set("@" if scheme == HDFS_SCHEME else "@:") & set(bare):
        raise _refused(
            f"An address with {scheme}:// was given with a user, a password or a port in it.",
            f"{scheme}://...",  # the rest is not shown: a key with a slash in it looks like a path
            "leave them out: keys and the endpoint come from Spark's settings, the environment, or options",
            code,
        )
    shown = without_secrets(address)
    if "?" in rest or "#" in rest:
        raise _refused(f"{shown} was given with a ? or # behind it.", shown, "leave out what begins there", code)
    if {".", ".."} & set(path.split("/")):
        raise _refused(f"{shown} has . or .. in its path.", shown, "write the path without them", code)
    return RemoteParts(scheme, host, path.rstrip("/"))


def local_path(address: str | os.PathLike[str], *, code: str | None = None) -> str:
    """The absolute path that a local address means; `Invalid` for every other address.

    The error has the code `code`; by default `address.host` if the address names a host, else `address.refused`.
    """
    given = os.fspath(address)
    if not given or "\0" in given:
        raise _refused(f"{given!r} is not a path.", repr(given), "give the path of a directory", code)
    if not is_local(given):
        shown = without_secrets(given)
        raise _refused(f"{shown} is not a local path.", shown, "give a path, or file:///...", code)
    if given[:5].lower() != "file:":
        return os.path.abspath(os.path.expanduser(given))
    rest = given[5:]
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    if host not in ("", "localhost"):
        raise Invalid(
            f"{given} names a host, {host!r}; a local path has three slashes.",
            code=code or "address.host",
            about=given,
            unchanged="everything",
            next_step=f"write file:///{host}{path} if that is the path",
        )
    return os.path.abspath(_decoded(path, given, "file", code))


def kv_path(address: str, *, code: str | None = None) -> str:
    """The absolute path of a key-value store on disk; `file:///path` has three slashes and is absolute.

    `Invalid` if nothing is at a relative path, but something is at the absolute path of the same spelling. Before three
    slashes meant a relative path they meant that one, and a new, empty store must not silently take its place. Where
    something is at both, a warning is logged once per process.
    """
    scheme, _, path = address.partition("://")
    scheme = scheme.lower()
    if scheme == "file":
        return _decoded(path if path.strip("/") else "", address, scheme, code)
    if not path.startswith("/") or not path.strip("/") or "?" in path or "#" in path:
        name = path.strip("/") or "directory/name"
        raise _refused(
            f"{address} is not the address of a file or directory.",
            address,
            f"write {scheme}:///{name} for a path from where the process runs, or {scheme}:////{name} for an absolute "
            "path, both without options; %3F and %23 stand for ? and # in a name",
            code,
        )
    absolute = _decoded(path, address, scheme, code)
    if path.startswith("//"):
        return absolute
    relative = os.path.abspath(absolute[1:])
    if not os.path.lexists(relative) and os.path.lexists(absolute):
        raise Invalid(
            f"{address} means {relative}, where nothing is; but {absolute} exists, which it meant in earlier releases.",
            code=code or "address.relative",
            about=address,
            unchanged="everything",
            next_step=f"write {kv_address(scheme, absolute)} for {absolute}, or {kv_address(scheme, relative)} for a "
            "new one",
        )
    if relative != absolute and os.path.lexists(absolute):
        _warn_of_both(address, kv_address(scheme, relative), relative, kv_address(scheme, absolute), absolute)
    return relative


@functools.cache
def _warn_of_both(address: str, this: str, relative: str, other: str, absolute: str) -> None:
    log.warning(
        "%s means %s; %s exists, too, which it meant in earlier releases. "
        "Next: write %s for that one, or %s for this one without the warning",
        address,
        relative,
        absolute,
        other,
        this,
    )


def kv_address(scheme: str, path: str) -> str:
    """The address of a key-value store at an absolute path. The inverse of `kv_path`; escapes any file name."""
    return f"{scheme}:{'//' if scheme == 'file' else '///'}{urllib.parse.quote(os.fsencode(path))}"


def kv_absolute(address: str | os.PathLike[str], *, code: str | None = None) -> str:
    """The address of a key-value store, the same in every process: a relative path becomes an absolute one.

    A plain path is that of a SQLite file.
    """
    given = os.fspath(address)
    scheme, separator, _ = given.partition("://")
    scheme = scheme.lower()
    if separator and scheme in ("sqlite", "rocksdb"):
        return kv_address(scheme, kv_path(given, code=code))
    if separator and _SCHEME.match(given):
        return given
    if _SCHEME.match(given) or given.partition(":")[0].lower() in (*_KV_SCHEMES, *CLOUD_SCHEMES, HDFS_SCHEME):
        name = given.partition(":")[0]  # the rest is not shown: it may hold a password
        raise _refused(
            f"{name}:... is neither a path nor an address, which has two slashes after the colon.",
            f"{name}:...",
            f"write {name.lower()}://..., or ./{name}:... if that is the path",
            code,
        )
    path = local_path(given, code=code)
    if os.path.isdir(path) or given.endswith("/"):
        raise _refused(
            f"{path} is a directory; a plain path is that of a SQLite file.",
            path,
            f"write the path of a file, or {kv_address('rocksdb', path)} or {kv_address('file', path)} (SlateDB)",
            code,
        )
    return kv_address("sqlite", path)


def without_secrets(address: str) -> str:
    """The address without user, password, query and fragment, safe to show. A path is returned as it is."""
    scheme, separator, rest = address.partition("://")
    if not separator or not _SCHEME.match(address):
        return address
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    if scheme.lower() not in CONTAINER_FIRST or ":" in host.rpartition("@")[0]:
        host = host.rpartition("@")[2]
    return f"{scheme}://{host}{slash}{path}"


def state_home(kind: str, name: str) -> Path:
    """The local directory for one user's state of a kind, such as `workdirs`, under a name. Does not create it.

    Characters that do not belong in file names become `-`, so two names can map to the same path.
    """
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "holdfast" / kind / _UNFIT_FOR_NAMES.sub("-", name)[:_MAX_NAME]


def as_file_name(address: str) -> str:
    """An address without its scheme and secrets, as a part of a name for `state_home`."""
    return _UNFIT_FOR_NAMES.sub("-", without_secrets(address).split("://", 1)[-1]).strip("-")


def _decoded(path: str, given: str, scheme: str, code: str | None) -> str:
    if not path.startswith("/") or "?" in path or "#" in path:
        raise _refused(
            f"{given} is not an absolute path.",
            given,
            f"write {scheme}:///directory/name, without options; %3F and %23 stand for ? and # in a name",
            code,
        )
    decoded = os.fsdecode(urllib.parse.unquote_to_bytes("/" + path.lstrip("/")))
    if "\0" in decoded:
        raise _refused(f"{given} holds a NUL character.", given, "leave %00 out", code)
    return decoded


def _refused(message: str, about: str, next_step: str, code: str | None) -> Invalid:
    return Invalid(message, code=code or "address.refused", about=about, unchanged="everything", next_step=next_step)
