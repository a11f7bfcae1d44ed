"""What a sink is: a place that takes an epoch's rows in two moves, stage and commit.

Staged output is invisible to readers. The epoch is decided elsewhere, by a checkpoint that holds every sink's
descriptor; from then on each sink is committed, by this driver or by the next one, until it has succeeded.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import quote

import msgspec

from holdfast.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Descriptor = dict[str, Any]
"""What a sink needs to find its staged output again: plain JSON values, small, and no secrets, for it is published."""


EXACTLY_ONCE = "exactly-once"


class Delivery(msgspec.Struct, frozen=True):
    """One epoch's rows for one sink. All but the generation name it for ever; that says which driver is at work."""

    pipeline: str
    sink: str
    lineage: int
    epoch: int
    generation: int = 0
    positions: dict[str, str | None] = {}
    """Where each source will have been read up to, as Spark's log has it. Known when staging."""
    query: str = ""
    """Spark's id of the query, which stays when the workdir is rebuilt, and is another in another store. Likewise."""

    @property
    def owner(self) -> str:
        """Names the pipeline's sink and no other, without a path's separators and without dots."""
        parts = (quote(name, safe=" ").replace("~", "%7E").replace(".", "%2E") for name in (self.pipeline, self.sink))
        return "~".join(parts)

    @property
    def mark(self) -> str | None:
        """The same for every attempt at this delivery, and for no delivery of other data; None if that is not known."""
        if not self.positions and not self.query:
            return None
        return hashlib.sha256(msgspec.json.encode([self.query, self.positions], order="sorted")).hexdigest()[:32]

    def __str__(self) -> str:
        lineage = f" of lineage {self.lineage}" if self.lineage else ""
        return f"epoch {self.epoch}{lineage} of pipeline {self.pipeline!r} for sink {self.sink!r}"


class Standing(msgspec.Struct, frozen=True):
    """What a sink itself knows of the pipeline's deliveries."""

    committed: int | None = None
    """The newest epoch of the asked lineage that its readers see; None if none."""
    lineage: int | None = None
    """The newest lineage with any delivery; None if none."""
    is_known: bool = True
    """False if the sink cannot tell."""


class StagedOutputGone(NotFound):
    """What was staged for a delivery is neither there nor committed. The epoch has to be staged again."""

    default_code = "sink.staged-output-gone"


def check_same_delivery(delivery: Delivery, *, mine: str | None, found: str | None, where: str) -> None:
    """Whoever finds an epoch committed that it was about to commit compares their marks: is it the same data?

    It is not if two pipelines of one name, each with a store of its own, write to one place.
    """
    if mine is None or found is None or mine == found:
        return
    raise Corrupt(
        f"There is an {delivery} already, and it is of another query or of other source positions: another pipeline "
        "of the same name, with checkpoints of its own, writes here.",
        code="sink.other-delivery",
        about=where,
        unchanged="what is there",
        next_step="stop one of the two, and give it another name or a target of its own",
    )


class RowsRefused(Invalid):
    """The sink cannot take these rows, or rows of this shape. Nothing of them is visible."""

    default_code = "sink.rows-refused"


@runtime_checkable
class Sink(Protocol):
    """The contract. `holdfast.testing` has the suite that checks it."""

    guarantee: str
    """`EXACTLY_ONCE`, or "at-least-once": shown to people, never assumed."""

    def describe(self) -> dict[str, Any]:
        """What and where it is: plain JSON values without secrets, and stable: the pipeline's hash has it."""
        ...

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """Called once per start, before any data moves: reachable, takes this schema, belongs to this pipeline's sink.

        May create an empty target. `delivery` has epoch 0. `RowsRefused` for a schema it does not take, `Unavailable`
        if it cannot be reached, `Invalid` if it belongs to another pipeline.
        """
        ...

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        """Write the rows durably where no reader sees them, with one evaluation of the frame, on the executors.

        Staging the same delivery again, by this driver or another, never disturbs what was staged before. When it
        raises it has removed what it wrote, as far as it could. `RowsRefused` if the sink will not take the rows:
        whatever can be found out now must not come up in `commit`.
        """
        ...

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """Make the staged rows visible, all at once, durable on return; then remove what staging left.

        Guarantees: any number of calls, also by two drivers at once, have the effect of one, keyed by pipeline, sink,
        lineage and epoch. `StagedOutputGone` if there is nothing to commit and it was not committed before.
        """
        ...

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """Remove staged output that will not be committed. Fine if it is gone already. Never undoes a commit."""
        ...

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> Standing:
        """Tell what is committed, and remove what drivers of an earlier generation staged, except for `keep`.

        `delivery` is the newest one that was decided (epoch 0 if none was), with the generation that is now at work;
        `keep` is its descriptor where it may still have to be committed.
        """
        ...
