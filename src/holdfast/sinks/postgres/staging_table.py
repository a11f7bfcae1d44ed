"""Staging tables: made with a label, found again by it, and dropped.

The label is the table's comment, written in the transaction that makes the table and gone with it: no crash leaves a
staging table that nobody can attribute, or an entry for a table that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import psycopg
from psycopg.sql import SQL, Literal

from holdfast.base.codec import json_decoder
from holdfast.sinks.postgres.connecting import Connection
from holdfast.sinks.postgres.sql import create_staged, identifier
from holdfast.sinks.postgres.table import ATTEMPT, DELETED, STAGED, TableName, Target, is_staged_name, staged_name
from holdfast.sinks.sink import Delivery

LOCK_TIMEOUT = "10s"
log = logging.getLogger("holdfast.sinks")


class Label(msgspec.Struct, frozen=True):
    """Whose staging table it is."""

    owner: str
    lineage: int
    epoch: int
    generation: int


def create(
    connection: Connection, target: Target, columns: tuple[str, ...], deletes: bool, delivery: Delivery, token: str
) -> TableName:
    """Make an empty staging table for one attempt at a delivery, beside the target."""
    table = TableName(target.schema, staged_name(delivery, token))
    label = Label(delivery.owner, delivery.lineage, delivery.epoch, delivery.generation)
    connection.execute(create_staged(table, target, columns, deletes))
    text = Literal(msgspec.json.encode(label).decode())
    connection.execute(SQL("COMMENT ON TABLE {} IS {}").format(identifier(table), text))
    return table


def columns_of(connection: Connection, table: TableName) -> tuple[str, ...] | None:
    """The target's columns that a staging table has; None if it is gone."""
    found = [name for (name,) in connection.execute(_COLUMNS, [str(table)])]
    return tuple(name for name in found if name not in {ATTEMPT, DELETED}) if found else None


def leftovers(connection: Connection, schema: str, delivery: Delivery, keep: str | None) -> Iterator[TableName]:
    """What drivers of an earlier generation staged for the same pipeline and sink, except for `keep`."""
    for name, comment in connection.execute(_LABELLED, [schema, STAGED]).fetchall():
        if name == keep or not is_staged_name(name):
            continue
        try:
            label = json_decoder(Label).decode(comment or "")
        except msgspec.DecodeError:
            continue  # not ours, or made by a release that labels otherwise
        if label.owner == delivery.owner and label.generation < delivery.generation:
            yield TableName(schema, name)


def drop(connection: Connection, table: TableName) -> bool:
    """Drop a staging table within the open transaction; fine if it is gone.

    A task that was outrun, or whose driver is dead, may still be copying into it. After ten seconds of waiting for it
    the table is left alone, and False returned: no rows of such a task ever count, and the next driver sweeps.
    """
    try:
        with connection.transaction():
            connection.execute(SQL("SET LOCAL lock_timeout = {}").format(Literal(LOCK_TIMEOUT)))
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(identifier(table)))
    except psycopg.errors.LockNotAvailable:
        log.warning("%s is still in use and was left for the next driver to remove.", table)
        return False
    return True


_COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""

_LABELLED = """
SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname::text, %s) ORDER BY c.relname"""
