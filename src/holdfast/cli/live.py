"""A picture at a terminal that is drawn over and over, with lines that scroll away above it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TYPE_CHECKING

from holdfast.cli.terminal import PeopleOutput

if TYPE_CHECKING:
    from rich.text import Text

Draw = Callable[[PeopleOutput], None]
"""Says a picture, line by line, as any verb says its result."""


class Canvas:
    """The lower end of a terminal. Belongs to one thread; nobody else may write to the terminal meanwhile."""

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
        """While the block runs there is a picture; its last one stays on the screen."""
        with self._live:
            yield

    def draw(self, draw: Draw) -> None:
        """Replace the picture."""
        self._fit()
        self._live.update(_text(painted(draw, self._environment, self._console.size.width)), refresh=True)

    def above(self, draw: Draw) -> None:
        """Say something that stays, above the picture."""
        self._fit()
        self._console.print(_text(painted(draw, self._environment, self._console.size.width)), soft_wrap=True)

    def print(self, line: str) -> None:
        """Pass on a line that somebody else has printed, with its colours, without its other controls."""
        self._fit()
        self._console.print(_text(line), soft_wrap=True)

    def _fit(self) -> None:
        """The terminal may have been resized, and it need not be one of the standard streams any more."""
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(self._terminal.fileno())
            if size.columns and size.lines:
                self._console.size = (size.columns, size.lines)


class _Picture(io.StringIO):
    """Text that is meant for a terminal, on its way there."""

    def isatty(self) -> bool:
        return True


def painted(draw: Draw, environment: Mapping[str, str], columns: int) -> str:
    """What is said to a terminal of this width, as text with colours."""
    picture = _Picture()
    draw(PeopleOutput(io.StringIO(), picture, picture, environment=environment, columns=lambda: columns))
    return picture.getvalue().removesuffix("\n")


def _text(painted: str) -> Text:
    from rich.text import Text

    return Text.from_ansi(painted, no_wrap=True, overflow="ellipsis")
