"""Every address is parsed here: what is local, and which path it means.

| form | means |
|---|---|
| `path`, `/path`, `~/path` | a path; a relative one starts from where the process runs now |
| `file:///path`, `file://localhost/path`, `file:/path` (as Spark writes it) | an absolute path, percent-encoded |
| `sqlite:///path`, `rocksdb:///path` | a key-value store at an absolute path, percent-encoded (`kv_path`) |
| `scheme://...` | a service |

Schemes are taken in any case. Nothing here looks at a disk.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import Path

from holdfast.errors import Invalid

CLOUD_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Object storage."""

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
    """Whether it is a path or a `file:` address."""
    return scheme_of(os.fspath(address)) == "file"


def local_path(address: str | os.PathLike[str], *, code: str | None = None) -> str:
    """The absolute path that a local address means; `Invalid` for every other address.

    `code` is the code of that error; without it, `address.host` for an address that names a host, else
    `address.refused`.
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
    """The absolute path in `sqlite:///path`, `rocksdb:///path` or `file:///path`; `sqlite:////path` is the same."""
    scheme, _, path = address.partition("://")
    if not path.strip("/"):
        path = ""  # the root of the file system is no store
    return _decoded(path, address, scheme.lower(), code)


def kv_address(scheme: str, path: str) -> str:
    """The address of a key-value store at an absolute path, which `kv_path` reads back; any file name can be in it."""
    return f"{scheme}://{urllib.parse.quote(os.fsencode(path))}"


def without_secrets(address: str) -> str:
    """The address as it may be shown: without user, password, query and fragment. A path is left as it is."""
    scheme, separator, rest = address.partition("://")
    if not separator or not _SCHEME.match(address):
        return address
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def state_home(kind: str, name: str) -> Path:
    """Where this user's machine keeps state of one kind, such as `workdirs`, under a name. Nothing is made there.

    Characters that do not belong in file names become `-`, so that two names can mean the same path.
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
