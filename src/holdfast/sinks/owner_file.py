"""`_holdfast.json`: the file that names the pipeline and the sink that a directory belongs to."""

from __future__ import annotations

import os

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import Conflict, Invalid, NotFound, Unavailable, one_line
from holdfast.storage.objects.local import LocalObjects

OWNER_FILE = "_holdfast.json"
OWNER_LIMIT = 1 << 16


class DirectoryOwner(msgspec.Struct, frozen=True):
    """The file's content: the sink that the directory belongs to, and how its epochs are written."""

    pipeline: str
    sink: str
    format: str
    epoch_column: str


def claim(path: str, mine: DirectoryOwner) -> None:
    """Make `mine` the owner of the directory, durably. Fine if it is already. Of two concurrent claims, one succeeds.

    `Invalid` if it belongs to another sink, or has visible files and no owner.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise _refused(f"{path} is not a directory.", path, "sink.not-a-directory", "give the path of a directory")
    owner = _read(path)
    if owner is None:
        _require_no_foreign_files(path)
        with step("sink.claim"):
            owner = _create(path, mine)
    _compare(path, owner, mine)


def is_owned(path: str, mine: DirectoryOwner) -> bool:
    """Whether the directory belongs to `mine`; False if it has no owner yet, `Invalid` if it has another."""
    owner = _read(path)
    if owner is not None:
        _compare(path, owner, mine)
    return owner is not None


def require_owner(path: str, mine: DirectoryOwner) -> None:
    """`Unavailable` if the directory has no owner file (most likely it is not mounted), `Invalid` if it has another."""
    if not is_owned(path, mine):
        raise Unavailable(
            f"{path} has no {OWNER_FILE}: it is not mounted, or was removed, or never prepared.",
            code="sink.not-prepared",
            about=path,
            unchanged="everything",
            next_step="mount it, or prepare the sink if the directory is new",
        )


def _create(path: str, mine: DirectoryOwner) -> DirectoryOwner:
    try:
        LocalObjects(path).create(OWNER_FILE, [msgspec.json.format(msgspec.json.encode(mine))])
    except Conflict:
        return _read(path) or mine
    return mine


def _read(path: str) -> DirectoryOwner | None:
    try:
        body = LocalObjects(path).read(OWNER_FILE, limit=OWNER_LIMIT)
    except NotFound:
        return None
    try:
        return json_decoder(DirectoryOwner).decode(body)
    except msgspec.DecodeError as error:
        raise _refused(
            f"{OWNER_FILE} cannot be decoded ({one_line(error)}), so the owner of the directory is unknown.",
            path,
            "sink.owner-unknown",
            "restore that file, or give the sink another directory",
        ) from error


def _compare(path: str, owner: DirectoryOwner, mine: DirectoryOwner) -> None:
    if (owner.pipeline, owner.sink) != (mine.pipeline, mine.sink):
        raise _refused(
            f"{path} belongs to sink {owner.sink!r} of pipeline {owner.pipeline!r}.",
            path,
            "sink.owned",
            "give this sink a directory of its own",
        )
    if owner != mine:
        raise _refused(
            f"{path} holds {owner.format} with the epoch as {owner.epoch_column!r}, "
            f"not {mine.format} with {mine.epoch_column!r}.",
            path,
            "sink.written-otherwise",
            "keep format and epoch_column as they were, or give the sink a new directory",
        )


def _require_no_foreign_files(path: str) -> None:
    if not os.path.isdir(path):
        return
    foreign = sorted(name for name in os.listdir(path) if not name.startswith(("_", ".")))
    if foreign:
        raise _refused(
            f"{path} has files in it that are not Holdfast's, for example {foreign[0]!r}. "
            "Readers of the epochs would skip them or take them for epochs.",
            path,
            "sink.foreign-files",
            "give the sink an empty or new directory",
        )


def _refused(message: str, path: str, code: str, next_step: str) -> Invalid:
    return Invalid(message, code=code, about=path, unchanged="everything in it", next_step=next_step)
