"""What `latest` names, and whether that is what it should name. It is a hint: nothing here is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.checkpoints.catalog import Catalog
from holdfast.errors import Corrupt, HoldfastError, NotFound

State = Literal["ok", "missing", "garbage", "unreadable", "dangling", "behind", "none"]


class Pointer(msgspec.Struct, frozen=True):
    """The pointer as found. `none`: no pointer and nothing to point at."""

    state: State
    names: int | None
    newest: int | None

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in a sentence; None if nothing is."""
        return {
            "ok": None,
            "none": None,
            "missing": f"latest is missing; the newest checkpoint is {self.newest}",
            "garbage": "latest is damaged and names no checkpoint; readers walk the ids instead",
            "unreadable": "latest could not be read; readers walk the ids instead",
            "dangling": f"latest names checkpoint {self.names}, which is not there",
            "behind": f"latest names checkpoint {self.names}, but the newest is {self.newest}",
        }[self.state]

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state, "names": self.names, "newest": self.newest}


def observe(catalog: Catalog, ids: Sequence[int]) -> Pointer:
    """Read `latest` and judge it against the ids there are."""
    newest = ids[-1] if ids else None
    try:
        body = catalog.objects.read(catalog.layout.pointer_key, limit=4096)
    except NotFound:
        return Pointer("missing" if ids else "none", None, newest)
    except Corrupt:
        return Pointer("garbage", None, newest)
    except HoldfastError:
        return Pointer("unreadable", None, newest)
    return judge(catalog.layout.pointer_id(body), ids)


def judge(names: int | None, ids: Sequence[int]) -> Pointer:
    """What a pointer that names this id is worth, given the ids there are, ascending. Pure."""
    newest = ids[-1] if ids else None
    if names is None:
        return Pointer("garbage", None, newest)
    if names == newest:
        return Pointer("ok", names, newest)
    return Pointer("behind" if names in set(ids) else "dangling", names, newest)
