"""Connections of the sink: settings of its transactions, and psycopg's errors as errors of the sink.

Executors import this module: nothing here needs Spark, and psycopg is imported by the functions that need it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from holdfast.base import postgres
from holdfast.base.postgres import message_of, server_name, trouble_of
from holdfast.errors import Corrupt, HoldfastError, Invalid, Unavailable
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    import psycopg

    from holdfast.base.postgres import Connection

SERVER_KEEPALIVES = f"SELECT {postgres.KEEPALIVES}"
IDLE_TIMEOUT = postgres.IDLE_TIMEOUT
NO_TIME_LIMIT = """
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"""
"""For this transaction, no time limit of the role or the database: an epoch that is decided has to be committed, and
the next attempt would take as long. Servers before PostgreSQL 17 have only the first of the two settings."""


@contextlib.contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """A connection with an open transaction, which is rolled back unless it is committed before the block ends."""
    import psycopg

    try:
        connection = postgres.connect(dsn)
    except psycopg.Error as error:
        raise Unavailable(
            f"PostgreSQL does not answer: {message_of(error)}",
            about=server_name(dsn),
            next_step="check that the server runs, and that host, user and password are right; then try again",
        ) from None
    try:
        yield connection
    finally:
        connection.close()


def release_locks_if_silent(connection: Connection) -> None:
    """For this transaction, the server ends the session of a driver that is frozen, or unreachable."""
    connection.execute(postgres.RELEASE_IF_SILENT, [IDLE_TIMEOUT])


def explained(
    error: psycopg.Error, doing: str, about: str, unchanged: str | None = None, repair: str | None = None
) -> HoldfastError:
    """The `HoldfastError` for an error of psycopg, with the next step. Never quotes a row.

    `repair` is the next step if the rows or the table are at fault.
    """
    trouble, message = trouble_of(error), message_of(error)
    if trouble == "unavailable":
        return Unavailable(f"PostgreSQL failed while {doing}: {message}", about=about, unchanged=unchanged)
    if trouble == "denied":
        return Invalid(
            f"PostgreSQL denies {doing}: {message}",
            code="sink.denied",
            about=about,
            unchanged=unchanged,
            next_step="let the role read and write the target and holdfast_commits, and create tables in their schema: "
            "GRANT SELECT, INSERT, UPDATE, DELETE ON the tables and GRANT USAGE, CREATE ON SCHEMA to it",
        )
    if trouble == "damaged":
        return Corrupt(f"PostgreSQL reports damage while {doing}: {message}", about=about, unchanged=unchanged)
    if trouble == "data":
        return RowsRefused(
            f"PostgreSQL refuses rows while {doing}: {message}", about=about, unchanged=unchanged, next_step=repair
        )
    return Invalid(
        f"PostgreSQL refuses {doing}: {message}",
        about=about,
        unchanged=unchanged,
        next_step=repair or "if the table was changed since the pipeline started, start the pipeline again",
    )


def translated(
    doing: str, about: str, unchanged: str | None = None, repair: str | None = None
) -> AbstractContextManager[None]:
    """In this block, raise `explained` errors instead of psycopg's, whose texts may quote rows."""
    return postgres.translated(lambda error: explained(error, doing, about, unchanged, repair))


def column_in_copy(error: psycopg.Error, columns: list[str]) -> str | None:
    """The column whose value COPY refused, if the error names it. The error text depends on the server's language."""
    found = re.search(r"^COPY [^,]+, \S+ \d+, \S+ (.+?)(?:: |$)", error.diag.context or "", re.DOTALL | re.MULTILINE)
    return next((name for name in columns if found and found[1] == name), error.diag.column_name)
