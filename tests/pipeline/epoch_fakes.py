"""What surrounds an epoch, played by hand: sinks that remember, a snapshotter, frames, operators, a faulty medium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast import CheckpointStore, ConnectorCheckpoint
from holdfast.checkpoints.layout import ObjectLayout
from holdfast.checkpoints.manifest import BatchObject, CheckpointManifest
from holdfast.pipeline.definition import NamedSink
from holdfast.pipeline.epoch import EpochCoordinator
from holdfast.pipeline.epoch_manifest import EpochFacts
from holdfast.pipeline.workdir.snapshot import Snapshot
from holdfast.sinks import Delivery, Descriptor, SinkProgress, StagedOutputGone
from holdfast.storage.objects import ObjectStore, open_objects
from holdfast.storage.objects.store import Chunks

Rows = tuple[str, ...]
History = list[tuple[str, ...]]


class Killed(BaseException):
    """Stands for the end of the process: no handler of errors may run."""


class Failures:
    """What goes wrong, by the name of the event it goes wrong at; each once."""

    def __init__(self, **planned: BaseException | Callable[[], None]) -> None:
        self.planned = {name.replace("_", " ", 1): problem for name, problem in planned.items()}

    def at(self, event: str) -> None:
        problem = self.planned.pop(event, None)
        if isinstance(problem, BaseException):
            raise problem
        if problem is not None:
            problem()


class MemorySink:
    """A sink as the contract has it: staged rows are invisible, commits are idempotent by lineage and epoch."""

    guarantee = "exactly-once"

    def __init__(self, name: str, history: History, failures: Failures) -> None:
        self.name = name
        self.staged: dict[str, tuple[Rows, int]] = {}
        self.visible: dict[tuple[int, int], list[Rows]] = {}
        self._history = history
        self._failures = failures

    def describe(self) -> dict[str, Any]:
        return {"kind": "memory", "name": self.name}

    def prepare(self, schema: Any, delivery: Delivery) -> None: ...

    def stage(self, frame: Any, delivery: Delivery) -> Descriptor:
        self._note("stage", delivery)
        place = f"{delivery.lineage}-{delivery.epoch}-{len(self._history)}"
        self.staged[place] = (frame, delivery.generation)
        self._failures.at(f"staged {self.name}")
        return {"place": place}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self._note("commit", delivery)
        key = (delivery.lineage, delivery.epoch)
        if key not in self.visible:
            if descriptor["place"] not in self.staged:
                raise StagedOutputGone(f"What was staged for {delivery} is gone.")
            self.visible[key] = [self.staged[descriptor["place"]][0]]
        self.staged.pop(descriptor["place"], None)
        self._failures.at(f"committed {self.name}")

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        self._note("rollback", delivery)
        self.staged.pop(descriptor["place"], None)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        kept = keep["place"] if keep else None
        self.staged = {
            place: held for place, held in self.staged.items() if place == kept or held[1] >= delivery.generation
        }
        epochs = [epoch for lineage, epoch in self.visible if lineage == delivery.lineage]
        lineages = [lineage for lineage, _ in self.visible]
        return SinkProgress(max(epochs, default=None), max(lineages, default=None))

    def _note(self, what: str, delivery: Delivery) -> None:
        self._history.append((what, self.name, str(delivery.epoch)))
        self._failures.at(f"{what} {self.name}")


class FakeSnapshotter:
    def __init__(self, history: History, failures: Failures, found: Snapshot | None = None) -> None:
        self._found = found or Snapshot([], [])
        self._history = history
        self._failures = failures

    def snapshot(self, batch_id: int, epoch: int) -> Snapshot:
        assert batch_id == epoch - 1
        self._history.append(("snapshot", str(epoch)))
        self._failures.at("snapshot")
        return self._found

    def confirm(self, snapshot: Snapshot) -> None:
        assert snapshot is self._found
        self._history.append(("confirm",))


class FakeFrame(tuple[str, ...]):
    """Rows that can be written to Spark's sink for nothing, as a frame can."""

    world: World

    @property
    def write(self) -> Any:
        return _NoopWriter(self.world)


class _NoopWriter:
    def __init__(self, world: World) -> None:
        self._world = world

    def format(self, name: str) -> _NoopWriter:
        assert name == "noop"
        return self

    def mode(self, name: str) -> _NoopWriter:
        assert name == "append"
        return self

    def save(self) -> None:
        self._world.history.append(("evaluate",))
        self._world.failures.at("evaluate")


class Counter:
    """An operator of a user's."""

    def __init__(self, state: bytes = b"") -> None:
        self.state = state
        self.restored: list[bytes] = []

    def snapshot(self) -> bytes:
        return self.state

    def restore(self, state: bytes) -> None:
        self.state = state
        self.restored.append(state)


class FaultyObjects:
    """A medium that fails around the creation of a manifest."""

    def __init__(self, objects: ObjectStore, *, before: BaseException | None, after: BaseException | None) -> None:
        self._objects = objects
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def create(self, key: str, chunks: Chunks) -> None:
        if not key.startswith("manifests/"):
            self._objects.create(key, chunks)
            return
        if self._before:
            raise self._before
        self._objects.create(key, chunks)
        if self._after:
            raise self._after


def faulty_store(
    url: str, *, before: BaseException | None = None, after: BaseException | None = None
) -> CheckpointStore:
    objects: Any = FaultyObjects(open_objects(url), before=before, after=after)
    return CheckpointStore(objects, ObjectLayout())


def epoch_facts(epoch: int, **fields: Any) -> EpochFacts:
    given: dict[str, Any] = {
        "epoch": epoch,
        "batch_id": epoch - 1,
        "lineage": 0,
        "sources": {"orders": ConnectorCheckpoint({"orders-0": str(10 * epoch)}, epoch, {"connector": "kafka"})},
        "tables": {},
        "ranges": {},
        "watermark": None,
        "pipeline_hash": 77,
        "workdir": "/data/work",
        "vnode_count": 2,
        "runtime": {"pipeline": "shop", "query_id": "q-1"},
    }
    return EpochFacts(**(given | fields))


def batch_object(number: int, *, key: str | None = None) -> BatchObject:
    return BatchObject(key or f"checkpoints/batch-{number:06}.lz4", 100 + number, "0" * 64, 3)


class World:
    """A pipeline with its store and sinks; `runner` is the driver at work."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        sinks: tuple[str, ...] = ("lake", "pg"),
        failures: Failures | None = None,
        views: Mapping[str, Callable[[Any], Any]] | None = None,
        operators: Mapping[str, Counter] | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.store = store
        self.history: History = []
        self.failures = failures or Failures()
        self.sinks = {name: MemorySink(name, self.history, self.failures) for name in sinks}
        self.snapshotter: Any = FakeSnapshotter(self.history, self.failures, snapshot)
        self.operators = dict(operators or {})
        self._views = views or {}

    @property
    def named(self) -> dict[str, NamedSink]:
        return {name: NamedSink(name, sink, self._views.get(name)) for name, sink in self.sinks.items()}

    def start(
        self,
        newest: CheckpointManifest | None = None,
        delivered: int | None = None,
        *,
        store: CheckpointStore | None = None,
    ) -> EpochCoordinator:
        """A driver, which has claimed the store."""
        store = store or self.store
        generation = store.claim("a driver").generation
        return EpochCoordinator(
            pipeline="shop",
            lineage=newest.own.lineage if newest else 0,
            generation=generation,
            store=store,
            sinks=self.named,
            operators=self.operators,
            snapshotter=self.snapshotter,
            newest=newest,
            delivered=delivered if delivered is not None else (newest.epoch if newest else 0),
            first_id=store.next_id(saved_only=True),
            clock=lambda: 1_760_000_000.5,
        )

    def run(self, coordinator: EpochCoordinator, rows: Rows, facts: EpochFacts) -> None:
        """One batch, as Spark hands it over."""
        frame: Any = FakeFrame(rows)
        frame.world = self
        coordinator.run(coordinator.classify(facts.epoch), frame, facts)

    def seen(self, sink: str) -> dict[int, list[Rows]]:
        """What a reader of the sink sees, by epoch."""
        return {epoch: rows for (_, epoch), rows in sorted(self.sinks[sink].visible.items())}

    def left(self) -> dict[str, int]:
        """How much is staged and not committed."""
        return {name: len(sink.staged) for name, sink in self.sinks.items()}
