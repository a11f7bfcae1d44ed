"""The screens that show a run: a picture at a terminal, log lines, or a stream of JSON."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Protocol

from holdfast.cli.format import printable
from holdfast.cli.json_output import write
from holdfast.cli.output import ENVELOPE_VERSION, Cell, Style
from holdfast.cli.run.epochs import DOING, Followed, epoch_json, epoch_line, notice_line, stamped
from holdfast.cli.terminal import TerminalOutput
from holdfast.pipeline.reports import Event
from holdfast.spark import EpochReport, Notice
from holdfast.status.format import moment

if TYPE_CHECKING:
    from rich.text import Text


def clock_ms() -> int:
    return int(time.time() * 1000)


class Screen(Protocol):
    """Shows the events of a run. Belongs to one thread."""

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the screen is in use."""

    def event(self, event: Event) -> None:
        """Show an event of a pipeline."""

    def step(self, name: str | None) -> None:
        """A step has begun; None once it is over."""

    def line(self, text: str) -> None:
        """Show a line that this process or one of its children has printed."""

    def tick(self) -> None:
        """Refresh; called regularly while nothing else happens."""

    def end(self, outcome: str, *, is_good: bool) -> None:
        """The run is over."""


class Lines:
    """One line per epoch and per notice: for logs, mails and grep."""

    def __init__(self, stdout: IO[str], clock: Callable[[], int] = clock_ms) -> None:
        self._stdout = stdout
        self._clock = clock

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def event(self, event: Event) -> None:
        self.line(notice_line(event, self._clock()) if isinstance(event, Notice) else epoch_line(event, self._clock()))

    def step(self, name: str | None) -> None:
        """Does nothing: a step gets no line."""

    def line(self, text: str) -> None:
        self._stdout.write(printable(text) + "\n")
        self._stdout.flush()

    def tick(self) -> None:
        """Does nothing."""

    def end(self, outcome: str, *, is_good: bool) -> None:
        self.line(f"{moment(self._clock())}  {outcome}")


class Stream:
    """One JSON document per line, and nothing else on standard output."""

    def __init__(self, stdout: IO[str], clock: Callable[[], int] = clock_ms) -> None:
        self._stdout = stdout
        self._clock = clock
        self._epochs = 0
        self._rows = 0
        self._refused = 0

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def event(self, event: Event) -> None:
        if isinstance(event, EpochReport):
            self._epochs += 1
            self._rows += event.rows
            self._refused += sum(event.refused.values())
            self._say("epoch", epoch_json(event))
        else:
            self._say("notice", {"pipeline": event.pipeline, "level": event.level, "text": event.text})

    def step(self, name: str | None) -> None:
        """Does nothing: the epoch's event has the seconds of each step."""

    def line(self, text: str) -> None:
        self._say("notice", {"pipeline": None, "level": "info", "text": text})

    def tick(self) -> None:
        """Does nothing."""

    def end(self, outcome: str, *, is_good: bool) -> None:
        counts = {"epochs": self._epochs, "rows": self._rows, "refused": self._refused}
        self._say("end", {"outcome": outcome, "is_good": is_good, **counts})

    def _say(self, event: str, data: Mapping[str, Any]) -> None:
        envelope = {"holdfast": ENVELOPE_VERSION, "command": "run", "event": event, "time_ms": self._clock()}
        write(self._stdout, {**envelope, "data": data}, in_one_line=True)
        self._stdout.flush()


class Picture:
    """A table that stays in place and is redrawn at every event; notices and printed lines go above it."""

    def __init__(self, canvas: Canvas, clock: Callable[[], int] = clock_ms) -> None:
        self._canvas = canvas
        self._clock = clock
        self._followed: dict[str, Followed] = {}
        self._outcome: Cell | None = None
        self._began_ms = clock()

    def shown(self) -> contextlib.AbstractContextManager[None]:
        return self._canvas.shown()

    def event(self, event: Event) -> None:
        now = self._clock()
        followed = self._followed.setdefault(event.pipeline, Followed(event.pipeline, now))
        if isinstance(event, EpochReport):
            followed.take(event, now)
        else:
            style: Style = "" if event.level == "info" else "doubtful"
            line = stamped(event.pipeline, event.text, now)
            self._canvas.above(lambda output: output.line(Cell(line, style), wrap=True))
        self.tick()

    def step(self, name: str | None) -> None:
        if len(self._followed) == 1:  # a step does not name its pipeline
            for followed in self._followed.values():
                followed.doing = DOING.get(name) if name else None
        self.tick()

    def line(self, text: str) -> None:
        self._canvas.print(text)

    def tick(self) -> None:
        self._canvas.draw(self._draw)

    def end(self, outcome: str, *, is_good: bool) -> None:
        self._outcome = Cell(outcome, "good" if is_good else "bad")
        self.tick()

    def _draw(self, output: TerminalOutput) -> None:
        now = self._clock()
        for followed in self._followed.values():
            followed.draw(output, now, self._outcome)
        if not self._followed:
            output.line(self._outcome or Cell(f"starting Spark … {(now - self._began_ms) // 1000} s", "faint"))


# A picture at a terminal that is redrawn in place, with lines above it that scroll away

Draw = Callable[[TerminalOutput], None]
"""Writes a picture to an output, line by line, as a verb writes its result."""


class Canvas:
    """The lower part of a terminal. Belongs to one thread; nothing else may write to the terminal meanwhile."""

    def __init__(self, terminal: IO[str], *, environment: Mapping[str, str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._terminal = terminal
        self._environment = environment
        has_colour = not environment.get("NO_COLOR")
        self._console = Console(
            file=terminal, force_terminal=True, no_color=not has_colour, markup=False, highlight=False, emoji=False
        )
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a picture while the block runs; the last one stays on the screen."""
        with self._live:
            yield

    def draw(self, draw: Draw) -> None:
        """Replace the picture."""
        self._fit()
        self._live.update(_text(painted(draw, self._environment, self._console.size.width)), refresh=True)

    def above(self, draw: Draw) -> None:
        """Write lines that stay, above the picture."""
        self._fit()
        self._console.print(_text(painted(draw, self._environment, self._console.size.width)), soft_wrap=True)

    def print(self, line: str) -> None:
        """Write a line that other code has printed, with its colours but without other control sequences."""
        self._fit()
        self._console.print(_text(line), soft_wrap=True)

    def _fit(self) -> None:
        """Follow a resized terminal. Rich would ask the standard streams, which need not be the terminal any more."""
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(self._terminal.fileno())
            if size.columns and size.lines:
                self._console.size = (size.columns, size.lines)


class _Picture(io.StringIO):
    """A buffer that claims to be a terminal, so that the output uses colours."""

    def isatty(self) -> bool:
        return True


def painted(draw: Draw, environment: Mapping[str, str], columns: int) -> str:
    """The picture for a terminal of this width, as text with colour codes."""
    picture = _Picture()
    draw(TerminalOutput(io.StringIO(), picture, picture, environment=environment, columns=lambda: columns))
    return picture.getvalue().removesuffix("\n")


def _text(painted: str) -> Text:
    from rich.text import Text

    return Text.from_ansi(painted, no_wrap=True, overflow="ellipsis")
