"""The output for programs: one JSON envelope on standard output, or one error object on standard error."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import msgspec

from holdfast.cli.output import ENVELOPE_VERSION, Bar, Line, Row, shown_address
from holdfast.cli.terminal import Unit, Unseen
from holdfast.errors import HoldfastError

_DELETE = re.compile("\x7f")  # the only control character that JSON does not escape


class JsonOutput:
    """Exact values, nothing rounded; notes are part of the envelope.

    Indented at a terminal, one line elsewhere. ASCII only, so that no name in a store can control a terminal.
    """

    is_terminal = False
    has_bars = False
    can_ask = False

    def __init__(self, command: str, stdout: IO[str], stderr: IO[str]) -> None:
        self._command = command
        self._stdout = stdout
        self._stderr = stderr
        self._notes: list[str] = []

    def line(self, line: Line = "", *, wrap: bool = False) -> None:
        """Does nothing: `finish` writes the whole result."""

    def table(
        self, header: Sequence[str], rows: Sequence[Row], *, right: Sequence[int] = (), spare: Sequence[int] = ()
    ) -> None:
        """Does nothing: `finish` writes the whole result."""

    def note(self, text: str) -> None:
        self._notes.append(text)

    @contextlib.contextmanager
    def bar(self, what: str, total: int, *, unit: Unit) -> Iterator[Bar]:
        yield Unseen()

    def ask(self, question: str) -> bool:
        return False

    def finish(self, store: str, data: Mapping[str, Any]) -> None:
        write(self._stdout, self._envelope(store, data))

    def add(self, store: str, data: Mapping[str, Any]) -> None:
        """Write one result of a stream as a line of its own, at once."""
        write(self._stdout, self._envelope(store, data), in_one_line=True)
        self._stdout.flush()
        self._notes = []

    def _envelope(self, store: str, data: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "holdfast": ENVELOPE_VERSION,
            "command": self._command,
            "store": shown_address(store),
            "data": data,
            "notes": self._notes,
        }

    def fail(self, error: HoldfastError, kind: str | None = None) -> None:
        described = {
            "kind": kind or type(error).__name__,
            "code": error.code,
            "exit_code": error.exit_code,
            "message": error.message,
            "about": error.about,
            "unchanged": error.unchanged,
            "next_step": error.next_step,
        }
        write(self._stderr, {"holdfast": ENVELOPE_VERSION, "command": self._command, "error": described})


def write(stream: IO[str], value: Any, *, in_one_line: bool = False) -> None:
    """Write one JSON document; with `in_one_line`, not indented at a terminal either."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    if stream.isatty() and not in_one_line:
        text = msgspec.json.format(text, indent=2)
    stream.write(_DELETE.sub(r"\\u007f", text) + "\n")
