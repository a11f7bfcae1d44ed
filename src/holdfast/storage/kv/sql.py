"""Which SQL statements a projection's handler may run in the transaction of its batch."""

from __future__ import annotations

import functools
import re

from holdfast.errors import Invalid

# The first word of a statement, after comments.
_TRANSACTION_CONTROL = re.compile(
    r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(?:BEGIN|START|COMMIT|END|ROLLBACK|ABORT|PREPARE\s+TRANSACTION|SAVEPOINT|RELEASE|ATTACH|DETACH)\b",
    re.S | re.I,
)


@functools.lru_cache(1024)
def _ends_transactions(statement: str) -> bool:
    return _TRANSACTION_CONTROL.match(statement) is not None


def check_statement(statement: str, address: str) -> None:
    """`Invalid` for a statement that begins or ends a transaction."""
    if _ends_transactions(statement):
        raise ended_transaction(f"{statement.strip()[:80]!r} is not allowed in a handler", address)


def ended_transaction(why: str, address: str) -> Invalid:
    return Invalid(
        f"The transaction of a batch begins and ends with the batch: {why}.",
        code="projection.sql-transaction",
        about=address,
        unchanged="the read model and the cursors",
        next_step="let statements fail (INSERT OR IGNORE, ON CONFLICT) without ending the transaction",
    )
