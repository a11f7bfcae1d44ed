"""`commit`, `rollback` and `recover`. No Spark: any process that has the descriptor can finish an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.base.postgres import DURABLE, is_lost, message_of
from holdfast.base.steps import step
from holdfast.errors import Corrupt, Invalid, OutcomeUnknown, Unavailable
from holdfast.sinks.postgres import staging_table
from holdfast.sinks.postgres.connection import NO_TIME_LIMIT, connected, release_locks_if_silent, translated
from holdfast.sinks.postgres.sql import StagedRows, merge
from holdfast.sinks.postgres.table import COMMITS, TableName, exists, schema_of
from holdfast.sinks.postgres.target import PostgresDescriptor, PostgresTarget, decode_descriptor, read_descriptor
from holdfast.sinks.sink import Delivery, Descriptor, SinkProgress, StagedOutputGone, check_same_delivery

if TYPE_CHECKING:
    from holdfast.base.postgres import Connection

COMMITS_KEPT = 1000
"""Commit rows per pipeline, sink and lineage. An epoch that is so much older than another counts as committed."""


def commit(target: PostgresTarget, descriptor: Descriptor, delivery: Delivery, seen: int | None) -> None:
    """Commit; if the connection breaks during COMMIT, try once more.

    The commit row shows whether the first try took effect: inserting it again waits for the first transaction, if that
    is still running.

    `seen` is the newest epoch of the lineage that the caller knows to be committed; `Corrupt` if it is gone.
    """
    staged = read_descriptor(target, descriptor, delivery)
    try:
        _commit_once(target, staged, delivery, seen)
    except OutcomeUnknown as unknown:
        try:
            _commit_once(target, staged, delivery, seen)
        except Unavailable:
            raise unknown from None


def _commit_once(target: PostgresTarget, staged: PostgresDescriptor, delivery: Delivery, seen: int | None) -> None:
    repair = f"change the target so that it takes the rows, and start again: they are kept in {staged.staging}"
    unchanged = "the target; the rows are still staged"
    with connected(target.dsn) as connection, translated("merging staged rows", target.where, unchanged, repair):
        connection.execute(DURABLE)
        connection.execute(NO_TIME_LIMIT)
        release_locks_if_silent(connection)
        with step("postgres.merge", delivery=delivery):
            if record(connection, staged.target, delivery, rows=staged.rows, mark=staged.mark):
                _check_not_set_back(connection, target, staged, delivery, seen)
                _merge(connection, staged, delivery)
                remove_old_commits(connection, staged.schema, delivery)
            staging_table.drop(connection, staged.staging)
        with step("postgres.commit", delivery=delivery):
            _finish(connection, target, delivery)


def record(connection: Connection, target: TableName, delivery: Delivery, *, rows: int, mark: str | None) -> bool:
    """Insert the delivery's commit row; False if it exists and `check_same` accepts it, or was removed for its age.

    Waits for another transaction that is inserting it.
    """
    commits = Identifier(target.schema or "", COMMITS)
    much_later = msgspec.structs.replace(delivery, epoch=delivery.epoch + COMMITS_KEPT)
    inserted = connection.execute(
        SQL(
            "INSERT INTO {0} (pipeline, sink, lineage, epoch, generation, target, row_count, mark) "
            "SELECT %s, %s, %s, %s, %s, %s, %s, %s WHERE NOT EXISTS "
            "(SELECT FROM {0} WHERE pipeline = %s AND sink = %s AND lineage = %s AND epoch >= %s) "
            "ON CONFLICT (pipeline, sink, lineage, epoch) DO NOTHING"
        ).format(commits),
        [*_commit_key(delivery), delivery.generation, str(target), rows, mark, *_commit_key(much_later)],
    )
    if inserted.rowcount == 1:
        return True
    check_same(connection, target, delivery, mark)
    return False


def check_same(connection: Connection, target: TableName, delivery: Delivery, mark: str | None) -> None:
    """Check the delivery's commit row, if there is one: `Invalid` for another table, `Corrupt` for other data."""
    query = SQL("SELECT target, mark FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s AND epoch = %s")
    commits = Identifier(target.schema or "", COMMITS)
    found = connection.execute(query.format(commits), _commit_key(delivery)).fetchone()
    if found is None:
        return
    if found[0] != str(target):
        raise Invalid(
            f"The epoch was committed to {found[0]}, but is now to be committed to {target}.",
            about=str(delivery),
            unchanged="both tables",
            next_step="give the sink another name: two sinks of one name in one schema cannot be told apart",
        )
    check_same_delivery(delivery, mine=mark, found=found[1], where=str(target))


def _check_not_set_back(
    connection: Connection, target: PostgresTarget, staged: PostgresDescriptor, delivery: Delivery, seen: int | None
) -> None:
    """`Corrupt` if the server lost epoch `seen`: it failed over, or was restored from a copy, while the driver ran."""
    if seen is None or seen >= delivery.epoch:
        return
    query = SQL("SELECT FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s AND epoch = %s")
    earlier = msgspec.structs.replace(delivery, epoch=seen)
    found = connection.execute(query.format(Identifier(staged.schema, COMMITS)), _commit_key(earlier)).fetchone()
    if found is None:
        raise Corrupt(
            f"The server had {earlier}, but no longer has it.",
            code="sink.set-back",
            about=target.where,
            unchanged="the target; the rows of this epoch are staged, and owed",
            next_step="restore the table; or start the pipeline again: the start says what is missing",
        )


def remove_old_commits(connection: Connection, schema: str, delivery: Delivery) -> None:
    """Remove the rows of epochs that are `COMMITS_KEPT` older. `record` knows that such an epoch was committed."""
    old = msgspec.structs.replace(delivery, epoch=delivery.epoch - COMMITS_KEPT)
    query = SQL("DELETE FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s AND epoch <= %s")
    connection.execute(query.format(Identifier(schema, COMMITS)), _commit_key(old))


def _merge(connection: Connection, staged: PostgresDescriptor, delivery: Delivery) -> None:
    columns = staging_table.columns_of(connection, staged.staging)
    if columns is None:
        raise StagedOutputGone(
            "The staging table is gone, but the epoch was not committed.",
            about=str(delivery),
            unchanged=f"{staged.target}",
            next_step="stage the epoch again",
        )
    for statement in merge(
        StagedRows(staged.staging, staged.target, columns, staged.key, staged.deletes, staged.winners)
    ):
        connection.execute(statement)


def _finish(connection: Connection, target: PostgresTarget, delivery: Delivery) -> None:
    try:
        connection.commit()
    except psycopg.Error as error:
        if not is_lost(error):
            raise
        raise OutcomeUnknown(
            f"The connection broke during COMMIT: {message_of(error)}",
            about=f"{delivery} in {target.where}",
            next_step="commit again once the server answers: that settles it, and commits at most once",
        ) from None


def rollback(target: PostgresTarget, descriptor: Descriptor, delivery: Delivery) -> None:
    """Drop the staging table. Commit rows stay, so this never undoes a commit."""
    discard(target, read_descriptor(target, descriptor, delivery).staging)


def discard_others(target: PostgresTarget, delivery: Delivery) -> None:
    """Drop what earlier drivers staged for a delivery that is committed."""
    with connected(target.dsn) as connection, translated("dropping staged rows", target.where, "the target"):
        schema = schema_of(connection, target.table)
        left = list(staging_table.leftovers(connection, schema, delivery, None)) if schema else []
    discard(target, *left)


def recover(target: PostgresTarget, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
    """Read the commit rows, then drop leftover staging tables, each in a transaction of its own."""
    kept = None if keep is None else decode_descriptor(target, keep).staged
    with connected(target.dsn) as connection, translated("recovering", target.where, "the target"):
        schema = schema_of(connection, target.table)
        if schema is None:
            return SinkProgress()
        progress = _progress(connection, schema, delivery)
        left = list(staging_table.leftovers(connection, schema, delivery, kept))
    discard(target, *left)
    return progress


def discard(target: PostgresTarget, *tables: TableName) -> None:
    """Drop staging tables, durably. Fine if they are gone."""
    if not tables:
        return
    with connected(target.dsn) as connection, translated("dropping staged rows", target.where, "the target"):
        for table in tables:
            with step("postgres.drop", table=table):
                release_locks_if_silent(connection)
                staging_table.drop(connection, table)
                connection.commit()


def _progress(connection: Connection, schema: str, delivery: Delivery) -> SinkProgress:
    if not exists(connection, TableName(schema, COMMITS)):
        return SinkProgress()
    query = SQL(
        "SELECT max(epoch) FILTER (WHERE lineage = %s), max(lineage) FROM {} WHERE pipeline = %s AND sink = %s"
    ).format(Identifier(schema, COMMITS))
    found = connection.execute(query, [delivery.lineage, delivery.pipeline, delivery.sink]).fetchone()
    assert found is not None
    return SinkProgress(*found)


def _commit_key(delivery: Delivery) -> list[str | int]:
    return [delivery.pipeline, delivery.sink, delivery.lineage, delivery.epoch]
