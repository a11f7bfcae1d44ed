"""`stage`: one Spark job copies the frame into a staging table, then the driver checks the rows there."""

from __future__ import annotations

import contextlib
import re
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.base.codec import json_decoder
from holdfast.base.postgres import for_executors
from holdfast.base.steps import step
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.sinks.postgres import staging_table
from holdfast.sinks.postgres.check_rows import UNCHANGED, check_staged
from holdfast.sinks.postgres.commit import check_same, discard
from holdfast.sinks.postgres.compatibility import check_frame, check_table
from holdfast.sinks.postgres.connection import connected, release_locks_if_silent, translated
from holdfast.sinks.postgres.copy_task import OUTCOME, CopyTask, Refusal
from holdfast.sinks.postgres.sql import StagedRows, copy_into, ranges
from holdfast.sinks.postgres.table import DELETED, CatalogTable, TableName, read_table
from holdfast.sinks.postgres.target import PostgresDescriptor, PostgresTarget
from holdfast.sinks.postgres.types import cast_for
from holdfast.sinks.sink import Delivery, Descriptor, RowsRefused
from holdfast.sinks.spark_write import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FROM_EXECUTOR = re.compile(r"holdfast\.errors\.Unavailable: (.*)")
_JSON = {"timeZone": "UTC", "ignoreNullFields": "false"}


def stage(target: PostgresTarget, frame: DataFrame, delivery: Delivery) -> Descriptor:
    """Copy, check, describe. A crash leaves at most a labelled staging table, which `recover` drops."""
    row_key = target.row_key
    check_frame(frame.schema, row_key)
    columns = tuple(name for name in frame.columns if name != row_key.delete)
    with connected(target.dsn) as connection, translated("making a staging table", target.where, UNCHANGED):
        catalog = read_table(connection, target.table)
        if catalog is None:
            raise Invalid(
                "The target table is gone.",
                about=target.where,
                next_step="restore the table, and start again; it is created again only if nothing was committed to it",
            )
        check_table(catalog, frame.schema, row_key)
        # Compared before the epoch is decided: afterwards it would be owed, and could never be committed.
        check_same(connection, catalog.table, delivery, delivery.mark)
        with step("postgres.create-staging", delivery=delivery):
            table = staging_table.create(
                connection, catalog, columns, row_key.delete is not None, delivery, uuid.uuid4().hex
            )
            connection.commit()
        dsn = for_executors(target.dsn, connection)
    try:
        winners, rows = _copy(target, frame, catalog, table, dsn, delivery)
        descriptor = PostgresDescriptor(
            owner=delivery.owner,
            lineage=delivery.lineage,
            epoch=delivery.epoch,
            schema=catalog.schema,
            table=catalog.name,
            staged=table.name,
            key=row_key.columns,
            deletes=row_key.delete is not None,
            winners=ranges(winners),
            rows=rows,
            mark=delivery.mark,
        )
        staged = StagedRows(table, catalog.table, columns, descriptor.key, descriptor.deletes, descriptor.winners)
        with (
            connected(target.dsn) as connection,
            translated("checking the staged rows", target.where, UNCHANGED),
            step("postgres.check", delivery=delivery),
        ):
            release_locks_if_silent(connection)
            check_staged(connection, catalog, staged, rows)
    except BaseException:
        with contextlib.suppress(HoldfastError):
            discard(target, table)
        raise
    described: Descriptor = msgspec.json.decode(msgspec.json.encode(descriptor))
    return described


def _copy(
    target: PostgresTarget, frame: DataFrame, catalog: CatalogTable, table: TableName, dsn: str, delivery: Delivery
) -> tuple[list[int], int]:
    """Run the Spark job. Returns the task attempts whose rows count, and the number of those rows."""
    names = [DELETED if name == target.row_key.delete else name for name in frame.columns]
    task = CopyTask(dsn, copy_into(table, names).as_string(None), names)
    with step("postgres.copy", delivery=delivery):
        outcomes = _run(_cast_for_copy(frame, catalog), task, target)
    for outcome in outcomes:
        if outcome.refused is not None:
            refusal = json_decoder(Refusal).decode(outcome.refused)
            column = f"column {refusal.column!r}: " if refusal.column else ""
            raise RowsRefused(
                f"{column}{refusal.why}",
                about=str(catalog.table),
                unchanged=UNCHANGED,
                next_step="filter or repair such rows in the pipeline, or change the target",
            )
    winning = [outcome for outcome in outcomes if outcome.row_count]
    return [outcome.attempt for outcome in winning], sum(outcome.row_count for outcome in winning)


def _run(frame: DataFrame, task: CopyTask, target: PostgresTarget) -> list[Any]:
    try:
        return frame.mapInArrow(task, OUTCOME).collect()
    except Exception as error:
        raised = _FROM_EXECUTOR.search(str(error))  # Spark reports an executor's exception only as text
        if raised is not None:
            raise Unavailable(raised[1], about=target.where, unchanged=UNCHANGED) from None
        explained = explain(error, str(target.table))
        if explained is None:
            raise
        raise explained from error


def _cast_for_copy(frame: DataFrame, catalog: CatalogTable) -> DataFrame:
    """Cast the values that Arrow or COPY cannot represent to types that they can."""
    from pyspark.sql import functions

    # Numbered columns, because names may hold dots and backticks.
    plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    selected = []
    for field, name in zip(frame.schema.fields, plain.columns, strict=True):
        values = functions.col(name)
        column = catalog.column(field.name)  # None for the `delete` column
        cast = None if column is None else cast_for(field.dataType, column.type)
        if cast == "json":
            values = functions.to_json(values, _JSON)
        elif cast is not None:
            values = values.cast(cast)
        selected.append(values.alias(name))
    return plain.select(*selected)
