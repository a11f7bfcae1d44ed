"""What a forked child inherits and must forget.

The child has copies of its parent's connections, locks, threads' buffers. Anything it did with them, closing included,
would be done to the parent's. So everything that is open registers here how to forget it, and one hook runs in each
child that is forked.
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
        """Called in a child that was forked: have nothing open any more, and do nothing to what the parent has."""


_Function = TypeVar("_Function", bound=Callable[[], object])
_open: weakref.WeakSet[Inherited] = weakref.WeakSet()
_functions: list[Callable[[], object]] = []


def opened(thing: Inherited) -> None:
    """From now on a child forgets it. Held weakly."""
    _open.add(thing)


def closed(thing: Inherited) -> None:
    """A child has nothing to forget any more. Fine for what was never opened."""
    _open.discard(thing)


def in_child(function: _Function) -> _Function:
    """Decorator: call a function of a module in each child, before anything that is open forgets itself."""
    _functions.append(function)
    return function


def leak(thing: object) -> None:
    """Keep something for as long as the process lives: not even the end of the interpreter closes it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def closed_or_forked(address: str, kind: str = "index") -> Invalid:
    """The error for using what is closed, or what only the parent has open. `kind`: an index or a store."""
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
