"""Where a sink on a local or mounted directory lies."""

from __future__ import annotations

import os
import re
import urllib.parse

from holdfast.errors import Invalid

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(address: str | os.PathLike[str], *, kind: str) -> str:
    """The absolute path that an address means: a path, or `file:///...`. Nothing is looked at on disk.

    `Invalid` for everything else. A relative path is taken from where the process runs now.
    """
    given = os.fspath(address)
    if not given or "\x00" in given:
        raise _refused(kind, repr(given), "is not a path", "give the path of a directory")
    if not _SCHEME.match(given):
        return os.path.abspath(os.path.expanduser(given))
    scheme = given.partition(":")[0]
    if scheme.lower() != "file":
        shown = urllib.parse.urlsplit(given)._replace(query="", fragment="")
        shown = shown._replace(netloc=shown.netloc.rpartition("@")[2])
        raise _refused(
            kind,
            urllib.parse.urlunsplit(shown),
            f"is not a local path, and a {kind} sink cannot publish on {scheme}:// all at once",
            "give a local or mounted directory, as a path or as file:///...",
        )
    parts = urllib.parse.urlsplit(given)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise _refused(kind, given, "names a host or no absolute path", "write file:/// with three slashes")
    return os.path.abspath(urllib.parse.unquote(parts.path))


def _refused(kind: str, shown: str, why: str, next_step: str) -> Invalid:
    return Invalid(f"{shown} {why}.", code="sink.address", about=shown, unchanged="everything", next_step=next_step)
