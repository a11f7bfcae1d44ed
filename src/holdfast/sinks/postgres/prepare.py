"""Before any data moves: the target is there and fits, and everything a commit will do is permitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.base.steps import step
from holdfast.errors import Corrupt, Invalid
from holdfast.sinks.postgres import staging_table
from holdfast.sinks.postgres.commit import record
from holdfast.sinks.postgres.compatibility import check_frame, check_target, new_table_columns
from holdfast.sinks.postgres.connecting import Connection, connected, let_go_if_silent, translated
from holdfast.sinks.postgres.sql import Staged, add_mark, create_commits, create_target, merge
from holdfast.sinks.postgres.table import COMMITS, TableName, Target, home, read_target
from holdfast.sinks.postgres.target import Place, Shape
from holdfast.sinks.sink import Delivery

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_DDL_LOCK = 0x686F6C6466617374  # "holdfast": two pipelines that start at once make their tables one after the other
_OLDEST = 140000  # the first with multiranges


def prepare(place: Place, schema: StructType, delivery: Delivery) -> None:
    """Make what is missing, refuse what does not fit, rehearse the rest; all in one transaction."""
    check_frame(schema, place.shape)
    with connected(place.dsn) as connection, translated("preparing the target", place.where, "the target"):
        if connection.info.server_version < _OLDEST:
            raise Invalid("The server is older than PostgreSQL 14, the oldest one supported.", about=place.where)
        with step("postgres.prepare", table=place.table):
            let_go_if_silent(connection)
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_DDL_LOCK])
            found = read_target(connection, place.table)
            target = found or _create_target(connection, place, schema)
            check_target(target, schema, place.shape)
            _ensure_commits(connection, target.schema)
            _check_same_target(connection, target, delivery, is_new=found is None)
            _rehearse(connection, target, schema, place.shape, delivery)
            connection.commit()


def _create_target(connection: Connection, place: Place, schema: StructType) -> Target:
    where = home(connection, place.table)
    if where is None:
        name = place.table.schema or "public"
        raise Invalid(
            f"There is no schema {name!r} to make the table in.",
            about=place.where,
            next_step=f"CREATE SCHEMA {TableName(None, name)}, or name another one",
        )
    table = TableName(where, place.table.name)
    connection.execute(create_target(table, new_table_columns(schema, place.shape), place.shape.key))
    target = read_target(connection, table)
    assert target is not None
    return target


def _ensure_commits(connection: Connection, schema: str) -> None:
    found = read_target(connection, TableName(schema, COMMITS))
    if found is None:
        connection.execute(create_commits(schema))
    elif found.column("mark") is None:
        statement = add_mark(schema)
        try:
            connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            raise Invalid(
                "The table is of an earlier release, and the role does not own it and cannot add a column.",
                code="sink.denied",
                about=str(found.table),
                unchanged="the target",
                next_step=f"run {statement.as_string(None)} as its owner",
            ) from None


def _check_same_target(connection: Connection, target: Target, delivery: Delivery, *, is_new: bool) -> None:
    """Epochs of one lineage must not be split over two tables: the earlier ones would count as delivered here.

    So they would in a table that was dropped, and has just been made anew.
    """
    query = SQL(
        "SELECT target, epoch FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s ORDER BY epoch DESC LIMIT 1"
    ).format(Identifier(target.schema, COMMITS))
    found = connection.execute(query, [delivery.pipeline, delivery.sink, delivery.lineage]).fetchone()
    if found is None:
        return
    if found[0] != str(target.table):
        raise Invalid(
            f"Pipeline {delivery.pipeline!r} has written to {found[0]} as sink {delivery.sink!r} up to epoch "
            f"{found[1]}, and would now go on in {target.table}.",
            about=str(target.table),
            unchanged="both tables",
            next_step="give the sink another name, or go back to that table; "
            f"if the table was renamed, UPDATE {target.schema}.{COMMITS} SET target = … for this pipeline and sink",
        )
    if is_new:
        raise Corrupt(
            f"The table is gone, though epoch {found[1]} of pipeline {delivery.pipeline!r} was committed to it as "
            f"sink {delivery.sink!r}: what it had would be missing without a word.",
            code="sink.set-back",
            about=str(target.table),
            unchanged="everything; the table was not made anew",
            next_step="restore the table, or its name; to go on without what it had, delete the rows of this pipeline "
            f"and sink from {TableName(target.schema, COMMITS)}, and start with on_change='accept'",
        )


def _rehearse(connection: Connection, target: Target, schema: StructType, shape: Shape, delivery: Delivery) -> None:
    """Everything that staging and committing do, on no rows; then take it back."""
    columns = tuple(field.name for field in schema.fields if field.name != shape.delete)
    deletes = shape.delete is not None
    with connection.transaction(force_rollback=True):
        table = staging_table.create(connection, target, columns, deletes, delivery, "rehearsal")
        record(connection, target.table, delivery, rows=0, mark=None)
        for statement in merge(Staged(table, target.table, columns, shape.key, deletes, [])):
            connection.execute(statement)
        staging_table.drop(connection, table)
