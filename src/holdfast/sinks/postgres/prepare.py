"""`prepare`: check that the target exists and fits, and that a commit may run every statement. No data moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.base.steps import step
from holdfast.errors import Corrupt, Invalid
from holdfast.sinks.postgres import staging_table
from holdfast.sinks.postgres.commit import record, remove_old_commits
from holdfast.sinks.postgres.compatibility import check_frame, check_table, new_table_columns
from holdfast.sinks.postgres.connection import connected, release_locks_if_silent, translated
from holdfast.sinks.postgres.sql import StagedRows, add_mark, create_commits, create_target, merge
from holdfast.sinks.postgres.table import COMMITS, CatalogTable, TableName, read_table, schema_of
from holdfast.sinks.postgres.target import PostgresTarget, RowKey
from holdfast.sinks.sink import Delivery

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.base.postgres import Connection

_DDL_LOCK = 0x686F6C6466617374  # "holdfast": pipelines that start at once create their tables one after the other
_OLDEST = 140000  # PostgreSQL 14, the first with multiranges


def prepare(target: PostgresTarget, schema: StructType, delivery: Delivery) -> None:
    """Create what is missing, refuse what does not fit, rehearse a commit; all in one transaction."""
    check_frame(schema, target.row_key)
    with connected(target.dsn) as connection, translated("preparing the target", target.where, "the target"):
        if connection.info.server_version < _OLDEST:
            raise Invalid("The server is older than PostgreSQL 14, the oldest one supported.", about=target.where)
        with step("postgres.prepare", table=target.table):
            release_locks_if_silent(connection)
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_DDL_LOCK])
            found = read_table(connection, target.table)
            catalog = found or _create_target(connection, target, schema)
            check_table(catalog, schema, target.row_key)
            _ensure_commits(connection, catalog.schema)
            _check_same_target(connection, catalog, delivery, is_new=found is None)
            _rehearse(connection, catalog, schema, target.row_key, delivery)
            connection.commit()


def _create_target(connection: Connection, target: PostgresTarget, schema: StructType) -> CatalogTable:
    where = schema_of(connection, target.table)
    if where is None:
        name = target.table.schema or "public"
        raise Invalid(
            f"There is no schema {name!r} to create the table in.",
            about=target.where,
            next_step=f"CREATE SCHEMA {TableName(None, name)}, or name another one",
        )
    table = TableName(where, target.table.name)
    connection.execute(create_target(table, new_table_columns(schema, target.row_key), target.row_key.columns))
    catalog = read_table(connection, table)
    assert catalog is not None
    return catalog


def _ensure_commits(connection: Connection, schema: str) -> None:
    found = read_table(connection, TableName(schema, COMMITS))
    if found is None:
        connection.execute(create_commits(schema))
    elif found.column("mark") is None:
        statement = add_mark(schema)
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            raise Invalid(
                "An earlier release made the table, and the role cannot add a column because it does not own it.",
                code="sink.denied",
                about=str(found.table),
                unchanged="the target",
                next_step=f"run {statement.as_string(None)} as its owner",
            ) from None


def _check_same_target(connection: Connection, catalog: CatalogTable, delivery: Delivery, *, is_new: bool) -> None:
    """Refuse to continue a lineage in another table, or in one that was dropped and has just been created again.

    The commit rows would count the earlier epochs as delivered, but the table would not have them.
    """
    query = SQL(
        "SELECT target, epoch FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s ORDER BY epoch DESC LIMIT 1"
    ).format(Identifier(catalog.schema, COMMITS))
    found = connection.execute(query, [delivery.pipeline, delivery.sink, delivery.lineage]).fetchone()
    if found is None:
        return
    if found[0] != str(catalog.table):
        raise Invalid(
            f"Pipeline {delivery.pipeline!r} has written to {found[0]} as sink {delivery.sink!r} up to epoch "
            f"{found[1]}, but would now continue in {catalog.table}.",
            about=str(catalog.table),
            unchanged="both tables",
            next_step="give the sink another name, or go back to that table; "
            f"if the table was renamed, UPDATE {catalog.schema}.{COMMITS} SET target = … for this pipeline and sink",
        )
    if is_new:
        raise Corrupt(
            f"The table is gone, though epoch {found[1]} of pipeline {delivery.pipeline!r} was committed to it as "
            f"sink {delivery.sink!r}: the rows it had would be missing from now on.",
            code="sink.set-back",
            about=str(catalog.table),
            unchanged="everything; the table was not created again",
            next_step="restore the table, or its name; to go on without what it had, delete the rows of this pipeline "
            f"and sink from {TableName(catalog.schema, COMMITS)}, and start with on_change='accept'",
        )


def _rehearse(
    connection: Connection, catalog: CatalogTable, schema: StructType, row_key: RowKey, delivery: Delivery
) -> None:
    """Run every statement of staging and committing on no rows, then roll back."""
    columns = tuple(field.name for field in schema.fields if field.name != row_key.delete)
    deletes = row_key.delete is not None
    with connection.transaction(force_rollback=True):
        staging = staging_table.create(connection, catalog, columns, deletes, delivery, "rehearsal")
        record(connection, catalog.table, delivery, rows=0, mark=None)
        for statement in merge(StagedRows(staging, catalog.table, columns, row_key.columns, deletes, [])):
            connection.execute(statement)
        remove_old_commits(connection, catalog.schema, delivery)
        staging_table.drop(connection, staging)
