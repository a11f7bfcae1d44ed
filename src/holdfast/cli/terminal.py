"""The output for people: aligned columns, colour and progress bars at a terminal, plain text elsewhere.

Plain text has the same lines without colour: columns at least two spaces apart and no boxes, for grep, awk and mails
from cron.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from holdfast.cli.format import printable, width
from holdfast.cli.output import Bar, Cell, Line, Row, Style
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from rich.progress import Progress

Unit = Literal["bytes", "items"]
PATIENCE = 0.5
"""Seconds before a bar appears: short work needs no bar, and does not have to wait until rich is imported."""

_LOOKS: dict[Style, dict[str, Any]] = {
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "doubtful": {"fg": "yellow"},
    "faint": {"dim": True},
    "strong": {"bold": True},
}
GAP = "  "
LEAST_LAST = 16
"""The least width that the last column gets before it is wrapped, if it needs that much."""
LEAST_WRAPPED = 10


class TerminalOutput:
    """Text for people. Escapes all text, whatever its origin."""

    def __init__(
        self,
        stdin: IO[str],
        stdout: IO[str],
        stderr: IO[str],
        *,
        environment: Mapping[str, str],
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._columns = columns
        self._bar: Bar = Unseen()
        simple = environment.get("TERM") == "dumb"
        self.is_terminal = stdout.isatty()
        self.can_ask = stdin.isatty() and stderr.isatty()
        self.has_bars = stderr.isatty() and not simple
        # An empty NO_COLOR counts as unset: https://no-color.org
        self._has_colour = not environment.get("NO_COLOR") and not simple

    def line(self, line: Line = "", *, wrap: bool = False) -> None:
        pieces = [_cell(piece) for piece in ([line] if isinstance(line, (str, Cell)) else line)]
        indent = sum(width(printable(piece.text)) for piece in pieces[:-1])
        first, *more = self._wrapped(pieces[-1].text, indent) if wrap else [pieces[-1].text]
        self._print([*pieces[:-1], Cell(first, pieces[-1].style)])
        for text in more:
            self._print([" " * indent, Cell(text, pieces[-1].style)])

    def _print(self, line: Line) -> None:
        with self._bar.hidden():
            self._stdout.write(self._painted(line, self._stdout) + "\n")
            if self.is_terminal:
                self._stdout.flush()

    def table(
        self, header: Sequence[str], rows: Sequence[Row], *, right: Sequence[int] = (), spare: Sequence[int] = ()
    ) -> None:
        cells = [[Cell(name, "faint") for name in header], *([_cell(item) for item in row] for row in rows)]
        widths = [max(width(printable(row[n].text)) for row in cells) for n in range(len(header))]
        columns = self._columns_that_fit(widths, spare)
        for row in cells:
            self._table_row(row, widths, columns, right)

    def _table_row(self, row: list[Cell], widths: list[int], columns: list[int], right: Sequence[int]) -> None:
        pieces: list[str | Cell] = []
        for n in columns[:-1]:
            space = " " * (widths[n] - width(printable(row[n].text)))
            pieces += [space, row[n], GAP] if n in right else [row[n], space, GAP]
        last = columns[-1]
        if last in right:
            pieces.append(" " * (widths[last] - width(printable(row[last].text))))
        self.line([*pieces, row[last]] if row[last].text else _without_tail(pieces), wrap=bool(row[last].text))

    def _columns_that_fit(self, widths: list[int], spare: Sequence[int]) -> list[int]:
        """All columns; on a narrow terminal, without as many of the spare ones as necessary."""
        columns = list(range(len(widths)))
        room = self._columns() if self.is_terminal else sum(widths) * 2
        for n in spare:
            taken = sum(widths[n] + len(GAP) for n in columns[:-1]) + min(widths[-1], LEAST_LAST)
            if taken > room:
                columns.remove(n)
        return columns

    def _wrapped(self, text: str, indent: int) -> list[str]:
        """The text wrapped to the terminal's width; one line if there is no terminal."""
        text = printable(text)
        room = self._columns() - indent if self.is_terminal else 0
        if room < LEAST_WRAPPED or width(text) <= room:
            return [text]
        return textwrap.wrap(text, room, break_on_hyphens=False) or [""]

    def note(self, text: str) -> None:
        self._stdout.flush()  # keeps the order if both streams go to the same place
        with self._bar.hidden():
            self._stderr.write(self._painted([Cell("note: ", "doubtful"), text], self._stderr) + "\n")

    @contextlib.contextmanager
    def bar(self, what: str, total: int, *, unit: Unit) -> Iterator[Bar]:
        self._stdout.flush()
        if not self.has_bars:
            yield Unseen()
            return
        bar = LateBar(what, total, unit=unit, stderr=self._stderr, has_colour=self._has_colour)
        self._bar = bar
        try:
            yield bar
        finally:
            self._bar = Unseen()
            bar.close()

    def ask(self, question: str) -> bool:
        self._stdout.flush()
        self._stderr.write(self._painted([Cell(question, "strong"), " [y/N] "], self._stderr))
        self._stderr.flush()
        return self._stdin.readline().strip().lower() in ("y", "yes")

    def finish(self, store: str, data: Mapping[str, Any]) -> None:
        """Does nothing: `line` and `table` have written the result."""

    def fail(self, error: HoldfastError, kind: str | None = None) -> None:
        with contextlib.suppress(OSError):
            self._stdout.flush()
        about = error.about if error.about and error.about not in error.message else None
        parts: list[str | Cell] = [Cell("error: ", "bad"), f"{about}: " if about else "", error.message]
        self._stderr.write(self._painted(parts, self._stderr) + "\n")
        for label, text in (("unchanged", error.unchanged), ("next", error.next_step)):
            if text:
                self._stderr.write(self._painted([Cell(f"  {label}: ", "faint"), text], self._stderr) + "\n")

    def _painted(self, line: Line, stream: IO[str]) -> str:
        pieces = [line] if isinstance(line, (str, Cell)) else line
        with_colour = self._has_colour and stream.isatty()
        return "".join(_paint(_cell(piece), with_colour) for piece in pieces)


def terminal_output(environment: Mapping[str, str] | None = None) -> TerminalOutput:
    """The output of this process."""
    environment = os.environ if environment is None else environment
    return TerminalOutput(sys.stdin, sys.stdout, sys.stderr, environment=environment)


def _cell(piece: str | Cell) -> Cell:
    return piece if isinstance(piece, Cell) else Cell(piece)


def _paint(cell: Cell, with_colour: bool) -> str:
    text = printable(cell.text)
    return click.style(text, **_LOOKS[cell.style]) if with_colour and cell.style and text else text


def _without_tail(pieces: list[str | Cell]) -> list[str | Cell]:
    """The row without trailing empty cells, so that it does not end with spaces."""
    while pieces and not _cell(pieces[-1]).text.strip():
        pieces = pieces[:-1]
    return pieces


# Progress bars: only at a terminal, and only for work that takes longer than `PATIENCE`


class Unseen:
    """A bar that is not shown."""

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        yield

    def advance(self, amount: int) -> None:
        """Nothing to show."""

    def describe(self, text: str) -> None:
        """Nothing to show."""


class LateBar:
    """A bar on a terminal that appears after `PATIENCE` seconds of work and is erased at the end."""

    def __init__(self, what: str, total: int, *, unit: Unit, stderr: IO[str], has_colour: bool) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._stderr = stderr
        self._has_colour = has_colour
        self._began = time.monotonic()
        self._done = 0
        self._progress: Progress | None = None

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        if self._progress:
            self._progress.stop()
        yield
        if self._progress:
            self._progress.start()

    def advance(self, amount: int) -> None:
        self._done += amount
        self._refresh()

    def describe(self, text: str) -> None:
        self._what = text
        self._refresh()

    def close(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _refresh(self) -> None:
        if self._progress is None:
            if time.monotonic() - self._began < PATIENCE:
                return
            self._progress = _rich_progress(self._unit, self._stderr, self._has_colour)
            self._progress.add_task(printable(self._what), total=self._total or None)
            self._progress.start()
        only_task = self._progress.task_ids[0]
        self._progress.update(only_task, completed=self._done, description=printable(self._what))


def _rich_progress(unit: Unit, stderr: IO[str], has_colour: bool) -> Progress:
    from rich import progress
    from rich.console import Console

    amounts: list[progress.ProgressColumn] = (
        [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
        if unit == "bytes"
        else [progress.MofNCompleteColumn()]
    )
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        *amounts,
        progress.TimeRemainingColumn(compact=True),
        console=Console(file=stderr, no_color=not has_colour, markup=False, highlight=False, emoji=False),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
