"""What SlateDB's errors mean for whoever has to do something about them."""

from __future__ import annotations

from slatedb.uniffi import CloseReason, Error

from holdfast.errors import Corrupt, Fenced, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.projections.pending import closed

SlatedbError = Error
FAILURES = (Error, TimeoutError)
"""What a call may raise."""


def explained(error: BaseException, address: str) -> HoldfastError:
    """The error of our tree, with what to do next."""
    if isinstance(error, Error.Closed) and error.reason == CloseReason.FENCED:
        return Fenced(
            f"{address} was opened by another process since.",
            code="store.fenced",
            about=address,
            unchanged="the store",
            next_step="stop here: the other one has it now",
        )
    if isinstance(error, Error.Closed) and error.reason == CloseReason.CLEAN:
        return closed(address)
    if isinstance(error, Error.Data):
        return Corrupt(
            f"{address} is damaged: {error.message}.",
            code="store.database",
            about=address,
            unchanged="the store",
            next_step="restore it from a copy",
        )
    if isinstance(error, Error.Invalid):
        return Invalid(f"{address}: SlateDB refuses: {error.message}.", code="store.refused", about=address)
    return Unavailable(
        f"{address}: SlateDB says: {_words(error)}.",
        code="store.unavailable",
        about=address,
        unchanged="what was committed before",
        next_step="see whether the object storage answers and what it allows, then try again",
    )


def of_commit(error: BaseException, address: str) -> HoldfastError:
    """Of a commit that SlateDB may have accepted, and did not report durable."""
    found = explained(error, address)
    if isinstance(found, Fenced) or isinstance(error, Error.Invalid):
        return found
    return OutcomeUnknown(
        f"{address}: SlateDB did not say that a commit is durable: {_words(error)}.",
        code="store.commit-unknown",
        about=address,
        unchanged="what was committed before",
        next_step="open the store again and read the stream's version or the projection's position",
    )


def lost(address: str, why: str) -> Unavailable:
    return Unavailable(
        f"{address}: whether an earlier commit is durable is not known ({why}).",
        code="store.lost",
        about=address,
        unchanged="the store",
        next_step="open the store again",
    )


def _words(error: BaseException) -> str:
    return str(getattr(error, "message", "") or ("no answer in time" if isinstance(error, TimeoutError) else error))
