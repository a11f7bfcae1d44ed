"""`holdfast run`: run a pipeline's file, and watch it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

from holdfast.base.jvm import active_settings
from holdfast.base.stop_request import stop_on_signals
from holdfast.cli.format import printable
from holdfast.cli.options import Setting, choose_output
from holdfast.cli.output import Output
from holdfast.cli.run.capture import Listening, ReservedStream, captured_terminal, set_aside_output
from holdfast.cli.run.launch import (
    changed_environment,
    check_file,
    exit_code_of,
    failure_of,
    own_error,
    run_file,
    spark_environment,
    traceback_of,
    unheeded,
)
from holdfast.cli.run.screens import Canvas, Lines, Picture, Screen, Stream
from holdfast.errors import HoldfastError, Invalid
from holdfast.pipeline.reports import Event, tell
from holdfast.spark import Notice, watch

TERMINATED = 128 + signal.SIGTERM
OURS = {"--master", "--conf", "--restarts", "--verify", "--json", "--debug"}


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.argument("file")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://...")
@click.option(
    "--conf",
    "settings",
    multiple=True,
    type=Setting(),
    metavar="KEY=VALUE",
    help="A setting of Spark's, such as spark.sql.shuffle.partitions=8; may be repeated.",
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    help="How often to start again in a row after a failure that may pass by itself; 3 unless the file says.",
)
@click.option("--verify", is_flag=True, help="Compare checkpoint and workdir byte by byte at the start.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per event, for programs.")
@click.option("--debug", is_flag=True, help="Log every step, and show a traceback of every failure.")
def command(
    *,
    file: str,
    arguments: tuple[str, ...],
    master: str | None,
    settings: tuple[tuple[str, str], ...],
    restarts: int | None,
    verify: bool,
    as_json: bool,
    debug: bool,
) -> int:
    """Run a pipeline's file, and watch it.

    The file is run as 'python FILE ARGS' would run it, and needs nothing for this verb. A terminal gets a table that
    stays in place, anything else a line per epoch. Ctrl-C and SIGTERM finish the epoch that is under way and exit 0;
    a second Ctrl-C ends at once. Options come before FILE: what follows it belongs to the file.

    \b
    Example: holdfast run --master local[4] orders.py --day 2026-11-15
    """
    output = choose_output("run", as_json)
    try:
        check_file(file)
    except HoldfastError as error:
        output.fail(error)
        return error.exit_code
    asked = dict(settings) | ({"spark.master": master} if master else {})
    changes = spark_environment(os.environ, master=master, settings=settings)
    if restarts is not None:
        changes["HOLDFAST_RESTARTS"] = str(restarts)
    if verify:
        changes["HOLDFAST_VERIFY"] = "1"
    if misplaced := OURS.intersection(arguments):
        output.note(f"{sorted(misplaced)[0]} comes after the file and is passed on to it; options of run come before")
    # Until a pipeline handles signals itself, SIGTERM ends the file by `SystemExit`, which also restores the terminal.
    with changed_environment(changes), stop_on_signals(_end, (signal.SIGTERM,)):
        return _FileRun(file, arguments, output, asked, as_json=as_json, debug=debug).run()


class _FileRun:
    """Runs one file and shows its events on a screen."""

    def __init__(
        self,
        file: str,
        arguments: tuple[str, ...],
        output: Output,
        asked: dict[str, str],
        *,
        as_json: bool,
        debug: bool,
    ) -> None:
        self._file = file
        self._arguments = arguments
        self._output = output
        self._asked = asked
        self._as_json = as_json
        self._debug = debug
        self._failure: BaseException | None = None

    def run(self) -> int:
        """Run the file and return the exit code. A failure is reported after the screen is closed."""
        with self._listening() as listening:
            try:
                with listening.listening(logging.DEBUG if self._debug else logging.WARNING), self._checked_settings():
                    run_file(self._file, self._arguments)
                if not listening.has_heard:
                    self._failure = _no_pipeline(self._file)
            except BaseException as error:
                self._failure = error
        return self._explain()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[Listening]:
        listening: list[Listening] = []
        with contextlib.ExitStack() as stack:
            screen: Screen
            if self._as_json:
                reserved = stack.enter_context(set_aside_output())
                screen = Stream(reserved.stream)
            elif self._output.is_terminal and os.environ.get("TERM") != "dumb":
                reserved = stack.enter_context(captured_terminal(lambda line: listening[0].line(line)))
                screen = Picture(Canvas(reserved.stream, environment=os.environ))
            else:
                reserved = ReservedStream(sys.stdout)
                screen = Lines(reserved.stream)
            listening.append(Listening(screen))
            yield listening[0]
            reserved.drain()
            outcome, is_good = self._outcome()
            listening[0].finish(outcome, is_good=is_good)

    @contextlib.contextmanager
    def _checked_settings(self) -> Iterator[None]:
        """Warn, at a pipeline's first event, if the file has overridden options of the command line."""
        if not self._asked:
            yield
            return
        has_looked = False

        def look(event: Event) -> None:
            nonlocal has_looked
            if not has_looked:
                has_looked = True
                for sentence in unheeded(self._asked, active_settings()):
                    tell(Notice(event.pipeline, sentence, "warning"))

        remove = watch(look)
        try:
            yield
        finally:
            remove()

    def _outcome(self) -> tuple[str, bool]:
        match self._failure:
            case None | SystemExit(code=None | 0):
                return "finished", True
            case SystemExit(code=code):
                return ("ended by SIGTERM" if code == TERMINATED else f"exited with {code}"), False
            case KeyboardInterrupt():
                return "interrupted", False
            case failure:
                own = own_error(failure)
                return f"failed: {own.message if own else type(failure).__name__}", False

    def _explain(self) -> int:
        """Report the failure, and return its exit code."""
        failure = self._failure
        match failure:
            case None:
                return 0
            case SystemExit():
                return exit_code_of(failure)
            case KeyboardInterrupt():
                raise failure
        own = own_error(failure)
        if own is None or self._debug:
            for line in traceback_of(failure, self._file).splitlines():
                print(printable(line), file=sys.stderr)
        told = own or failure_of(failure, self._file)
        self._output.fail(told, None if own else "Failed")
        return told.exit_code


def _no_pipeline(file: str) -> Invalid:
    return Invalid(
        f"{file} ended without running a pipeline.",
        code="run.no-pipeline",
        about=file,
        next_step="call run(...) of a holdfast.spark.Pipeline in it",
    )


def _end(_: signal.Signals) -> NoReturn:
    sys.exit(TERMINATED)
