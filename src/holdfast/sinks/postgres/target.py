"""Where a sink to PostgreSQL leads, and what it publishes of a staged epoch. The one that knows the password."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.base.codec import converted
from holdfast.errors import Invalid
from holdfast.sinks.postgres.table import TableName, is_staged_name
from holdfast.sinks.sink import Delivery

_WHERE = ("host", "hostaddr", "port", "dbname", "service")


class Shape(msgspec.Struct, frozen=True):
    """Which columns name a row, and which one says that the row goes."""

    key: tuple[str, ...] = ()
    delete: str | None = None


class Place(msgspec.Struct, frozen=True):
    """A table on a server. Shown without the DSN, which may hold a password."""

    dsn: str
    table: TableName
    shape: Shape

    def __repr__(self) -> str:
        return f"Place({self.where})"

    @property
    def where(self) -> str:
        """The table, the database and the host, for people."""
        from holdfast.sinks.postgres.connecting import place_of

        return f"{self.table} in {place_of(self.dsn)}"

    def described(self) -> dict[str, Any]:
        """What and where it is, in plain values. Only from what the sink was told: the same in every process."""
        from holdfast.sinks.postgres.connecting import parse

        parts = parse(self.dsn)
        where = {name: str(parts[name]) for name in _WHERE if parts.get(name)}
        key = list(self.shape.key) or None
        return {"kind": "postgres", "table": str(self.table), "key": key, "delete": self.shape.delete, **where}


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A descriptor: what it takes to commit an epoch as it was staged, whatever the sink is told by then."""

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
    """The delivery's, which is known only when staging."""

    @property
    def target(self) -> TableName:
        return TableName(self.schema, self.table)

    @property
    def staging(self) -> TableName:
        return TableName(self.schema, self.staged)


def read_ticket(place: Place, descriptor: dict[str, Any], delivery: Delivery) -> Ticket:
    """The descriptor of this delivery. `Invalid` for any other, and if its rows were staged for another table."""
    ticket = decode_ticket(place, descriptor)
    if (ticket.owner, ticket.lineage, ticket.epoch) != (delivery.owner, delivery.lineage, delivery.epoch):
        raise Invalid(
            f"The descriptor is for epoch {ticket.epoch} of lineage {ticket.lineage} of {ticket.owner}.",
            about=str(delivery),
            unchanged="the target, and the staged rows",
        )
    return ticket


def decode_ticket(place: Place, descriptor: dict[str, Any]) -> Ticket:
    """The descriptor, checked: that it names a staging table and nothing else, and that it was made for this target."""
    try:
        ticket = converted(descriptor, Ticket)
    except msgspec.ValidationError as error:
        raise Invalid(f"This is no descriptor of a PostgreSQL sink: {error}.", about=place.where) from None
    if not is_staged_name(ticket.staged):
        raise Invalid(f"The descriptor names {ticket.staged!r}, which is no staging table.", about=place.where)
    if ticket.table != place.table.name or place.table.schema not in {None, ticket.schema}:
        raise Invalid(
            f"The rows were staged for {ticket.target}, but the sink now writes to {place.table}.",
            about=f"epoch {ticket.epoch} of {ticket.owner}",
            unchanged="both tables, and the staged rows",
            next_step=f"start once more with {ticket.target}, so that this epoch is finished; then change the table",
        )
    return ticket
