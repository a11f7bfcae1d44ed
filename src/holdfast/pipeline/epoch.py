"""One epoch as a two-phase commit: stage in every sink, snapshot the workdir, decide by one manifest, commit.

A failure before the decision leaves nothing visible. A failure after it is always finished, never undone: by this
driver, by a replay of the epoch, or by the recovery of the next driver. All three call `finish_owed`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import CheckpointManifest, ConnectorCheckpoint, SinkCommitStatus, SinkStatus
from holdfast.errors import Conflict, Corrupt, Fenced, HoldfastError, Invalid
from holdfast.pipeline.dead_letters import EpochRows, RefusedCount
from holdfast.pipeline.definition import NamedSink, Operator
from holdfast.pipeline.epoch_manifest import EpochFacts, epoch_manifest, with_statuses
from holdfast.pipeline.workdir.snapshot import Snapshot, SnapshotBeside, WorkdirSnapshotter
from holdfast.sinks import Delivery, Descriptor, RefusedTogether, StagedOutputGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("holdfast.epochs")


# Which epoch a batch is. Pure.


class NewEpoch(msgspec.Struct, frozen=True):
    """An epoch that was never decided."""


class ReplayedEpoch(msgspec.Struct, frozen=True):
    """An epoch that was decided before Spark could count it as done. Spark runs it once more for its own state."""

    manifest: CheckpointManifest


def classify_batch(newest: CheckpointManifest | None, delivered: int, epoch: int) -> NewEpoch | ReplayedEpoch:
    """Decide whether a batch is a new epoch or a replayed one.

    `Corrupt` if Spark is anywhere else than at that epoch or at the next one: going on would lose or repeat rows.
    """
    if epoch == delivered + 1:
        return NewEpoch()
    if newest is not None and epoch == delivered == newest.epoch:
        return ReplayedEpoch(newest)
    raise Corrupt(
        f"Spark runs epoch {epoch}, and the last one that was delivered is {delivered}.",
        code="epoch.out-of-order",
        about=f"epoch {epoch}",
        unchanged="every checkpoint and every sink",
        next_step="start the pipeline again: it recovers from the newest checkpoint",
    )


# Finishing an epoch that is decided


class Finished(msgspec.Struct, frozen=True):
    """What `finish_owed` did."""

    manifest: CheckpointManifest
    """The manifest with the new sink statuses, as it is stored now."""
    gone: dict[str, StagedOutputGone]
    """Sinks that still owe the epoch because their staged output is gone: it has to be staged again."""
    failure: Exception | None
    """The first failure of another kind; that sink owes the epoch as well."""

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def finish_owed(
    manifest: CheckpointManifest,
    sinks: Mapping[str, NamedSink],
    store: CheckpointStore,
    *,
    pipeline: str,
    generation: int,
    stage_again: Callable[[NamedSink], Descriptor] | None = None,
) -> Finished:
    """Commit the epoch in every sink that owes it, and record what became of each. The one way to finish an epoch.

    A sink whose staged output is gone is staged once more by `stage_again`; without it the sink is left in `gone`.

    Guarantees: every sink is tried, and all outcomes are recorded in one write. A sink's failure is returned, not
    raised: the caller takes the new manifest and then calls `raise_failure`. It may be called any number of times, also
    by two drivers: commits are idempotent.
    """
    outcomes: dict[str, SinkStatus] = {}
    gone: dict[str, StagedOutputGone] = {}
    failures: list[Exception] = []
    for named in [sinks[name] for name in sinks if name in manifest.owed_sinks]:
        try:
            _commit(named, manifest, pipeline, generation, stage_again)
            outcomes[named.name] = SinkCommitStatus.committed()
        except StagedOutputGone as error:
            gone[named.name] = error
        except HoldfastError as error:
            if isinstance(error, Invalid):
                outcomes[named.name] = SinkCommitStatus.failed(error.message)
            failures.append(_still_owed(error, named.name, manifest))
        except Exception as error:  # a user's own code: the epoch is owed all the same
            failures.append(error)
    if outcomes:
        with step("epoch.settle", epoch=manifest.epoch):
            manifest = store.update_manifest(with_statuses(manifest, outcomes))
    return Finished(manifest, gone, failures[0] if failures else None)


def _commit(
    named: NamedSink,
    manifest: CheckpointManifest,
    pipeline: str,
    generation: int,
    stage_again: Callable[[NamedSink], Descriptor] | None,
) -> None:
    # Under the lineage it was staged for: a reset pipeline has begun another one.
    delivery = Delivery(pipeline, named.name, manifest.own.lineage, manifest.epoch, generation)
    try:
        descriptor = manifest.own.sinks.get(named.name)
        if descriptor is None:
            raise StagedOutputGone(f"Checkpoint {manifest.checkpoint_id} does not say what was staged for {delivery}.")
        with step("sink.commit", sink=named.name, epoch=manifest.epoch):
            named.sink.commit(descriptor, delivery)
    except StagedOutputGone:
        if stage_again is None:
            raise
        descriptor = stage_again(named)
        with step("sink.commit", sink=named.name, epoch=manifest.epoch):
            named.sink.commit(descriptor, delivery)


def _still_owed(error: HoldfastError, sink: str, manifest: CheckpointManifest) -> HoldfastError:
    unchanged = f"epoch {manifest.epoch} is decided and will be finished"
    return _about_sink(error, sink, manifest.epoch, manifest.source_offsets, unchanged)


class EpochCoordinator:
    """Coordinates the two-phase commit of one pipeline's epochs, one after the other, for one driver."""

    def __init__(
        self,
        *,
        pipeline: str,
        lineage: int,
        generation: int,
        store: CheckpointStore,
        sinks: Mapping[str, NamedSink],
        operators: Mapping[str, Operator],
        snapshotter: WorkdirSnapshotter,
        newest: CheckpointManifest | None,
        delivered: int,
        first_id: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.newest = newest
        self.delivered = delivered
        self._pipeline = pipeline
        self._lineage = lineage
        self._generation = generation
        self._store = store
        self._sinks = sinks
        self._operators = operators
        self._snapshotter = snapshotter
        self._clock = clock
        # Chosen before the newest checkpoint was read: an epoch that another driver decides after that has this id.
        self._next_id = first_id

    def classify(self, epoch: int) -> NewEpoch | ReplayedEpoch:
        """Which epoch a batch is. Comes before `run`; `Fenced` if another driver has taken over."""
        self._store.check_lease()
        return classify_batch(self.newest, self.delivered, epoch)

    def run(self, epoch: NewEpoch | ReplayedEpoch, frame: DataFrame, facts: EpochFacts) -> RefusedCount:
        """Deliver one epoch to every sink. If it raises, every sink is either untouched or will be finished.

        `frame` may be read several times and must give the same rows each time. Returns how many rows went to the dead
        letters.
        """
        rows = EpochRows(
            frame,
            self._sinks.values(),
            lineage=facts.lineage,
            epoch=facts.epoch,
            now=self._clock(),
            is_replay=isinstance(epoch, ReplayedEpoch),
        )
        match epoch:
            case NewEpoch():
                self._deliver(frame, rows, facts)
            case ReplayedEpoch(manifest):
                self._replay(manifest, frame, rows, facts)
        return rows.refused

    def leave_stamps(self, *, is_clean: bool) -> None:
        """The query has ended: leave for the next start what the workdir is. `Fenced` if it is a successor's by now."""
        if self.newest is not None:
            self._store.check_lease()
            self._snapshotter.leave_stamps(self.newest, is_clean=is_clean)

    # A new epoch

    def _deliver(self, frame: DataFrame, rows: EpochRows, facts: EpochFacts) -> None:
        taken = SnapshotBeside(self._snapshotter, facts.batch_id, facts.epoch)
        with self._staging(facts.epoch) as staged, contextlib.closing(rows), contextlib.closing(taken):
            for named in self._sinks.values():
                try:
                    staged[named.name] = self._stage(named, rows, facts, taken.begin)
                except HoldfastError as error:
                    unchanged = "nothing of this epoch is visible in any sink"
                    raise _about_sink(error, named.name, facts.epoch, facts.sources, unchanged) from error
            if not any(named.computes_all for named in self._sinks.values()):
                _compute(frame)
            snapshot, manifest, chunks = self._snapshot(taken, facts, staged)
        self._decide(manifest, chunks, staged)
        self._snapshotter.confirm(snapshot)
        self.newest, self.delivered = manifest, facts.epoch
        # A driver that took over before the decision may have removed the staged output of some sinks. Those would get
        # rows of another run of the query, so that driver has to deliver to all sinks.
        self._store.check_lease()
        self._finish(manifest)

    @contextlib.contextmanager
    def _staging(self, epoch: int) -> Iterator[dict[str, Descriptor]]:
        """Roll back everything staged so far if the block raises; nothing has been decided yet."""
        staged: dict[str, Descriptor] = {}
        try:
            yield staged
        except Exception:
            self._roll_back(staged, epoch)
            raise

    def _roll_back(self, staged: Mapping[str, Descriptor], epoch: int) -> None:
        for name, descriptor in staged.items():
            delivery = Delivery(self._pipeline, name, self._lineage, epoch, self._generation)
            try:
                with step("sink.rollback", sink=name, epoch=epoch):
                    self._sinks[name].sink.rollback(descriptor, delivery)
            except Exception as error:
                log.warning("sink %r could not roll back; the next start removes its staged output: %s", name, error)

    def _stage(
        self, named: NamedSink, rows: EpochRows, facts: EpochFacts, meanwhile: Callable[[], None] = lambda: None
    ) -> Descriptor:
        delivery = Delivery(
            self._pipeline,
            named.name,
            facts.lineage,
            facts.epoch,
            self._generation,
            dict(facts.positions),
            str(facts.runtime.get("query_id") or ""),
        )
        with step("sink.stage", sink=named.name, epoch=facts.epoch):
            meanwhile()
            try:
                return named.sink.stage(rows.of(named), delivery)
            except RefusedTogether:
                if not rows.split_together(named):
                    raise
                return named.sink.stage(rows.of(named), delivery)

    def _snapshot(
        self, taken: SnapshotBeside, facts: EpochFacts, staged: Mapping[str, Descriptor]
    ) -> tuple[Snapshot, CheckpointManifest, list[bytes]]:
        with step("epoch.capture", epoch=facts.epoch):
            snapshot = taken.result()
            operators = {name: operator.snapshot() for name, operator in self._operators.items()}
        manifest, chunks = epoch_manifest(
            facts,
            checkpoint_id=self._next_id,
            timestamp_ms=int(self._clock() * 1000),
            parent=self.newest,
            snapshot=snapshot,
            operators=operators,
            descriptors=staged,
        )
        return snapshot, manifest, chunks

    def _decide(self, manifest: CheckpointManifest, chunks: list[bytes], staged: Mapping[str, Descriptor]) -> None:
        """The commit point. From here on the epoch is finished by this driver or by the next one.

        Staged output is rolled back only if it is certain that our manifest is not stored. Any other failure may have
        come after the write: the next start looks, and then finishes the epoch or removes what was staged.
        """
        with step("epoch.decide", epoch=manifest.epoch, checkpoint_id=manifest.checkpoint_id):
            try:
                self._store.save_with_state(manifest, chunks or None)
            except Fenced as fenced:
                if not self._may_have_decided(manifest.checkpoint_id):
                    self._roll_back(staged, manifest.epoch)
                self._store.check_lease()  # taken over: say so, and stop
                raise Conflict(
                    f"A driver that has been taken over decided epoch {manifest.epoch} at the last moment.",
                    code="epoch.decided-elsewhere",
                    about=f"checkpoint {manifest.checkpoint_id}",
                    unchanged="every sink",
                    next_step="start the pipeline again: it finishes what was decided",
                ) from fenced
        self._next_id = manifest.checkpoint_id + 1

    def _may_have_decided(self, checkpoint_id: int) -> bool:
        """Whether the stored manifest is ours after all: a lost reply looks as if another driver had been first."""
        try:
            stored = self._store.load_by_id(checkpoint_id)
        except HoldfastError:
            return True
        return stored is not None and self._store.has_written(stored)

    # A replayed epoch

    def _replay(self, manifest: CheckpointManifest, frame: DataFrame, rows: EpochRows, facts: EpochFacts) -> None:
        def stage_again(named: NamedSink) -> Descriptor:
            descriptor = self._stage(named, rows, facts)
            self._store.check_lease()  # staging may have taken long: a successor may have removed what it wrote
            return descriptor

        with contextlib.closing(rows):
            self._finish(manifest, stage_again=stage_again)
            _compute(frame)
        self.restore_operators(manifest)

    def restore_operators(self, manifest: CheckpointManifest) -> None:
        """Put every operator back to its state in the checkpoint."""
        if not self._operators:
            return
        states = self._store.load_states(manifest.checkpoint_id)
        for name, operator in self._operators.items():
            if name in states:
                operator.restore(states[name])

    def _finish(
        self, manifest: CheckpointManifest, stage_again: Callable[[NamedSink], Descriptor] | None = None
    ) -> None:
        """Finish the epoch in every sink, or raise: Spark must not count it as done while a sink owes it."""
        finished = finish_owed(
            manifest,
            self._sinks,
            self._store,
            pipeline=self._pipeline,
            generation=self._generation,
            stage_again=stage_again,
        )
        self.newest = finished.manifest
        finished.raise_failure()
        for name, error in finished.gone.items():
            raise _still_owed(error, name, manifest)


def _compute(frame: DataFrame) -> None:
    """Compute every partition and keep nothing.

    Spark writes its state while it computes; that state has to be complete before an epoch is decided.
    """
    frame.write.format("noop").mode("append").save()


def _about_sink(
    error: HoldfastError, sink: str, epoch: int, sources: Mapping[str, ConnectorCheckpoint], unchanged: str
) -> HoldfastError:
    """The same error, saying which sink, which epoch and which offsets it is about."""
    offsets = "; ".join(f"{name} up to {_shown(source.offsets)}" for name, source in sources.items())
    found = error.within(f"Sink {sink!r} in epoch {epoch} ({offsets})", unchanged=unchanged)
    found.__cause__ = error
    return found


def _shown(offsets: Mapping[str, str]) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in list(offsets.items())[:4])
    return shown + (f" and {len(offsets) - 4} more" if len(offsets) > 4 else "")
