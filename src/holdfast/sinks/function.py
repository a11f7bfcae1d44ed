"""`FunctionSink`: calls a function for each epoch, at least once."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid
from holdfast.sinks.sink import Delivery, Descriptor, SinkProgress, StagedOutputGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_Line = tuple[str, str, int]
_Key = tuple[str, str, int, int]


class FunctionSink:
    """Calls `function(frame, epoch)`, or `function(frame)`, when an epoch is committed.

    Does not guarantee exactly-once: if a driver dies after the function has returned and before the checkpoint records
    it, the next driver calls it again with the same epoch number. For exactly-once, the function stores that number in
    the same transaction as its rows, and skips a number that it has stored before.

    Guarantees: never called for an epoch that was not decided, and not twice by one process for an epoch that it
    finished, unless the store was emptied or restored from a copy in between.
    If the function raises, its exception is raised and the epoch stays owed. Staging only keeps the frame in memory:
    after a restart the epoch is staged again.
    """

    guarantee = "at-least-once"

    def __init__(self, function: Callable[..., object]) -> None:
        if not callable(function):
            raise Invalid(
                f"{function!r:.100} is not a function.",
                code="sink.function",
                about="FunctionSink",
                unchanged="everything",
                next_step="give a function of a frame and an epoch",
            )
        self.function = function
        self._takes_epoch = _takes_epoch(function)
        self._staged: dict[_Key, DataFrame] = {}
        self._finished: dict[_Line, int] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FunctionSink({qualified_name(self.function)})"

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", "function": qualified_name(self.function)}

    def prepare(self, schema: StructType, delivery: Delivery) -> None:
        """Nothing to check: only the function knows which rows it takes."""

    def stage(self, frame: DataFrame, delivery: Delivery) -> Descriptor:
        """Keep the frame in memory. The function evaluates it, in `commit`."""
        with self._lock:
            self._staged[_key(delivery)] = frame
        return {}

    def commit(self, descriptor: Descriptor, delivery: Delivery) -> None:
        with self._lock:  # one epoch at a time, also for two threads that commit the same one
            if self._finished.get(_line(delivery), 0) >= delivery.epoch:
                self._staged.pop(_key(delivery), None)
                return
            frame = self._staged.get(_key(delivery))
            if frame is None:
                raise StagedOutputGone(
                    f"The frame of {delivery} is not in this process: another process has staged it in its memory.",
                    about=qualified_name(self.function),
                    unchanged="whatever the function has done so far",
                    next_step="stage the epoch again",
                )
            if self._takes_epoch:
                self.function(frame, delivery.epoch)
            else:
                self.function(frame)
            self._finished[_line(delivery)] = delivery.epoch
            del self._staged[_key(delivery)]

    def rollback(self, descriptor: Descriptor, delivery: Delivery) -> None:
        with self._lock:
            self._staged.pop(_key(delivery), None)

    def recover(self, delivery: Delivery, keep: Descriptor | None) -> SinkProgress:
        """Forget the frames of an earlier start. Progress is unknown: nothing records what the function did.

        Also forgets finished epochs above the decided one: with a new store, their numbers are used again.
        """
        line = _line(delivery)
        with self._lock:
            self._staged.clear()
            others = {key: epoch for key, epoch in self._finished.items() if key[:2] != line[:2]}
            self._finished = others | {line: min(self._finished.get(line, 0), delivery.epoch)}
        return SinkProgress(is_known=False)


def qualified_name(function: Callable[..., object]) -> str:
    """`module.name`, the same in every process. For a partial, of its function; for an object, of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _takes_epoch(function: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a C function without a signature
    for takes_epoch, arguments in ((True, ("frame", 1)), (False, ("frame",))):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return takes_epoch
    raise Invalid(
        f"{qualified_name(function)}{signature} cannot be called with a frame and an epoch, nor with a frame.",
        code="sink.function",
        about=qualified_name(function),
        unchanged="everything",
        next_step="give a function of a frame and an epoch",
    )


def _line(delivery: Delivery) -> _Line:
    return (delivery.pipeline, delivery.sink, delivery.lineage)


def _key(delivery: Delivery) -> _Key:
    return (delivery.pipeline, delivery.sink, delivery.lineage, delivery.epoch)
