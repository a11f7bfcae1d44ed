"""Checks of object keys. A key that passes can never point outside the store."""

from __future__ import annotations

import re

from holdfast.errors import Invalid
from holdfast.storage.files.disk import is_temporary

_PLAIN = re.compile(
    r"(?=.{1,200}\Z)[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*"
)  # most keys pass this one match
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 200  # file systems stop at 255; our temporary names need the rest


def check_key(key: str, *, temporary: bool = False) -> str:
    """Return `key` if it is safe in every object store, else raise `Invalid`. Temporary names need `temporary`."""
    problem = _problem(key)
    if not problem and not temporary and is_temporary(key.rpartition("/")[2]):
        problem = "such names are for unfinished writes"
    if problem:
        shown = key if len(key) <= 80 else key[:77] + "..."
        raise Invalid(
            f"The name {shown!r} cannot be an object key: {problem}.",
            code="key.refused",
            about=repr(shown),
            unchanged="the store",
        )
    return key


def is_safe(key: str) -> bool:
    """Whether a key is safe in every object store. Temporary names are."""
    return _problem(key) is None


def check_prefix(prefix: str) -> str:
    """Return a folder prefix, empty or ending in `/`, if every key below it would be safe."""
    if prefix:
        check_key(prefix.removesuffix("/"))
        return prefix if prefix.endswith("/") else prefix + "/"
    return prefix


def _problem(key: str) -> str | None:
    if _PLAIN.fullmatch(key):
        return None
    if not key:
        return "it is empty"
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_KEY_BYTES:
        return f"it is longer than {MAX_KEY_BYTES} bytes"
    if _CONTROL.search(key):
        return "it holds control characters"
    if "\\" in key or "//" in key or key.startswith("/") or key.endswith("/"):
        return "it holds a backslash or an empty part"
    for part in key.split("/"):
        if part in (".", ".."):
            return f"it holds {part!r}"
        if len(part.encode()) > MAX_SEGMENT_BYTES:
            return f"a part of it is longer than {MAX_SEGMENT_BYTES} bytes"
    return None
