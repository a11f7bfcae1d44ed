"""A plain function as a sink."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import Invalid
from holdfast.sinks.function import FunctionSink
from holdfast.sinks.sink import SinkProgress, StagedOutputGone
from holdfast.testing.conformance.sinks import A, B, Row, SinkAbilities, SinkConformance, delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TestFunction(SinkConformance):
    abilities = SinkAbilities(exclusive=False)

    @pytest.fixture(autouse=True)
    def place(self, spark: SparkSession) -> None:
        self.spark = spark
        self.taken: list[Row] = []
        self.fail = False

    def open(self) -> FunctionSink:
        return FunctionSink(self.take)

    def take(self, frame: DataFrame, epoch: int) -> None:
        if self.fail:
            raise OSError("the other side is away")
        self.taken += [(row["id"], row["name"]) for row in frame.collect()]

    def visible(self) -> list[Row]:
        return self.taken

    def test_it_does_not_promise_exactly_once(self) -> None:
        assert self.sink.guarantee == "at-least-once"
        assert self.sink.recover(delivery(1), {}) == SinkProgress(is_known=False)

    def test_after_a_restart_it_is_staged_again(self) -> None:
        descriptor = self.stage(A, delivery(1))
        assert descriptor == {}
        later = self.open()
        with pytest.raises(StagedOutputGone):
            later.commit(descriptor, delivery(1, generation=2))
        self.stage(A, delivery(1, generation=2), later)
        later.commit({}, delivery(1, generation=2))
        assert self.rows() == A

    def test_one_object_with_a_store_that_was_emptied(self) -> None:
        for epoch in (1, 2, 3):
            self.deliver(A, delivery(epoch))
        self.deliver(A, delivery(1, lineage=1))
        self.taken.clear()
        self.sink.recover(delivery(0, generation=1), None)
        for to in (delivery(1), delivery(2), delivery(1, lineage=1)):
            self.deliver(B, to)
        assert self.taken == B * 3

    def test_one_object_with_a_store_that_was_set_back(self) -> None:
        for epoch in (1, 2, 3):
            self.deliver(A, delivery(epoch))
        self.taken.clear()
        self.sink.recover(delivery(2, generation=2), None)
        for epoch in (2, 3):
            self.deliver(B, delivery(epoch, generation=2))
        assert self.taken == B

    def test_epoch_finished_here_and_unfinished_in_the_manifest(self) -> None:
        self.deliver(A, delivery(1))
        self.deliver(A, delivery(1, sink="other"))
        self.taken.clear()
        self.sink.recover(delivery(1, generation=2), {})
        self.deliver(A, delivery(1, generation=2))
        self.deliver(A, delivery(1, generation=2, sink="other"))
        assert self.taken == []

    def test_error_of_the_function_comes_out_and_the_epoch_stays(self) -> None:
        descriptor = self.stage(A, delivery(1))
        self.fail = True
        for _ in range(2):
            with pytest.raises(OSError, match="away"):
                self.sink.commit(descriptor, delivery(1))
        self.fail = False
        self.sink.commit(descriptor, delivery(1))
        assert self.rows() == A

    def test_frames_of_finished_epochs_are_let_go(self) -> None:
        sink = self.open()
        for epoch in (1, 2):
            self.stage(A, delivery(epoch), sink)
            sink.commit({}, delivery(epoch))
        self.stage(A, delivery(1), sink)
        sink.commit({}, delivery(1))
        assert sink._staged == {}
        assert len(self.taken) == 2 * len(A)


def one(frame: Any) -> None: ...
def two(frame: Any, epoch: int) -> None: ...
def three(frame: Any, epoch: int, more: int) -> None: ...
def many(*arguments: Any) -> None: ...
def keyword(frame: Any, *, epoch: int) -> None: ...


class Caller:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def one(self, frame: Any) -> None:
        self.calls.append((frame,))


@pytest.mark.parametrize("refused", [three, keyword, lambda: None, 3, None, "print"])
def test_a_function_that_does_not_take_a_frame_and_an_epoch_is_refused(refused: Any) -> None:
    with pytest.raises(Invalid, match="a frame and an epoch"):
        FunctionSink(refused)


def test_with_and_without_the_epoch() -> None:
    calls = Caller()
    frame: Any = object()
    for function, expected in ((calls, (frame, 7)), (calls.one, (frame,)), (functools.partial(calls.one), (frame,))):
        sink = FunctionSink(function)
        sink.stage(frame, delivery(7))
        sink.commit({}, delivery(7))
        assert calls.calls.pop() == expected


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (one, "one"),
        (functools.partial(two, epoch=3), "two"),
        (Caller(), "Caller"),
        (Caller().one, "Caller.one"),
        (many, "many"),
    ],
)
def test_description_is_the_same_in_every_process(function: Any, name: str) -> None:
    assert FunctionSink(function).describe() == {"kind": "function", "function": f"{__name__}.{name}"}


def test_sinks_are_cheap_to_import() -> None:
    heavy = ["pyspark", "deltalake", "pyarrow", "pandas", "numpy"]
    modules = "holdfast.sinks, holdfast.sinks.files, holdfast.sinks.delta.sink, holdfast.sinks.function"
    program = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
