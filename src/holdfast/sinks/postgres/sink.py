"""A PostgreSQL table as a sink: executors copy into a staging table, one transaction merges it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid
from holdfast.sinks.postgres.table import check_name, parse_table
from holdfast.sinks.postgres.target import Place, Shape
from holdfast.sinks.sink import Delivery, Descriptor, Standing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class PostgresSink:
    """Writes each epoch's rows to a table, exactly once.

        PostgresSink(dsn, "sales.orders")                                   # appends
        PostgresSink(dsn, "sales.orders", key="order_id")                   # one row per key: inserts or updates
        PostgresSink(dsn, "sales.orders", key="order_id", delete="gone")    # rows where `gone` is true delete their key

    The table is made if it is not there. Its name and the columns' names are taken exactly as spelled. Rows that the
    table would refuse fail the epoch before anything of it is visible in any sink; so do two rows with one key in an
    epoch. A null in the `delete` column does not delete; a row that deletes needs nothing but its key. Columns of the
    table that the frame lacks get their default when a row is inserted, and are left alone when it is updated.

    Beside the target, in its schema, are `holdfast_commits`, with one row per epoch, and while an epoch is under way a
    table `holdfast_staged_…`: the role needs CREATE on that schema. Several pipelines may write to one table.

    Executors connect by themselves: they need the `postgres` extra, and the server as many connections as there are
    tasks at a time. They get the DSN with its password in the closure, which Spark sends in clear unless its network
    encryption is on; nothing else ever holds the password. A publication FOR ALL TABLES carries the staging tables
    along, and subscribers that lack them stop: publish the target alone.
    """

    guarantee = "exactly-once"

    def __init__(
        self, dsn: str, table: str, key: str | Sequence[str] | None = None, *, delete: str | None = None
    ) -> None:
        if importlib.util.find_spec("psycopg") is None:
            raise Invalid("A sink to PostgreSQL needs psycopg.", next_step="pip install 'holdfast[postgres]'")
        names = (key,) if isinstance(key, str) else tuple(key or ())
        if key is not None and (not names or len(set(names)) < len(names)):
            raise Invalid(f"The key {names!r} does not name columns, each once.")
        for name in names:
            check_name(name, "key column")
        if delete is not None and (not names or delete in names):
            raise Invalid(f"Rows marked by {delete!r} delete their key: name a key, without that column.")
        self._place = Place(dsn, parse_table(table), Shape(names, delete))
        self._described = self._place.described()
        self._seen: dict[tuple[str, str, int], int] = {}  # the newest committed epoch of a pipeline, sink and lineage

    def __repr__(self) -> str:
        return f"PostgresSink({self._place.where})"

    def describe(self) -> dict[str, Any]:
        """As the contract says. Without the user: who writes the rows does not change where they go."""
        return dict(self._described)

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """As the contract says, in one transaction: whatever is refused, nothing was made.

        It is rehearsed on no rows, and taken back: what a commit will need is permitted, or `Invalid` says what is not.
        `Corrupt` if the table is not there and epochs were committed to it: it is not made anew.
        """
        from holdfast.sinks.postgres.prepare import prepare

        prepare(self._place, schema, delivery)

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        """As the contract says. The driver sees how many rows each task copied, never the rows.

        A target with foreign keys, triggers, further unique indexes and the like has the rows tried out on it, in a
        transaction that is taken back: as much work again as the commit. What another writer does to the target
        between that and the commit cannot be foreseen.
        """
        from holdfast.sinks.postgres.stage import stage

        return stage(self._place, frame, delivery)

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """As the contract says. `OutcomeUnknown` if the connection broke at the last moment and the server cannot be
        asked what became of it: committing again settles it. `RowsRefused` if the target was changed since the rows
        were staged and does not take them any more: they are kept.
        `Corrupt`, and they are kept as well, if the server has lost an epoch that this sink has seen there, or has
        this one from other source positions.
        """
        from holdfast.sinks.postgres.commit import commit

        name = _name(delivery)
        commit(self._place, descriptor, delivery, self._seen.get(name))
        self._seen[name] = max(delivery.epoch, self._seen.get(name, 0))

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """As the contract says."""
        from holdfast.sinks.postgres.commit import rollback

        rollback(self._place, descriptor, delivery)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> Standing:
        """As the contract says. A staging table that a dead driver's task still holds is left for the next time."""
        from holdfast.sinks.postgres.commit import recover

        standing = recover(self._place, delivery, keep)
        self._seen.pop(_name(delivery), None)
        if standing.committed is not None:
            self._seen[_name(delivery)] = standing.committed
        return standing


def _name(delivery: Delivery) -> tuple[str, str, int]:
    return delivery.pipeline, delivery.sink, delivery.lineage
