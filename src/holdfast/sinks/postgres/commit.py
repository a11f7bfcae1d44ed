"""Committing, rolling back and recovering. No Spark: any process that has the descriptor can finish an epoch."""

from __future__ import annotations

import msgspec
import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.base.steps import step
from holdfast.errors import Corrupt, Invalid, OutcomeUnknown, Unavailable
from holdfast.sinks.postgres import staging_table
from holdfast.sinks.postgres.connecting import (
    DURABLE,
    UNLIMITED,
    Connection,
    connected,
    let_go_if_silent,
    lost,
    said,
    translated,
)
from holdfast.sinks.postgres.sql import Staged, merge
from holdfast.sinks.postgres.table import COMMITS, TableName, exists, home
from holdfast.sinks.postgres.target import Place, Ticket, decode_ticket, read_ticket
from holdfast.sinks.sink import Delivery, Descriptor, StagedOutputGone, Standing, check_same_delivery


def commit(place: Place, descriptor: Descriptor, delivery: Delivery, seen: int | None) -> None:
    """Commit, and if the connection breaks at the last moment, once more: the commit row tells whether it took effect,
    and whoever inserts it again waits for a transaction that is still under way.

    `seen` is the newest epoch of the lineage that the caller knows to be committed: it has to be there still.
    """
    ticket = read_ticket(place, descriptor, delivery)
    try:
        _commit_once(place, ticket, delivery, seen)
    except OutcomeUnknown as unknown:
        try:
            _commit_once(place, ticket, delivery, seen)
        except Unavailable:
            raise unknown from None


def _commit_once(place: Place, ticket: Ticket, delivery: Delivery, seen: int | None) -> None:
    repair = f"change the target so that it takes the rows, and start again: they are kept in {ticket.staging}"
    unchanged = "the target; the rows are still staged"
    with connected(place.dsn) as connection, translated("merging staged rows", place.where, unchanged, repair):
        connection.execute(DURABLE)
        connection.execute(UNLIMITED)
        let_go_if_silent(connection)
        with step("postgres.merge", delivery=delivery):
            if record(connection, ticket.target, delivery, rows=ticket.rows, mark=ticket.mark):
                _check_not_set_back(connection, place, ticket, delivery, seen)
                _merge(connection, ticket, delivery)
            staging_table.drop(connection, ticket.staging)
        with step("postgres.commit", delivery=delivery):
            _finish(connection, place, delivery)


def record(connection: Connection, target: TableName, delivery: Delivery, *, rows: int, mark: str | None) -> bool:
    """Insert the delivery's commit row; False if it is there, and `check_same` has nothing against it.

    Waits while another transaction is inserting it.
    """
    commits = Identifier(target.schema or "", COMMITS)
    inserted = connection.execute(
        SQL(
            "INSERT INTO {} (pipeline, sink, lineage, epoch, generation, target, row_count, mark) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (pipeline, sink, lineage, epoch) DO NOTHING"
        ).format(commits),
        [*_name(delivery), delivery.generation, str(target), rows, mark],
    )
    if inserted.rowcount == 1:
        return True
    check_same(connection, target, delivery, mark)
    return False


def check_same(connection: Connection, target: TableName, delivery: Delivery, mark: str | None) -> None:
    """If the delivery's commit row is there: `Invalid` if it is for another table, `Corrupt` if for other data."""
    query = SQL("SELECT target, mark FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s AND epoch = %s")
    commits = Identifier(target.schema or "", COMMITS)
    found = connection.execute(query.format(commits), _name(delivery)).fetchone()
    if found is None:
        return
    if found[0] != str(target):
        raise Invalid(
            f"The epoch was committed to {found[0]}, and is now to be committed to {target}.",
            about=str(delivery),
            unchanged="both tables",
            next_step="give the sink another name: two sinks of one name in one schema cannot be told apart",
        )
    check_same_delivery(delivery, mine=mark, found=found[1], where=str(target))


def _check_not_set_back(
    connection: Connection, place: Place, ticket: Ticket, delivery: Delivery, seen: int | None
) -> None:
    """A server that failed over, or was put back from a copy, under a driver that is at work: rows are missing."""
    if seen is None or seen >= delivery.epoch:
        return
    query = SQL("SELECT FROM {} WHERE pipeline = %s AND sink = %s AND lineage = %s AND epoch = %s")
    earlier = msgspec.structs.replace(delivery, epoch=seen)
    found = connection.execute(query.format(Identifier(ticket.schema, COMMITS)), _name(earlier)).fetchone()
    if found is None:
        raise Corrupt(
            f"The server had {earlier} and does not have it any more.",
            code="sink.set-back",
            about=place.where,
            unchanged="the target; the rows of this epoch are staged, and owed",
            next_step="restore the table; or start the pipeline again, and see what it says",
        )


def _merge(connection: Connection, ticket: Ticket, delivery: Delivery) -> None:
    columns = staging_table.columns_of(connection, ticket.staging)
    if columns is None:
        raise StagedOutputGone(
            "The staging table is gone, and the epoch was not committed.",
            about=str(delivery),
            unchanged=f"{ticket.target}",
            next_step="stage the epoch again",
        )
    for statement in merge(Staged(ticket.staging, ticket.target, columns, ticket.key, ticket.deletes, ticket.winners)):
        connection.execute(statement)


def _finish(connection: Connection, place: Place, delivery: Delivery) -> None:
    try:
        connection.commit()
    except psycopg.Error as error:
        if not lost(error):
            raise
        raise OutcomeUnknown(
            f"The connection broke during COMMIT: {said(error)}",
            about=f"{delivery} in {place.where}",
            next_step="commit again once the server answers: that settles it, and commits at most once",
        ) from None


def rollback(place: Place, descriptor: Descriptor, delivery: Delivery) -> None:
    """Drop the staging table; commit rows are left alone, so a commit stands."""
    discard(place, read_ticket(place, descriptor, delivery).staging)


def recover(place: Place, delivery: Delivery, keep: Descriptor | None) -> Standing:
    """Read the commit rows, then drop what is left over, each table in a transaction of its own."""
    kept = None if keep is None else decode_ticket(place, keep).staged
    with connected(place.dsn) as connection, translated("recovering", place.where, "the target"):
        schema = home(connection, place.table)
        if schema is None:
            return Standing()
        standing = _standing(connection, schema, delivery)
        left = list(staging_table.leftovers(connection, schema, delivery, kept))
    discard(place, *left)
    return standing


def discard(place: Place, *tables: TableName) -> None:
    """Drop staging tables for good. Fine if they are gone."""
    if not tables:
        return
    with connected(place.dsn) as connection, translated("dropping staged rows", place.where, "the target"):
        for table in tables:
            with step("postgres.drop", table=table):
                let_go_if_silent(connection)
                staging_table.drop(connection, table)
                connection.commit()


def _standing(connection: Connection, schema: str, delivery: Delivery) -> Standing:
    if not exists(connection, TableName(schema, COMMITS)):
        return Standing()
    query = SQL(
        "SELECT max(epoch) FILTER (WHERE lineage = %s), max(lineage) FROM {} WHERE pipeline = %s AND sink = %s"
    ).format(Identifier(schema, COMMITS))
    found = connection.execute(query, [delivery.lineage, delivery.pipeline, delivery.sink]).fetchone()
    assert found is not None
    return Standing(*found)


def _name(delivery: Delivery) -> list[str | int]:
    return [delivery.pipeline, delivery.sink, delivery.lineage, delivery.epoch]
