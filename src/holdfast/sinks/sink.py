"""`Sink`: a target that takes an epoch's rows in two phases, stage and commit.

Staged output is invisible to readers. A checkpoint that holds every sink's descriptor decides the epoch; from then on
each sink is committed, by this driver or by the next one, until its commit succeeds.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import quote

import msgspec

from holdfast.errors import Corrupt, Invalid, NotFound

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Descriptor = dict[str, Any]
"""Everything that a sink needs to find its staged output again. Plain JSON values, below 4 KiB. It is stored in the
checkpoint and shown by the command line: no secrets."""

EXACTLY_ONCE = "exactly-once"


class Delivery(msgspec.Struct, frozen=True):
    """One epoch's rows for one sink.

    Pipeline, sink, lineage and epoch identify it, for every attempt and every driver.
    """

    pipeline: str
    sink: str
    lineage: int
    """Starts at 0 and rises with each reset of the pipeline, after which epoch numbers are used again."""
    epoch: int
    generation: int = 0
    """The generation of the driver: each driver that takes over the pipeline has a higher one."""
    positions: dict[str, str | None] = {}
    """The end offset of each source in this epoch, as in Spark's offset log. Known when staging."""
    query: str = ""
    """Spark's id of the query: the same after the workdir is restored, another one in another store. Known when
    staging."""

    @property
    def owner(self) -> str:
        """The pipeline and the sink as one text, unique, without path separators and dots."""
        parts = (quote(name, safe=" ").replace("~", "%7E").replace(".", "%2E") for name in (self.pipeline, self.sink))
        return "~".join(parts)

    @property
    def mark(self) -> str | None:
        """A hash of query and positions: equal for every attempt at this delivery, different for other data.

        None if neither is known, as when committing. Keep the mark of the staged delivery in the descriptor.
        """
        if not self.positions and not self.query:
            return None
        return hashlib.sha256(msgspec.json.encode([self.query, self.positions], order="sorted")).hexdigest()[:32]

    def __str__(self) -> str:
        lineage = f" of lineage {self.lineage}" if self.lineage else ""
        return f"epoch {self.epoch}{lineage} of pipeline {self.pipeline!r} for sink {self.sink!r}"


def is_undecided(lineage: int, epoch: int, newest: Delivery) -> bool:
    """Whether output staged for this epoch may still be decided, by a driver that has been taken over. Pure.

    `newest` is the newest decided delivery. Until its successor decides the next epoch itself, a driver that was taken
    over may decide it at the last moment. If some sinks had lost their staged output by then, they would get rows of
    another run of the query than the others.
    """
    is_next = (lineage, epoch) == (newest.lineage, newest.epoch + 1)
    return is_next or (lineage > newest.lineage and epoch == 1)  # the first one after a reset


class SinkProgress(msgspec.Struct, frozen=True):
    """The progress of a sink, as recorded in the target itself."""

    committed: int | None = None
    """The newest committed epoch of the requested lineage; None if it has none."""
    lineage: int | None = None
    """The newest lineage with a committed epoch; None if there is none."""
    is_known: bool = True
    """False if the target does not record its epochs; then the two fields above have no meaning."""


class StagedOutputGone(NotFound):
    """The staged output of a delivery does not exist, and the delivery was not committed. Stage the epoch again."""

    default_code = "sink.staged-output-gone"


def check_same_delivery(delivery: Delivery, *, mine: str | None, found: str | None, where: str) -> None:
    """Raise `Corrupt` if the committed epoch came from other data than ours: its mark differs.

    That happens if two pipelines with the same name, each with a checkpoint store of its own, write to one target.
    Nothing is compared if either mark is unknown.
    """
    if mine is None or found is None or mine == found:
        return
    raise Corrupt(
        f"The target already has {delivery}, from another query or from other source positions: another pipeline "
        "of the same name, with checkpoints of its own, writes here.",
        code="sink.other-delivery",
        about=where,
        unchanged="what is there",
        next_step="stop one of the two, and give it another name or a target of its own",
    )


class RowsRefused(Invalid):
    """The sink does not take these rows, or rows with these columns. None of them is visible."""

    default_code = "sink.rows-refused"


class RefusedTogether(RowsRefused):
    """The sink does not take these rows because of one another: several have the same key."""


@runtime_checkable
class Sink(Protocol):
    """The contract of a sink. Any object with these members is one; there is nothing to inherit.

    The life of an epoch, as a pipeline calls it:

        prepare(schema, delivery)           once per start, before any data moves
        recover(delivery, keep)             once per start, after the driver has taken over the pipeline
        descriptor = stage(frame, delivery)     each epoch: rows are durable, and invisible
        ...                                     the checkpoint with all descriptors is saved: the epoch is decided
        commit(descriptor, delivery)            rows are visible and durable; repeated until it succeeds
        rollback(descriptor, delivery)          instead of commit, if the epoch was not decided

    What to expect:

    * The driver can die between any two lines. The next driver has a new object of this class, made by the same
      program, and the descriptor as it was returned by `stage`, after a round trip through JSON.
    * An old driver may still be running beside a new one, and may call any method late. The target decides by the
      delivery's identity (pipeline, sink, lineage, epoch) which call takes effect: record it in the same transaction,
      rename or log entry that makes the rows visible.
    * Epochs of one lineage come in order. After a commit the same epoch can be committed again; an earlier one, too.
    * A pipeline may have several sinks. All of them stage before any of them commits.

    Errors: after `Unavailable`, `Conflict` and `OutcomeUnknown` a supervised pipeline starts again by itself; after
    `StagedOutputGone` the epoch is staged again; any other error stops the pipeline. An error after the decision leaves
    the epoch owed: the next start commits it.

    `holdfast.testing.conformance.sinks` has the test suite: `ExactlyOnceConformance` for a sink that promises
    exactly-once, `SinkConformance` for a sink that promises at-least-once.
    """

    guarantee: str
    """`EXACTLY_ONCE` or "at-least-once". Shown to users, never assumed.

    A sink without keys may also have `only_appends = True`: a start then warns of output modes that repeat rows."""

    def describe(self) -> dict[str, Any]:
        """What the sink is and where it writes: plain JSON values without secrets.

        The same in every process: it is part of the pipeline's hash, and a changed hash refuses the start.
        """
        ...

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """Check that the target is reachable, takes this schema, and belongs to this pipeline's sink.

        May create an empty target. Called with epoch 0, possibly while another driver is at work: disturb nothing.
        `RowsRefused` for a schema that it does not take, `Unavailable` if it cannot be reached, `Invalid` if it belongs
        to another pipeline.
        """
        ...

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        """Write the rows where no reader sees them, and return how to find them. Durable on return.

        Evaluates the frame once, on the executors. Staging the same delivery again, by this driver or another, leaves
        the output that was staged before as it is. If it raises, it has removed its own output as far as possible.
        `RowsRefused` if the sink will not take the rows: check here everything that could make `commit` fail, because a
        decided epoch must be committed.
        """
        ...

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """Make the staged rows visible, all at once and durably; then remove all other staged output of the delivery.

        Guarantees: any number of calls, also by two drivers at once, have the effect of one, by pipeline, sink,
        lineage and epoch. `StagedOutputGone` if the staged output does not exist and the delivery was not committed.
        `delivery` may come without positions and query.
        """
        ...

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        """Remove staged output that will not be committed. Fine if it is gone. Never undoes a commit."""
        ...

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        """Return the progress of the target, and remove staged output of earlier generations, except for `keep`.

        `delivery` is the newest decided one (epoch 0 if there is none), with the generation of the driver that runs
        now. `keep` is its descriptor if it may still have to be committed. Output of this generation and of later ones
        stays, and so does output of the next epoch (see `is_undecided`): `commit` of that epoch removes it.
        """
        ...


@runtime_checkable
class RefusesRows(Protocol):
    """A method of sinks that can tell for each row by itself whether they would refuse it. Dead letters need it."""

    def refused(self, frame: DataFrame) -> Column | None:
        """Why the sink would refuse a row of this frame: an expression over its columns, null for a row that is fine.

        None if there is no such reason. Called after `prepare`; changes nothing, evaluates nothing.

        Guarantees: `stage` would refuse every row that has a reason. The reason of a row is the same each time.
        Does not guarantee: that `stage` takes the other rows. `stage` still refuses rows that only the target can
        judge, and rows that are refused because of each other (a key that occurs twice).
        """
        ...


@runtime_checkable
class RefusesRowsTogether(Protocol):
    """A second method of sinks with `RefusesRows`: dead letters then also take rows that are refused together.

    `stage` raises `RefusedTogether` for such rows. The rows are split by this expression only after that, so an epoch
    without such rows does not pay for it.
    """

    def refused_together(self, frame: DataFrame) -> Column:
        """Why the sink would refuse a row because of other rows of this frame: an expression, null for a row that is
        fine. May use window functions; changes nothing, evaluates nothing.

        Guarantees: it is null for every row of a frame that `stage` does not refuse as `RefusedTogether`.
        """
        ...


@runtime_checkable
class WritesToPaths(Protocol):
    """A property of sinks for which executors write to a disk. All of them and the driver have to share it: what one
    writes to another disk is lost, and Spark does not notice."""

    @property
    def written_paths(self) -> list[str]:
        """Absolute paths of directories, which need not exist. On a cluster a start is refused (`sink.not-shared`) if
        an executor sees something else there than the driver. Empty for what is not on a disk."""
        ...
