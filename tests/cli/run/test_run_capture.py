"""The queue between a run and its screen: bounded, whatever the screen does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from holdfast.base.steps import step
from holdfast.cli.run import capture
from holdfast.cli.run.capture import Listening
from holdfast.pipeline.reports import Notice, tell


class Screen:
    """A screen that holds still, fails, or shows, as the test says."""

    def __init__(self) -> None:
        self.may_show = threading.Event()
        self.is_asked = threading.Event()
        self.is_broken = False
        self.lines: list[str] = []

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def line(self, text: str) -> None:
        self.is_asked.set()
        assert self.may_show.wait(60)
        if self.is_broken:
            raise BrokenPipeError
        self.lines.append(text)

    def event(self, event: Any) -> None:
        self.line(event.text)

    def step(self, name: str | None) -> None:
        pass

    def tick(self) -> None:
        pass

    def end(self, outcome: str, *, is_good: bool) -> None:
        self.lines.append(outcome)


def test_nothing_waits_for_a_reader_that_has_gone() -> None:
    screen = Screen()
    screen.is_broken = True
    screen.may_show.set()
    listening = Listening(screen)
    with listening.listening():
        tell(Notice("shop", "begun"))
        listening._thread.join(60)
        for number in range(1000):
            tell(Notice("shop", str(number)))
            listening.line("printed")
            with step("sink.stage"):
                pass
        assert listening.waiting == 0
    assert listening.has_heard
    listening.finish("finished", is_good=True)
    assert screen.lines == []


def test_a_screen_that_holds_still_is_told_no_more_than_can_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(capture, "MOST_WAITING", 10)
    screen = Screen()
    listening = Listening(screen)
    with listening.listening():
        tell(Notice("shop", "begun"))
        assert screen.is_asked.wait(60)
        for number in range(1000):
            tell(Notice("shop", str(number)))
        assert listening.waiting == 10
        screen.may_show.set()
    listening.finish("finished", is_good=True)
    assert screen.lines[:11] == ["begun", *map(str, range(10))]
    assert screen.lines[-1] == "finished"
    assert len(screen.lines) <= 13
