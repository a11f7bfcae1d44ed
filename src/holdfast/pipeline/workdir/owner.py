"""Which pipeline a workdir belongs to, written into the workdir itself."""

from __future__ import annotations

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.storage.files.directory import Directory

OWNER_FILE = ".holdfast.json"
"""Hidden, so that Spark, which wants an empty directory to begin with, does not see it."""

NEW_OWNER_FILE = f"{OWNER_FILE}.new"


class WorkdirOwner(msgspec.Struct, frozen=True):
    """A pipeline, and the store that it keeps its checkpoints in."""

    pipeline: str
    store: str


def read_owner(directory: Directory) -> WorkdirOwner | None:
    """The owner of a directory; None if it has none, or if its file cannot be read."""
    try:
        return json_decoder(WorkdirOwner).decode(directory.read(OWNER_FILE))
    except (OSError, msgspec.MsgspecError):
        return None


def write_owner(directory: Directory, owner: WorkdirOwner) -> None:
    """Write the owner down, whole or not at all: a workdir with half a file would have no owner."""
    directory.write(OWNER_FILE, msgspec.json.encode(owner))
