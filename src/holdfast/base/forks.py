"""A registry of open resources that a forked child must drop without closing.

The child has copies of its parent's connections, locks and threads' buffers. Using them, even closing them, would
affect the parent's. So every open resource registers here how to forget it, and one hook runs in each forked child.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.errors import Invalid


class Inherited(Protocol):
    def forget_in_child(self) -> None:
        """Called in a forked child: drop every open resource without touching the parent's."""


_Function = TypeVar("_Function", bound=Callable[[], object])
_open: weakref.WeakSet[Inherited] = weakref.WeakSet()
_functions: list[Callable[[], object]] = []


def opened(thing: Inherited) -> None:
    """Register a resource: each child forked from now on forgets it. Held weakly."""
    _open.add(thing)


def closed(thing: Inherited) -> None:
    """Unregister a resource. Does nothing for one that was never registered."""
    _open.discard(thing)


def in_child(function: _Function) -> _Function:
    """Decorator: call this module-level function in each forked child, before the open resources are forgotten."""
    _functions.append(function)
    return function


def leak(thing: object) -> None:
    """Keep an object for as long as the process lives: not even the interpreter's shutdown closes it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def closed_or_forked(address: str, kind: str = "index") -> Invalid:
    """The error for using an index or a store (`kind`) that is closed, or that only the parent process has open."""
    return Invalid(
        f"{address} is closed, or was opened by the process that forked this one.",
        code=f"{kind}.closed",
        about=address,
        unchanged=f"the {kind}",
        next_step="open it again, in the process that uses it",
    )


def _forget_all() -> None:
    errors = []
    for forget in [*_functions, *(thing.forget_in_child for thing in list(_open))]:
        try:
            forget()
        except Exception as error:  # the others must still be forgotten
            errors.append(error)
    if errors:
        raise errors[0]


os.register_at_fork(after_in_child=_forget_all)
