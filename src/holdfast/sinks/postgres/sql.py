"""Builds the sink's SQL statements; other modules execute them. Names are quoted, values are literals or parameters."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from holdfast.sinks.postgres.table import ATTEMPT, COMMITS, DELETED, CatalogTable, TableName

Winners = list[tuple[int, int]]
"""The task attempts whose rows count, as inclusive ranges."""


class StagedRows(msgspec.Struct, frozen=True):
    """The rows of a staging table that count, and how they go into the target."""

    table: TableName
    target: TableName
    columns: tuple[str, ...]
    key: tuple[str, ...]
    deletes: bool
    winners: Winners


def ranges(attempts: Sequence[int]) -> Winners:
    """The numbers as ranges; few, because the attempts of a job are mostly consecutive."""
    found: Winners = []
    for attempt in sorted(attempts):
        if found and attempt == found[-1][1] + 1:
            found[-1] = (found[-1][0], attempt)
        else:
            found.append((attempt, attempt))
    return found


def create_commits(schema: str) -> Composed:
    return SQL("""
        CREATE TABLE {} (
            pipeline text NOT NULL,
            sink text NOT NULL,
            lineage bigint NOT NULL,
            epoch bigint NOT NULL,
            generation bigint NOT NULL,
            target text NOT NULL,
            row_count bigint NOT NULL,
            committed_at timestamp with time zone NOT NULL DEFAULT now(),
            mark text,
            PRIMARY KEY (pipeline, sink, lineage, epoch)
        )""").format(Identifier(schema, COMMITS))


def add_mark(schema: str) -> Composed:
    """For a table of an earlier release, which has no marks."""
    return SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS mark text").format(Identifier(schema, COMMITS))


def create_target(table: TableName, columns: Sequence[tuple[str, str]], key: Sequence[str]) -> Composed:
    """A table for rows of this shape, one row per key if there is one."""
    parts: list[Composable] = [SQL("{} {}").format(Identifier(name), _raw(written)) for name, written in columns]
    if key:
        parts.append(SQL("PRIMARY KEY ({})").format(_names(key)))
    return SQL("CREATE TABLE {} ({})").format(identifier(table), SQL(", ").join(parts))


def create_staged(table: TableName, catalog: CatalogTable, columns: Sequence[str], deletes: bool) -> Composed:
    """A staging table. It has the target's types and collations, so that both agree on which keys are equal.

    It has none of the target's constraints: which rows count, and which only delete, is known only after copying.

    No autovacuum: the table is dropped soon, and a vacuum would hold a lock on it.
    """
    parts: list[Composable] = []
    for name in columns:
        column = catalog.column(name)
        assert column is not None
        collation = SQL(" COLLATE ") + _raw(column.collation) if column.collation else SQL("")
        parts.append(SQL("{} {}{}").format(Identifier(name), _raw(column.type.written), collation))
    if deletes:
        parts.append(SQL("{} boolean").format(Identifier(DELETED)))
    parts.append(SQL("{} bigint NOT NULL").format(Identifier(ATTEMPT)))
    return SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)").format(
        identifier(table), SQL(", ").join(parts)
    )


def copy_into(table: TableName, columns: Sequence[str]) -> Composed:
    return SQL("COPY {} ({}) FROM STDIN").format(identifier(table), _names([*columns, ATTEMPT]))


def merge(staged: StagedRows) -> list[Composed]:
    """Delete, then insert or update. Ordered by key, so that two pipelines that write the same keys do not deadlock."""
    statements = []
    if staged.deletes:
        same = SQL(" AND ").join(SQL("t.{0} = s.{0}").format(Identifier(name)) for name in staged.key)
        statements.append(
            SQL("DELETE FROM {} t USING {} s WHERE s.{} IS TRUE AND {} AND {}").format(
                identifier(staged.target), identifier(staged.table), Identifier(DELETED), winning(staged.winners), same
            )
        )
    insert = SQL("INSERT INTO {} ({}) SELECT {} FROM {} s WHERE {}").format(
        identifier(staged.target),
        _names(staged.columns),
        _names(staged.columns),
        identifier(staged.table),
        counting(staged),
    )
    if staged.key:
        rest = [name for name in staged.columns if name not in staged.key]
        update = SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(Identifier(name)) for name in rest)
        action = SQL("UPDATE SET ") + update if rest else SQL("NOTHING")
        insert = SQL("{} ORDER BY {} ON CONFLICT ({}) DO {}").format(
            insert, _names(staged.key), _names(staged.key), action
        )
    return [*statements, insert]


def counting(staged: StagedRows) -> Composable:
    """The staged rows to insert: those of winning attempts that do not delete."""
    return kept(staged, winning(staged.winners))


def kept(staged: StagedRows, rows: Composable) -> Composable:
    """Of these rows, those that do not delete."""
    return SQL("s.{} IS NOT TRUE AND {}").format(Identifier(DELETED), rows) if staged.deletes else rows


def winning(winners: Winners) -> Composed:
    """The staged rows that count. A task attempt that failed, or lost to a speculative one, may have left others."""
    text = "{" + ",".join(f"[{first},{last}]" for first, last in winners) + "}"
    return SQL("s.{} <@ {}::int8multirange").format(Identifier(ATTEMPT), Literal(text))


def key_is_null(key: Sequence[str]) -> Composed:
    return SQL("({})").format(SQL(" OR ").join(SQL("s.{} IS NULL").format(Identifier(name)) for name in key))


def survey(staged: StagedRows, conditions: Sequence[Composable], lengths: Sequence[str]) -> Composed:
    """Count the rows, those that meet each condition, and the longest value of the indexed columns."""
    counts: list[Composable] = [SQL("count(*)")]
    counts += [SQL("count(*) FILTER (WHERE {})").format(condition) for condition in conditions]
    longest: list[Composable] = [SQL("coalesce(octet_length(s.{}::text), 0)").format(Identifier(n)) for n in lengths]
    counts.append(SQL("coalesce(max({}), 0)").format(SQL(" + ").join(longest or [SQL("0")])))
    return SQL("SELECT {} FROM {} s WHERE {}").format(
        SQL(", ").join(counts), identifier(staged.table), winning(staged.winners)
    )


def example(staged: StagedRows, columns: Sequence[str], condition: Composable) -> Composed:
    shown = SQL(", ").join(SQL("left(s.{}::text, 81)").format(Identifier(name)) for name in columns)
    return SQL("SELECT {} FROM {} s WHERE {} AND {} LIMIT 1").format(
        shown, identifier(staged.table), winning(staged.winners), condition
    )


def repeated_key(staged: StagedRows) -> Composed:
    """One key that several rows have, and how many."""
    shown = SQL(", ").join(SQL("left(s.{}::text, 81)").format(Identifier(name)) for name in staged.key)
    names = SQL(", ").join(SQL("s.{}").format(Identifier(name)) for name in staged.key)
    return SQL("SELECT {}, count(*) FROM {} s WHERE {} GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(
        shown, identifier(staged.table), winning(staged.winners), names
    )


def identifier(table: TableName) -> Identifier:
    return Identifier(table.name) if table.schema is None else Identifier(table.schema, table.name)


def expression(text: str) -> Composable:
    """SQL text from the catalog, such as a constraint's expression."""
    return _raw(f"({text})")


def _names(names: Sequence[str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))


def _raw(text: str) -> Composable:
    return SQL(text)  # from our own tables or from the catalog
