"""The protocol `Output`: where a verb's results go. It has two implementations, one for people, one for programs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from holdfast.base.addresses import without_secrets
from holdfast.errors import HoldfastError

ENVELOPE_VERSION = 1
Style = Literal["good", "bad", "doubtful", "faint", "strong", ""]


class Cell(msgspec.Struct, frozen=True):
    """A piece of text and its meaning; the output decides how it looks. The text need not be escaped."""

    text: str
    style: Style = ""


Line = str | Cell | Sequence[str | Cell]
"""One line, in pieces."""

Row = Sequence[str | Cell]


class Bar(Protocol):
    """Progress of one long piece of work."""

    def hidden(self) -> contextlib.AbstractContextManager[None]:
        """Take the bar off the screen while something else is written there."""

    def advance(self, amount: int) -> None:
        """Add to the amount done."""

    def describe(self, text: str) -> None:
        """Change the label of the bar."""


class Output(Protocol):
    """Where a verb's results go.

    Guarantees: results go to standard output, everything else to standard error; no text from a store reaches a
    terminal unescaped. Does not guarantee: that `line` and `table` are shown at all; `finish` has the whole result.
    """

    is_terminal: bool
    """True if a person reads standard output as it appears."""

    has_bars: bool
    """True if a progress bar would be seen."""

    can_ask: bool
    """True if a person can be asked a question."""

    def line(self, line: Line = "", *, wrap: bool = False) -> None:
        """One line of the result, for people; with `wrap`, a terminal wraps its last piece."""

    def table(
        self, header: Sequence[str], rows: Sequence[Row], *, right: Sequence[int] = (), spare: Sequence[int] = ()
    ) -> None:
        """A table of the result, for people.

        Columns in `right` are numbers; those in `spare` may be left out, in this order, on a narrow terminal.
        """

    def note(self, text: str) -> None:
        """Something worth knowing that is not the result."""

    def bar(self, what: str, total: int, *, unit: Literal["bytes", "items"]) -> contextlib.AbstractContextManager[Bar]:
        """Show progress while the block runs, if there is a terminal."""

    def ask(self, question: str) -> bool:
        """Ask a question; any answer but yes counts as no. Only if `can_ask`."""

    def finish(self, store: str, data: Mapping[str, Any]) -> None:
        """The whole result, for programs. Called once, last."""

    def fail(self, error: HoldfastError, kind: str | None = None) -> None:
        """Report an error. Nothing may be written afterwards."""


def shown_address(address: str) -> str:
    """A store's address as it may be printed or put into an envelope: without credentials."""
    return without_secrets(address) if "://" in address else address
