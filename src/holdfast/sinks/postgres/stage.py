"""Staging: one Spark job copies the frame into a staging table, and the driver checks it there."""

from __future__ import annotations

import contextlib
import re
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.sinks.postgres import staging_table
from holdfast.sinks.postgres.check_rows import UNCHANGED, check_staged
from holdfast.sinks.postgres.commit import check_same, discard
from holdfast.sinks.postgres.compatibility import check_frame, check_target
from holdfast.sinks.postgres.connecting import connected, for_executors, let_go_if_silent, translated
from holdfast.sinks.postgres.copy_task import OUTCOME, CopyTask, Refusal
from holdfast.sinks.postgres.sql import Staged, copy_into, ranges
from holdfast.sinks.postgres.table import DELETED, TableName, Target, read_target
from holdfast.sinks.postgres.target import Place, Ticket
from holdfast.sinks.postgres.types import cast_for
from holdfast.sinks.sink import Delivery, Descriptor, RowsRefused
from holdfast.sinks.spark_write import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FROM_EXECUTOR = re.compile(r"holdfast\.errors\.Unavailable: (.*)")
_JSON = {"timeZone": "UTC", "ignoreNullFields": "false"}


def stage(place: Place, frame: DataFrame, delivery: Delivery) -> Descriptor:
    """Copy, check, describe. What a crash leaves is a labelled staging table, which `recover` finds."""
    shape = place.shape
    check_frame(frame.schema, shape)
    columns = tuple(name for name in frame.columns if name != shape.delete)
    with connected(place.dsn) as connection, translated("making a staging table", place.where, UNCHANGED):
        target = read_target(connection, place.table)
        if target is None:
            raise Invalid(
                "The target is gone.",
                about=place.where,
                next_step="restore the table, and start again; it is made anew only if nothing was committed to it",
            )
        check_target(target, frame.schema, shape)
        check_same(connection, target.table, delivery, delivery.mark)  # before anything is decided and owed
        with step("postgres.create-staging", delivery=delivery):
            table = staging_table.create(
                connection, target, columns, shape.delete is not None, delivery, uuid.uuid4().hex
            )
            connection.commit()
        dsn = for_executors(place.dsn, connection)
    try:
        winners, rows = _copy(place, frame, target, table, dsn, delivery)
        ticket = Ticket(
            owner=delivery.owner,
            lineage=delivery.lineage,
            epoch=delivery.epoch,
            schema=target.schema,
            table=target.name,
            staged=table.name,
            key=shape.key,
            deletes=shape.delete is not None,
            winners=ranges(winners),
            rows=rows,
            mark=delivery.mark,
        )
        staged = Staged(table, target.table, columns, ticket.key, ticket.deletes, ticket.winners)
        with (
            connected(place.dsn) as connection,
            translated("checking the staged rows", place.where, UNCHANGED),
            step("postgres.check", delivery=delivery),
        ):
            let_go_if_silent(connection)
            check_staged(connection, target, staged, rows)
    except BaseException:
        with contextlib.suppress(HoldfastError):
            discard(place, table)
        raise
    described: Descriptor = msgspec.json.decode(msgspec.json.encode(ticket))
    return described


def _copy(
    place: Place, frame: DataFrame, target: Target, table: TableName, dsn: str, delivery: Delivery
) -> tuple[list[int], int]:
    """Run the job; the attempts whose rows count, and how many rows they are."""
    names = [DELETED if name == place.shape.delete else name for name in frame.columns]
    task = CopyTask(dsn, copy_into(table, names).as_string(None), names)
    with step("postgres.copy", delivery=delivery):
        outcomes = _run(_as_it_travels(frame, target), task, place)
    for outcome in outcomes:
        if outcome.refused is not None:
            refusal = json_decoder(Refusal).decode(outcome.refused)
            column = f"column {refusal.column!r}: " if refusal.column else ""
            raise RowsRefused(
                f"{column}{refusal.why}",
                about=str(target.table),
                unchanged=UNCHANGED,
                next_step="filter or repair such rows in the pipeline, or change the target",
            )
    winning = [outcome for outcome in outcomes if outcome.row_count]
    return [outcome.attempt for outcome in winning], sum(outcome.row_count for outcome in winning)


def _run(frame: DataFrame, task: CopyTask, place: Place) -> list[Any]:
    try:
        return frame.mapInArrow(task, OUTCOME).collect()
    except Exception as error:
        told = _FROM_EXECUTOR.search(str(error))  # Spark hands on what an executor raised only as text
        if told is not None:
            raise Unavailable(told[1], about=place.where, unchanged=UNCHANGED) from None
        explained = explain(error, str(place.table))
        if explained is None:
            raise
        raise explained from error


def _as_it_travels(frame: DataFrame, target: Target) -> DataFrame:
    """The same rows with what Arrow or COPY has no form for turned into what it has."""
    from pyspark.sql import functions

    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))  # any name, with dots and backticks
    selected = []
    for field, name in zip(frame.schema.fields, plain.columns, strict=True):
        values = functions.col(name)
        column = target.column(field.name)  # None for the one that says what to delete
        cast = None if column is None else cast_for(field.dataType, column.type)
        if cast == "json":
            values = functions.to_json(values, _JSON)
        elif cast is not None:
            values = values.cast(cast)
        selected.append(values.alias(name))
    return plain.select(*selected)
