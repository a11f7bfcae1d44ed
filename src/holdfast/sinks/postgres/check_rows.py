"""Checks, before an epoch is decided, that the target will take its staged rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg.sql import SQL, Composable, Identifier

from holdfast.base.postgres import message_of
from holdfast.base.shortened import shortened
from holdfast.errors import Unavailable
from holdfast.sinks.postgres.compatibility import indexed, needs_trial
from holdfast.sinks.postgres.connection import explained
from holdfast.sinks.postgres.sql import (
    StagedRows,
    example,
    expression,
    kept,
    key_is_null,
    merge,
    repeated_key,
    survey,
)
from holdfast.sinks.postgres.table import DELETED, CatalogTable
from holdfast.sinks.postgres.target import RowKey
from holdfast.sinks.sink import RowsRefused

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

UNCHANGED = "the target; nothing of this epoch is visible"
_LONG = 2000  # bytes: below this, no index entry is too long for a page
_SHOWN = 80  # characters of a value in an example


class RowCondition(msgspec.Struct, frozen=True):
    """A reason to refuse staged rows: the condition `rows`. An example row is shown by `columns`."""

    rows: Composable
    words: str
    columns: tuple[str, ...]


def conditions(catalog: CatalogTable, staged: StagedRows) -> list[RowCondition]:
    """The reasons that a query on the staged rows can find. Rows that delete are checked for their key only."""
    found = []
    if staged.key:
        found.append(RowCondition(key_is_null(staged.key), "a key column is null", ()))
    written = [column for column in catalog.columns if column.name in staged.columns]
    numbers = {column.number for column in written}
    for column in written:
        if column.required and column.name not in staged.key:
            rows = SQL("s.{} IS NULL").format(Identifier(column.name))
            found.append(
                RowCondition(kept(staged, rows), f"column {column.name!r}, which is NOT NULL, is null", staged.key)
            )
    for check in catalog.checks:
        if check.columns <= numbers:
            concerned = tuple(column.name for column in written if column.number in check.columns)
            words = f"the constraint {check.name!r} {expression_text(check.expression)} is not met"
            rows = SQL("{} IS FALSE").format(expression(check.expression))
            found.append(RowCondition(kept(staged, rows), words, staged.key or concerned))
    return found


def expression_text(text: str) -> str:
    return text if text.startswith("(") else f"({text})"


def check_staged(connection: Connection, catalog: CatalogTable, staged: StagedRows, expected: int) -> None:
    """Raise `RowsRefused` if the target would not take the rows. Changes nothing.

    Reads the staged rows once, and their keys once more if there is a key. If the target has foreign keys, triggers and
    the like, runs the whole merge in a transaction that is rolled back.
    """
    about = str(staged.target)
    reasons = conditions(catalog, staged)
    lengths = [column.name for column in indexed(catalog, set(staged.columns))]
    try:
        found = connection.execute(survey(staged, [reason.rows for reason in reasons], lengths)).fetchone()
    except psycopg.Error as error:
        raise explained(error, "checking the staged rows", about, UNCHANGED) from None
    assert found is not None
    total, *counts, longest = found
    if total != expected:
        raise Unavailable(
            f"The staging table has {total} rows of the {expected} copied into it: another client changed it.",
            about=str(staged.table),
            unchanged=UNCHANGED,
        )
    for reason, count in zip(reasons, counts, strict=True):
        if count:
            shown = _example(connection, staged, reason)
            raise RowsRefused(
                f"In {count} of {total} rows {reason.words}{shown}.",
                about=about,
                unchanged=UNCHANGED,
                next_step="filter or repair such rows in the pipeline, or change the target",
            )
    if staged.key:
        _check_repeated(connection, staged)
    row_key = RowKey(staged.key, DELETED if staged.deletes else None)
    if needs_trial(catalog, set(staged.columns), row_key) or longest > _LONG:
        _try(connection, catalog, staged)


def _example(connection: Connection, staged: StagedRows, reason: RowCondition) -> str:
    if not reason.columns:
        return ""
    found = connection.execute(example(staged, reason.columns, reason.rows)).fetchone()
    return "" if found is None else f", for example in the row with {_values(reason.columns, found)}"


def _check_repeated(connection: Connection, staged: StagedRows) -> None:
    found = connection.execute(repeated_key(staged)).fetchone()
    if found is not None:
        *key, count = found
        raise RowsRefused(
            f"{count} rows have the same key, {_values(staged.key, key)}, and it is undefined which one to keep",
            about=str(staged.target),
            unchanged=UNCHANGED,
            next_step="leave one row per key in each epoch, for instance the newest: dropDuplicates or a window",
        )


def _try(connection: Connection, catalog: CatalogTable, staged: StagedRows) -> None:
    """Merge, check deferred constraints, and roll back."""
    try:
        with connection.transaction(force_rollback=True):
            for statement in merge(staged):
                connection.execute(statement)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.Error as error:
        if catalog.row_security and error.sqlstate == "42501":
            raise RowsRefused(
                f"Row security refuses rows: {message_of(error)}", about=str(staged.target), unchanged=UNCHANGED
            ) from None
        refused = explained(error, "trying out the merge", str(staged.target), UNCHANGED)
        raise refused from None


def _values(names: Sequence[str], values: Sequence[Any]) -> str:
    shown = ("null" if value is None else shortened(value, _SHOWN) for value in values)
    return ", ".join(f"{name} = {value}" for name, value in zip(names, shown, strict=True))
