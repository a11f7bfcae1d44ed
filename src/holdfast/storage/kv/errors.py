"""Errors that several backends raise. Their texts depend on the kind of store: an index, or a store of events."""

from __future__ import annotations

import contextlib

from holdfast.errors import Conflict, Corrupt, HoldfastError, Invalid, NotFound
from holdfast.storage.files import disk
from holdfast.storage.kv.store import Kind


def a(kind: Kind) -> str:
    return "an index" if kind == "index" else "a store"


def nothing_applied(kind: Kind) -> str:
    work = "session" if kind == "index" else "transaction"
    return f"the {kind}; nothing of this {work} was applied"


def disk_errors(kind: Kind, address: str) -> contextlib.AbstractContextManager[None]:
    """Raise `Unavailable`, saying that the store cannot be opened, for an `OSError` in this block."""
    return disk.disk_errors(
        f"{address} cannot be opened", code=f"{kind}.disk", about=address, unchanged=f"the {kind}", then="open it again"
    )


def closed(kind: Kind, address: str) -> Invalid:
    return Invalid(
        f"{address} is closed, or was opened by the process that forked this one.",
        code=f"{kind}.closed",
        about=address,
        unchanged=f"the {kind}",
        next_step="open it again, in the process that uses it",
    )


def not_there(kind: Kind, address: str) -> NotFound:
    """The error for a read-only opening that finds no store, and creates none."""
    is_index = kind == "index"
    return NotFound(
        f"There is no {'index' if is_index else 'store of events and projections'} at {address}.",
        code=f"{kind}.none",
        about=address,
        unchanged="everything: nothing is created for reading",
        next_step="check the address; "
        + (
            "a query makes its index when it first commits"
            if is_index
            else "open_projections makes a store when it is first opened"
        ),
    )


def read_only(kind: Kind, address: str) -> Invalid:
    return Invalid(
        f"{address} was opened read-only.",
        code=f"{kind}.read-only",
        about=address,
        unchanged=f"the {kind}",
        next_step="open it without read_only=True",
    )


def newer(kind: Kind, address: str, why: str) -> Invalid:
    return Invalid(
        f"{address} was written by a newer release of Holdfast: {why}.",
        code=f"{kind}.newer",
        about=address,
        unchanged=f"the {kind}",
        next_step="open it with that release, or install it here",
    )


def corrupt(kind: Kind, address: str, what: str, why: str) -> Corrupt:
    """The error for a damaged record of Holdfast."""
    start_over = ", or empty it with index.reset() and let the sources start over" if kind == "index" else ""
    return Corrupt(
        f"{address}: {what} is damaged: {why.rstrip('.')}.",
        code=f"{kind}.record",
        about=address,
        unchanged=f"the {kind}",
        next_step=f"restore the {kind} from a copy{start_over}",
    )


def in_use(kind: Kind, address: str) -> Conflict:
    return Conflict(
        f"{address} is open in this process already.",
        code=f"{kind}.in-use",
        about=address,
        unchanged=f"the {kind}",
        next_step="close the other one first, or use another name",
    )


def too_large(kind: Kind, limit: int, address: str) -> HoldfastError:
    work, article = ("session", "an") if kind == "index" else ("transaction", "a")
    return Invalid(
        f"The {work} holds more than {limit >> 20} MiB, and {article} {kind} of this kind keeps a {work} in memory "
        "until it is committed.",
        code=f"{kind}.{work}-too-large",
        about=address,
        unchanged=nothing_applied(kind),
        next_step="make epochs smaller, with maxOffsetsPerTrigger or maxFilesPerTrigger, or commit more often",
    )


def long_key(kind: Kind, said: str, limit: int, address: str) -> Invalid:
    names = "" if kind == "index" else ", which has the names of a stream or a projection,"
    return Invalid(
        f"A key{names} is too long: PostgreSQL takes {limit} bytes, and more only of what it can compress: {said}",
        code=f"{kind}.key-too-long",
        about=address,
        unchanged=nothing_applied(kind),
        next_step="use a shorter name; or a store on another backend, where names may have 20,000 bytes and more",
    )


def nested(kind: Kind, address: str) -> Invalid:
    return Invalid(
        f"{address}: this thread has a transaction open, and a second one would wait for it for ever.",
        code="transaction.nested",
        about=address,
        unchanged=f"the {kind}",
        next_step="append from outside the handler: one that writes by SQL holds the transaction of its batch",
    )


def over(kind: Kind, address: str) -> Invalid:
    return Invalid(
        f"{address}: this transaction has ended.",
        code="transaction.over",
        about=address,
        unchanged=f"the {kind}",
        next_step="begin a new one",
    )
