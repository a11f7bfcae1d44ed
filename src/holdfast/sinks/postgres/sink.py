"""`PostgresSink`: executors copy rows into a staging table, one transaction merges it into the target.

Importing this module does not import psycopg: the methods import the modules that do their work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid
from holdfast.sinks.postgres.table import check_name, parse_table
from holdfast.sinks.postgres.target import PostgresTarget, RowKey
from holdfast.sinks.sink import EXACTLY_ONCE, Delivery, Descriptor, SinkProgress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


class PostgresSink:
    """Writes each epoch's rows to a PostgreSQL table, exactly once.

        PostgresSink(dsn, "sales.orders")                                   # appends
        PostgresSink(dsn, "sales.orders", key="order_id")                   # one row per key: inserts or updates
        PostgresSink(dsn, "sales.orders", key="order_id", delete="gone")    # rows where `gone` is true delete their key

    The table is created if it does not exist. Its name and the columns' names are used exactly as given. Rows that the
    table would refuse fail the epoch before any of it is visible in any sink, and so do two rows with the same key in
    one epoch. A null in the `delete` column does not delete; a row that deletes needs only its key. Columns of the
    table that the frame lacks get their default when a row is inserted, and keep their value when it is updated.

    In the target's schema the sink keeps a table `holdfast_commits`, with one row per epoch, and, while an epoch is
    staged, a table `holdfast_staged_…`: the role needs CREATE on that schema. Several pipelines may write to one table.

    Executors connect to the server themselves: they need the `postgres` extra, and the server needs as many connections
    as there are concurrent tasks. They get the DSN with its password in the closure, which Spark sends unencrypted
    unless its network encryption is on; the password is kept nowhere else. A publication FOR ALL TABLES includes the
    staging tables, and replication stops at subscribers that do not have them: publish the target alone.
    """

    guarantee = EXACTLY_ONCE

    def __init__(
        self, dsn: str, table: str, key: str | Sequence[str] | None = None, *, delete: str | None = None
    ) -> None:
        if importlib.util.find_spec("psycopg") is None:
            raise Invalid("A sink to PostgreSQL needs psycopg.", next_step="pip install 'holdfast[postgres]'")
        names = (key,) if isinstance(key, str) else tuple(key or ())
        if key is not None and (not names or len(set(names)) < len(names)):
            raise Invalid(f"The key {names!r} must name at least one column, and each column once.")
        for name in names:
            check_name(name, "key column")
        if delete is not None and (not names or delete in names):
            raise Invalid(f"Rows marked by {delete!r} delete their key: name a key, without that column.")
        self._target = PostgresTarget(dsn, parse_table(table), RowKey(names, delete))
        self._description = self._target.describe()
        self._seen: dict[tuple[str, str, int], int] = {}  # the newest committed epoch of a pipeline, sink and lineage
        self._left_for: dict[tuple[str, str, int], int] = {}  # the epoch for which `recover` left staging tables

    @property
    def only_appends(self) -> bool:
        return not self._target.row_key.columns

    def __repr__(self) -> str:
        return f"PostgresSink({self._target.where})"

    def describe(self) -> dict[str, Any]:
        """See `Sink.describe`. Without the user: the role that writes does not change where the rows go."""
        return dict(self._description)

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """See `Sink.prepare`. One transaction: if anything is refused, nothing was created.

        Runs everything that a commit does on no rows, and rolls that back; `Invalid` names a missing permission.
        `Corrupt` if the table does not exist although epochs were committed to it: it is not created again.
        """
        from holdfast.sinks.postgres.prepare import prepare

        prepare(self._target, schema, delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        """See `Sink.stage`. The driver learns how many rows each task copied, and never holds the rows.

        If the target has foreign keys, triggers, further unique indexes and the like, the merge is tried out in a
        transaction that is rolled back, which is as much work as the commit. Changes that other writers make to the
        target between that and the commit cannot be foreseen.
        """
        from holdfast.sinks.postgres.stage import stage

        return stage(self._target, frame, delivery)

    def refused(self, frame: DataFrame) -> Column | None:
        """See `RefusesRows.refused`: nulls where the table takes none, and values that its types do not hold.

        Not found here: violated constraints, repeated keys, and text that is no value of a type such as json.
        """
        from holdfast.sinks.postgres.refused_rows import refused

        return refused(self._target, frame)

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """See `Sink.commit`. Further errors, all of which keep the staged rows:

        `OutcomeUnknown` if the connection broke during COMMIT and the server cannot be asked for the result; committing
        again settles it. `RowsRefused` if the target was changed since the rows were staged and no longer takes them.
        `Corrupt` if the server lost an epoch that this sink has seen there, or has this epoch from other source
        positions.
        """
        from holdfast.sinks.postgres.commit import commit, discard_others

        series = _series(delivery)
        commit(self._target, descriptor, delivery, self._seen.get(series))
        self._seen[series] = max(delivery.epoch, self._seen.get(series, 0))
        if delivery.epoch == self._left_for.get(series):
            discard_others(self._target, delivery)
            del self._left_for[series]

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """See `Sink.rollback`."""
        from holdfast.sinks.postgres.commit import rollback

        rollback(self._target, descriptor, delivery)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        """See `Sink.recover`. A staging table that a dead driver's task still uses is left for the next `recover`."""
        from holdfast.sinks.postgres.commit import recover

        progress = recover(self._target, delivery, keep)
        self._left_for[_series(delivery)] = delivery.epoch + 1
        self._seen.pop(_series(delivery), None)
        if progress.committed is not None:
            self._seen[_series(delivery)] = progress.committed
        return progress


def _series(delivery: Delivery) -> tuple[str, str, int]:
    return delivery.pipeline, delivery.sink, delivery.lineage
