"""What a forked child inherits of an open index, and must leave alone.

It has copies of the parent's connections, locks and buffers. Anything it did with them, closing included, would be done
to the parent's: so whatever is open says here how to forget it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

from holdfast.errors import Invalid


class Inherited(Protocol):
    def forget_in_child(self) -> None:
        """Called in a child that was forked: have nothing open any more, and do nothing to what the parent has."""


_open: weakref.WeakSet[Inherited] = weakref.WeakSet()


def opened(thing: Inherited) -> None:
    _open.add(thing)


def closed(thing: Inherited) -> None:
    """Fine for what was never opened."""
    _open.discard(thing)


def leak(thing: object) -> None:
    """Keep something for as long as the process lives: not even the end of the interpreter closes it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def closed_or_forked(address: str) -> Invalid:
    """The error for whoever uses what is closed, or what only the parent has open."""
    return Invalid(
        f"{address} is closed, or was opened by the process that forked this one.",
        code="index.closed",
        about=address,
        unchanged="the index",
        next_step="open it again, in the process that uses it",
    )


def _forget_all() -> None:
    for thing in list(_open):
        thing.forget_in_child()


os.register_at_fork(after_in_child=_forget_all)
