"""Steps are seen by those who observe them: the whole process by failpoints, a block of its own by a listener."""

from __future__ import annotations

import contextvars
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.base.steps import Phase, observe, observed_by, step


class Seen:
    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, name: str, phase: Phase, _: float) -> None:
        self.steps.append((name, phase))


def test_an_observer_sees_every_thread_of_the_process() -> None:
    seen = Seen()
    stop = observe(seen)
    thread = threading.Thread(target=lambda: step("elsewhere").__enter__())
    thread.start()
    thread.join()
    stop()
    with step("later"):
        pass
    assert seen.steps == [("elsewhere", "begin")]


def test_a_listener_sees_the_steps_of_its_block_and_no_others() -> None:
    """Two pipelines in one process, each in a thread of its own, at the same time."""
    both_are_in = threading.Barrier(2)

    def work(name: str) -> list[tuple[str, str]]:
        seen = Seen()
        with observed_by(seen):
            both_are_in.wait(60)
            with step(name):
                both_are_in.wait(60)
        with step("after it"):
            pass
        return seen.steps

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(work, ["a", "b"]))
    assert found == [[("a", "begin"), ("a", "end")], [("b", "begin"), ("b", "end")]]


def test_helper_threads_of_a_block_are_seen_in_a_copy_of_its_context() -> None:
    seen = Seen()

    def help_out() -> None:
        with step("helped"):
            pass

    with observed_by(seen), ThreadPoolExecutor(1) as threads:
        threads.submit(contextvars.copy_context().run, help_out).result()
        threads.submit(help_out).result()
    assert seen.steps == [("helped", "begin"), ("helped", "end")]


def test_an_inner_block_is_also_seen_by_the_outer_one() -> None:
    outer, inner = Seen(), Seen()
    with observed_by(outer):
        with observed_by(inner), pytest.raises(ZeroDivisionError), step("one"):
            raise ZeroDivisionError
        with step("two"):
            pass
    assert inner.steps == [("one", "begin"), ("one", "failed")]
    assert outer.steps == [*inner.steps, ("two", "begin"), ("two", "end")]


def test_a_listener_that_fails_fails_no_step_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def listener(name: str, phase: Phase, _: float) -> None:
        raise ZeroDivisionError(name, phase)

    done = []
    with caplog.at_level(logging.WARNING), observed_by(listener):
        for number in range(3):
            with step("one"):
                done.append(number)
    assert done == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records] == ["a listener failed at step one"]


def test_a_failpoint_fails_its_step() -> None:
    def fail(name: str, phase: Phase, _: float) -> None:
        raise ZeroDivisionError(name, phase)

    stop = observe(fail)
    try:
        with pytest.raises(ZeroDivisionError), step("one"):
            pass
    finally:
        stop()
