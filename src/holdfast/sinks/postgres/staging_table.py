"""Staging tables: creates them with a label, finds them by it, drops them.

The label is the table's comment, written in the transaction that creates the table and dropped with it: no crash leaves
a staging table without an owner, or an entry for a table that does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import psycopg
from psycopg.sql import SQL, Literal

from holdfast.base.codec import json_decoder
from holdfast.sinks.postgres.sql import create_staged, identifier
from holdfast.sinks.postgres.table import ATTEMPT, DELETED, STAGED, CatalogTable, TableName, is_staged_name, staged_name
from holdfast.sinks.sink import Delivery, is_undecided

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

LOCK_TIMEOUT = "10s"
log = logging.getLogger("holdfast.sinks")


class StagingLabel(msgspec.Struct, frozen=True):
    """The delivery that a staging table belongs to, and the driver that created it."""

    owner: str
    lineage: int
    epoch: int
    generation: int


def create(
    connection: Connection,
    catalog: CatalogTable,
    columns: tuple[str, ...],
    deletes: bool,
    delivery: Delivery,
    token: str,
) -> TableName:
    """Create an empty staging table for one attempt at a delivery, in the target's schema."""
    table = TableName(catalog.schema, staged_name(delivery, token))
    label = StagingLabel(delivery.owner, delivery.lineage, delivery.epoch, delivery.generation)
    connection.execute(create_staged(table, catalog, columns, deletes))
    text = Literal(msgspec.json.encode(label).decode())
    connection.execute(SQL("COMMENT ON TABLE {} IS {}").format(identifier(table), text))
    return table


def columns_of(connection: Connection, table: TableName) -> tuple[str, ...] | None:
    """The columns of a staging table that are also the target's; None if the table is gone."""
    found = [name for (name,) in connection.execute(_COLUMNS, [str(table)])]
    return tuple(name for name in found if name not in {ATTEMPT, DELETED}) if found else None


def leftovers(connection: Connection, schema: str, delivery: Delivery, keep: str | None) -> Iterator[TableName]:
    """The staging tables of the same pipeline and sink by drivers of an earlier generation.

    Except for `keep`, and for those of the epoch after `delivery`, which may still be decided.
    """
    for name, comment in connection.execute(_LABELLED, [schema, STAGED]).fetchall():
        if name == keep or not is_staged_name(name):
            continue
        try:
            label = json_decoder(StagingLabel).decode(comment or "")
        except msgspec.DecodeError:
            continue  # not ours, or made by a release with other labels
        is_old = label.owner == delivery.owner and label.generation < delivery.generation
        if is_old and not is_undecided(label.lineage, label.epoch, delivery):
            yield TableName(schema, name)


def drop(connection: Connection, table: TableName) -> bool:
    """Drop a staging table within the open transaction; fine if it is gone.

    A speculative task that lost, or one of a dead driver, may still be copying into it. After ten seconds of
    waiting the table is left and False returned: rows of such a task never count, and the next driver drops the table.
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
