"""Progress bars, at a terminal only, and only for work that takes long enough to wonder about."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Literal

from holdfast.status.format import printable

if TYPE_CHECKING:
    from rich.progress import Progress

Unit = Literal["bytes", "items"]
PATIENCE = 0.5
"""Seconds before a bar appears: short work needs none, and need not wait for rich to load."""


class Unseen:
    """A bar that nobody looks at."""

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        yield

    def advance(self, amount: int) -> None:
        """Nothing to show."""

    def describe(self, text: str) -> None:
        """Nothing to show."""


class LateBar:
    """A bar on a terminal that appears once the work has lasted a while, and is wiped off at its end."""

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
