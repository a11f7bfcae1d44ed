"""What `latest` names, and whether that is what it should name. It is a hint: nothing here is an error."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from holdfast.checkpoints.catalog import Catalog
from holdfast.errors import Corrupt, HoldfastError, NotFound

State = Literal["ok", "missing", "garbage", "unreadable", "dangling", "misplaced", "none"]


class Pointer(msgspec.Struct, frozen=True):
    """The pointer as found. `none`: no pointer and nothing to point at."""

    state: State
    names: int | None
    should_name: int | None
    """The newest checkpoint that is not known to be damaged."""

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in a sentence; None if nothing is."""
        return {
            "ok": None,
            "none": None,
            "missing": f"latest is missing; it should name checkpoint {self.should_name}",
            "garbage": "latest is damaged and names no checkpoint; readers walk the ids instead",
            "unreadable": "latest could not be read; readers walk the ids instead",
            "dangling": f"latest names checkpoint {self.names}, which is not there",
            "misplaced": f"latest names checkpoint {self.names}; it should name {self.should_name}",
        }[self.state]

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state, "names": self.names, "should_name": self.should_name}


def observe(catalog: Catalog, ids: Collection[int], unusable: Collection[int] = ()) -> Pointer:
    """Read `latest` and judge it against the ids there are, less those that are known to be of no use."""
    newest = _newest(ids, unusable)
    try:
        body = catalog.objects.read(catalog.layout.pointer_key, limit=4096)
    except NotFound:
        return Pointer("missing" if ids else "none", None, newest)
    except Corrupt:
        return Pointer("garbage", None, newest)
    except HoldfastError:
        return Pointer("unreadable", None, newest)
    return judge(catalog.layout.pointer_id(body), ids, unusable)


def judge(names: int | None, ids: Collection[int], unusable: Collection[int] = ()) -> Pointer:
    """What a pointer that names this id is worth. Pure."""
    newest = _newest(ids, unusable)
    if names is None:
        return Pointer("garbage", None, newest)
    if names == newest:
        return Pointer("ok", names, newest)
    if names not in set(ids):
        return Pointer("dangling", names, newest)
    return Pointer("ok" if newest is None else "misplaced", names, newest)


def _newest(ids: Collection[int], unusable: Collection[int]) -> int | None:
    return max(set(ids).difference(unusable), default=None)
