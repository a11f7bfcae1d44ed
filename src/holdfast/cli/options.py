"""What every verb takes: an address, how to open it, and which output to use."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import click

from holdfast.checkpoints.manifest import MAX_U64
from holdfast.cli.json_output import MachineOutput
from holdfast.cli.output import Output
from holdfast.cli.terminal import terminal_output
from holdfast.status.checkpoints import Opened, open_existing

LATEST: Literal["latest"] = "latest"
_ID = re.compile(r"[0-9]{1,20}")
_DURATION = re.compile(r"([0-9]{1,9})\s*(s|sec|m|min|h|d|days?)?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "day": 86400, "days": 86400}


class CheckpointId(click.ParamType[int | Literal["latest"]]):
    """An id, or `latest`: the checkpoint with the highest id, whatever the pointer says."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["latest"]:
        text = str(value)
        if text == LATEST:
            return LATEST
        if _ID.fullmatch(text) and 0 < int(text) <= MAX_U64:
            return int(text)
        self.fail(f"{text!r} is not a checkpoint id: a whole number from 1, or {LATEST!r}.", param, ctx)


class Duration(click.ParamType[float]):
    """A length of time such as `90s`, `15min`, `1h` or `2d`; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a length of time: write 90s, 15min, 1h or 2d.", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])


class Setting(click.ParamType[tuple[str, str]]):
    """`key=value`. A value may be a secret, so a wrong one is never repeated in the message."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, setting = str(value).partition("=")
        if not equals or not key.strip():
            self.fail("it must be key=value, such as endpoint=http://localhost:9000.", param, ctx)
        return key.strip(), setting


Verb = Callable[..., int]


def on_store(verb: Verb) -> Verb:
    """Give a verb the address and the options that all verbs share.

    The verb is called with the opened store, the output, and its own parameters, and returns the exit code.
    """

    @click.argument("url")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
    @click.option(
        "--option",
        "settings",
        multiple=True,
        type=Setting(),
        metavar="KEY=VALUE",
        help="A setting of the object store, such as endpoint=http://localhost:9000; may be repeated. "
        "Without it the environment counts (AWS_..., GOOGLE_..., AZURE_...).",
    )
    @click.option(
        "--layout",
        type=click.Choice(["directory", "object"]),
        help="How the store is laid out; by default a path has directories, a bucket has objects.",
    )
    @click.option("--debug", is_flag=True, help="Log every step, and show a traceback if something unexpected happens.")
    @functools.wraps(verb)
    def with_store(
        *,
        url: str,
        as_json: bool,
        settings: tuple[tuple[str, str], ...],
        layout: Literal["directory", "object"] | None,
        debug: bool,
        **parameters: Any,
    ) -> int:
        output = choose_output(click.get_current_context().info_name or "", as_json)
        with log_as_notes(output, debug):
            opened: Opened = open_existing(url, layout=layout, options=dict(settings))
            return verb(opened, output, **parameters)

    return with_store


def choose_output(command: str, as_json: bool) -> Output:
    """The output a person or a program gets."""
    if as_json:
        return MachineOutput(command, sys.stdout, sys.stderr)
    return terminal_output()


class _ToNotes(logging.Handler):
    """Log records as notes: whatever text they quote is escaped on the way."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(record.getMessage())


@contextlib.contextmanager
def log_as_notes(output: Output, debug: bool) -> Iterator[None]:
    log = logging.getLogger("holdfast")
    handler = _ToNotes(output)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
