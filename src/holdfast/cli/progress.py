"""Progress bars, at a terminal only. rich is loaded when the first bar appears."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Literal

from holdfast.cli.output import Bar


class Unseen:
    """A bar that nobody looks at."""

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        yield

    def advance(self, amount: int) -> None:
        """Nothing to show."""

    def describe(self, text: str) -> None:
        """Nothing to show."""


@contextlib.contextmanager
def rich_bar(
    what: str, total: int, *, unit: Literal["bytes", "items"], stderr: IO[str], has_colour: bool
) -> Iterator[Bar]:
    """A bar on standard error that disappears when the work is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts: list[ProgressColumn] = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    )
    console = Console(file=stderr, no_color=not has_colour, markup=False, highlight=False, emoji=False)
    words = TextColumn("{task.description}", markup=False)
    columns: list[ProgressColumn] = [words, BarColumn(), *amounts, TimeRemainingColumn(compact=True)]
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(what, total=total or None)

        class Shown:
            @contextlib.contextmanager
            def hidden(self) -> Iterator[None]:
                progress.stop()
                yield
                progress.start()

            def advance(self, amount: int) -> None:
                progress.advance(task, amount)

            def describe(self, text: str) -> None:
                progress.update(task, description=text)

        yield Shown()
