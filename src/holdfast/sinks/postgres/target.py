"""The table that a sink writes to, and the descriptor of an epoch that is staged for it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.base.codec import converted
from holdfast.base.postgres import dsn_parts, server_name
from holdfast.errors import Invalid, one_line
from holdfast.sinks.postgres.table import TableName, is_staged_name
from holdfast.sinks.sink import Delivery

_ADDRESS_PARTS = ("host", "hostaddr", "port", "dbname", "service")


class RowKey(msgspec.Struct, frozen=True):
    """The columns that identify a row (none: rows are appended), and the boolean column that marks deletions."""

    columns: tuple[str, ...] = ()
    delete: str | None = None


class PostgresTarget(msgspec.Struct, frozen=True):
    """A table on a server. Shown without the DSN, which may hold a password."""

    dsn: str
    table: TableName
    row_key: RowKey

    def __repr__(self) -> str:
        return f"PostgresTarget({self.where})"

    @property
    def where(self) -> str:
        """The table, the database and the host, for messages."""
        return f"{self.table} in {server_name(self.dsn)}"

    def describe(self) -> dict[str, Any]:
        """`Sink.describe`: made from the arguments alone, so that every process gets the same."""
        parts = dsn_parts(self.dsn)
        where = {name: str(parts[name]) for name in _ADDRESS_PARTS if parts.get(name)}
        key = list(self.row_key.columns) or None
        return {"kind": "postgres", "table": str(self.table), "key": key, "delete": self.row_key.delete, **where}


class PostgresDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to commit an epoch as it was staged, even if the sink's arguments have changed since."""

    kind: Literal["postgres"] = "postgres"
    owner: str
    lineage: int
    epoch: int
    schema: str
    table: str
    staged: str
    key: tuple[str, ...]
    deletes: bool
    winners: list[tuple[int, int]]
    rows: int
    mark: str | None = None
    """`Delivery.mark`, which can be computed only while staging."""

    @property
    def target(self) -> TableName:
        return TableName(self.schema, self.table)

    @property
    def staging(self) -> TableName:
        return TableName(self.schema, self.staged)


def read_descriptor(target: PostgresTarget, descriptor: dict[str, Any], delivery: Delivery) -> PostgresDescriptor:
    """Decode the descriptor of this delivery. `Invalid` if it is another's, or was staged for another table."""
    found = decode_descriptor(target, descriptor)
    if (found.owner, found.lineage, found.epoch) != (delivery.owner, delivery.lineage, delivery.epoch):
        raise Invalid(
            f"The descriptor is for epoch {found.epoch} of lineage {found.lineage} of {found.owner}.",
            about=str(delivery),
            unchanged="the target, and the staged rows",
        )
    return found


def decode_descriptor(target: PostgresTarget, descriptor: dict[str, Any]) -> PostgresDescriptor:
    """Decode a descriptor. `Invalid` unless it names a staging table, and was made for this target."""
    try:
        found = converted(descriptor, PostgresDescriptor)
    except msgspec.ValidationError as error:
        raise Invalid(f"This is not a PostgreSQL sink's descriptor: {one_line(error)}.", about=target.where) from None
    if not is_staged_name(found.staged):
        raise Invalid(f"The descriptor names {found.staged!r}, which is not a staging table.", about=target.where)
    if found.table != target.table.name or target.table.schema not in {None, found.schema}:
        raise Invalid(
            f"The rows were staged for {found.target}, but the sink now writes to {target.table}.",
            about=f"epoch {found.epoch} of {found.owner}",
            unchanged="both tables, and the staged rows",
            next_step=f"start once more with {found.target}, so that this epoch is finished; then change the table",
        )
    return found
