"""One epoch: stage, capture, decide, commit.

A failure before the decision leaves nothing visible. A failure after it is always finished, never undone.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from holdfast.base.steps import step
from holdfast.checkpoints import CheckpointStore
from holdfast.checkpoints.manifest import CheckpointManifest, SinkCommitStatus, SinkStatus
from holdfast.errors import Conflict, Fenced, HoldfastError, Invalid
from holdfast.pipeline.decisions import NewEpoch, ReplayedEpoch, classify_batch
from holdfast.pipeline.epoch_manifest import EpochFacts, Holding, epoch_manifest, with_statuses
from holdfast.sinks import EXACTLY_ONCE, Delivery, Descriptor, Sink, StagedOutputGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("holdfast.epochs")


class Operator(Protocol):
    """A user's own object on the driver that takes part in every checkpoint."""

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


class NamedSink:
    """A sink of one pipeline, with the view of the frame that it gets."""

    def __init__(self, name: str, sink: Sink, view: Callable[[DataFrame], DataFrame] | None) -> None:
        self.name = name
        self.sink = sink
        self.view = view

    def frame(self, frame: DataFrame) -> DataFrame:
        return self.view(frame) if self.view else frame

    @property
    def computes_all(self) -> bool:
        """Whether staging computes the whole frame: a view may ask for a part, and a function is called later."""
        return self.view is None and self.sink.guarantee == EXACTLY_ONCE


class Capturing(Protocol):
    """The part of an epoch that knows Spark's files."""

    def take(self, facts: EpochFacts) -> Holding:
        """Write what running this batch again needs; durable on return."""

    def settle(self) -> None:
        """What was taken last belongs to a saved checkpoint now."""


class Frames(Protocol):
    """What can be done with a frame of an epoch; kept apart, so that this file needs no Spark."""

    def held(self, frame: DataFrame) -> contextlib.AbstractContextManager[DataFrame]:
        """The frame, computed at most once however many sinks read it."""

    def evaluate(self, frame: DataFrame) -> None:
        """Compute every partition and keep nothing, so that Spark's state is written."""


class EpochCoordinator:
    """Runs the epochs of one pipeline, one after the other, for one driver."""

    def __init__(
        self,
        *,
        pipeline: str,
        lineage: int,
        generation: int,
        store: CheckpointStore,
        sinks: Mapping[str, NamedSink],
        operators: Mapping[str, Operator],
        capturing: Capturing,
        frames: Frames,
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
        self._capturing = capturing
        self._frames = frames
        self._clock = clock
        # Chosen before the newest checkpoint was looked for: whatever anybody decided after that look has this id.
        self._next_id = first_id

    def delivery(self, sink: str, epoch: int, facts: EpochFacts | None = None) -> Delivery:
        """With `facts` it also says what the epoch was read from."""
        names = (self._pipeline, sink, self._lineage, epoch, self._generation)
        if facts is None:
            return Delivery(*names)
        return Delivery(*names, dict(facts.positions), str(facts.runtime.get("query_id") or ""))

    def run(self, frame: DataFrame, facts: EpochFacts) -> None:
        """Deliver one epoch to every sink. Raises with every sink either untouched or about to be finished."""
        self._store.check_lease()
        match classify_batch(self.newest, self.delivered, facts.epoch, frozenset(self._sinks)):
            case ReplayedEpoch() as replay:
                self._replay(frame, replay, facts)
            case NewEpoch():
                self._deliver(frame, facts)

    # A fresh epoch

    def _deliver(self, frame: DataFrame, facts: EpochFacts) -> None:
        with self._frames.held(frame) as held:
            with self._staging(facts) as staged:
                for named in self._sinks.values():
                    staged[named.name] = self._stage(named, held, facts)
                self._evaluate_if_unsure(held)
                manifest, chunks = self._prepare(facts, staged)
            self._decide(manifest, chunks, staged)
            self._capturing.settle()
            self.newest, self.delivered = manifest, facts.epoch
            # One who took over before the decision may have removed what some sinks staged. Those would get rows of
            # another run of the query: let it deliver to all of them.
            self._store.check_lease()
            self._commit(manifest, tuple(self._sinks), facts)

    @contextlib.contextmanager
    def _staging(self, facts: EpochFacts) -> Iterator[dict[str, Descriptor]]:
        """Whatever was staged when something fails here is rolled back: nothing has been decided."""
        staged: dict[str, Descriptor] = {}
        try:
            yield staged
        except Exception:
            self._roll_back(staged, facts.epoch)
            raise

    def _roll_back(self, staged: Mapping[str, Descriptor], epoch: int) -> None:
        for name, descriptor in staged.items():
            try:
                with step("sink.rollback", sink=name, epoch=epoch):
                    self._sinks[name].sink.rollback(descriptor, self.delivery(name, epoch))
            except Exception as error:
                log.warning("what sink %r staged is left for the next start to remove: %s", name, error)

    def _stage(self, named: NamedSink, frame: DataFrame, facts: EpochFacts) -> Descriptor:
        try:
            with step("sink.stage", sink=named.name, epoch=facts.epoch):
                return named.sink.stage(named.frame(frame), self.delivery(named.name, facts.epoch, facts))
        except HoldfastError as error:
            raise _about_sink(error, named.name, facts, "nothing of this epoch is visible in any sink") from error

    def _evaluate_if_unsure(self, frame: DataFrame) -> None:
        """Spark's state is written by what is computed, and it has to be there before the epoch is decided."""
        if not any(named.computes_all for named in self._sinks.values()):
            self._frames.evaluate(frame)

    def _prepare(self, facts: EpochFacts, staged: Mapping[str, Descriptor]) -> tuple[CheckpointManifest, list[bytes]]:
        with step("epoch.capture", epoch=facts.epoch):
            holding = self._capturing.take(facts)
            operators = {name: operator.snapshot() for name, operator in self._operators.items()}
        return epoch_manifest(
            facts,
            checkpoint_id=self._next_id,
            timestamp_ms=int(self._clock() * 1000),
            parent=self.newest,
            holding=holding,
            operators=operators,
            descriptors=staged,
        )

    def _decide(self, manifest: CheckpointManifest, chunks: list[bytes], staged: Mapping[str, Descriptor]) -> None:
        """The commit point. From here on the epoch is finished by this driver or by the next one.

        What was staged here is taken back only if it is sure that our manifest is not there. Any failure may have come
        after it was written: the next start looks, and then finishes the epoch or removes what was staged.
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
        """Whether the manifest there is ours after all: a lost reply looks as if somebody else had been first."""
        try:
            stored = self._store.load_by_id(checkpoint_id)
        except HoldfastError:
            return True
        return stored is not None and self._store.has_written(stored)

    # After the decision

    def _commit(self, manifest: CheckpointManifest, names: tuple[str, ...], facts: EpochFacts) -> None:
        """Commit these sinks, then record what became of each, then raise if any is still owed."""
        outcomes: dict[str, SinkStatus] = {}
        failures: list[Exception] = []
        for name in names:
            try:
                self.commit_sink(name, manifest.own.sinks[name], manifest.epoch)
                outcomes[name] = SinkCommitStatus.committed()
            except HoldfastError as error:
                if isinstance(error, Invalid):
                    outcomes[name] = SinkCommitStatus.failed(error.message)
                failures.append(
                    _about_sink(error, name, facts, f"epoch {manifest.epoch} is decided and will be finished")
                )
            except Exception as error:  # a user's own code: the epoch is owed all the same
                failures.append(error)
        self.record(manifest, outcomes)
        if failures:
            raise failures[0]

    def commit_sink(self, name: str, descriptor: Descriptor, epoch: int) -> None:
        """One sink's commit; idempotent."""
        with step("sink.commit", sink=name, epoch=epoch):
            self._sinks[name].sink.commit(descriptor, self.delivery(name, epoch))

    def record(self, manifest: CheckpointManifest, outcomes: Mapping[str, SinkStatus]) -> None:
        """Write down what became of the sinks, at once for all."""
        if not outcomes:
            return
        settled = with_statuses(manifest, outcomes)
        with step("epoch.settle", epoch=manifest.epoch):
            self.newest = self._store.update_manifest(settled)

    # An epoch once more

    def _replay(self, frame: DataFrame, replay: ReplayedEpoch, facts: EpochFacts) -> None:
        manifest = replay.manifest
        with self._frames.held(frame) as held:
            for name in replay.unfinished:
                try:
                    self._finish(self._sinks[name], held, manifest, facts)
                except HoldfastError as error:
                    raise _about_sink(error, name, facts, f"epoch {facts.epoch} is decided and still owed") from error
            self._frames.evaluate(held)
        if replay.unfinished:
            self.record(manifest, dict.fromkeys(replay.unfinished, SinkCommitStatus.committed()))
        self.restore_operators(manifest)

    def _finish(self, named: NamedSink, frame: DataFrame, manifest: CheckpointManifest, facts: EpochFacts) -> None:
        delivery = self.delivery(named.name, manifest.epoch, facts)
        try:
            self.commit_sink(named.name, manifest.own.sinks[named.name], manifest.epoch)
        except StagedOutputGone:
            with step("sink.stage", sink=named.name, epoch=manifest.epoch):
                descriptor = named.sink.stage(named.frame(frame), delivery)
            self.commit_sink(named.name, descriptor, manifest.epoch)

    def restore_operators(self, manifest: CheckpointManifest) -> None:
        """Put every operator back to where the checkpoint has it."""
        if not self._operators:
            return
        states = self._store.load_states(manifest.checkpoint_id)
        for name, operator in self._operators.items():
            if name in states:
                operator.restore(states[name])


def _about_sink(error: HoldfastError, sink: str, facts: EpochFacts, unchanged: str) -> HoldfastError:
    """The same error, saying which sink, which epoch and which offsets it is about."""
    offsets = [f"{name} up to {_shown(source.offsets)}" for name, source in facts.sources.items()]
    return error.within(f"Sink {sink!r} in epoch {facts.epoch} ({'; '.join(offsets)})", unchanged=unchanged)


def _shown(offsets: Mapping[str, str]) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in list(offsets.items())[:4])
    return shown + (f" and {len(offsets) - 4} more" if len(offsets) > 4 else "")
