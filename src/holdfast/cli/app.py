"""The entry point: the list of verbs, and the mapping of errors to messages and exit codes.

A verb's module is imported when the verb is called, so that `--help` and completion are fast.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

INTERRUPTED = 130
PIPE_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended
UNEXPECTED = 1

VERBS = {
    "run": "Run a pipeline's file, and watch it.",
    "status": "Show how a pipeline fares.",
    "ls": "List checkpoints, newest first.",
    "show": "Show everything one checkpoint says.",
    "diff": "Show what changed from one checkpoint to another.",
    "verify": "Check that checkpoints are what was written.",
    "recover": "Find the checkpoint to resume from, and repair 'latest'.",
    "prune": "Remove old checkpoints.",
    "gc": "Remove what no checkpoint owns.",
    "files": "List the committed files of a FileSink.",
    "sources": "List the sources of an index, or clear them.",
    "projections": "List the projections of a store; empty or rebuild one.",
}

_WHERE = {
    "run": ("run.command", "command"),
    "prune": ("verbs.cleanup", "prune"),
    "gc": ("verbs.cleanup", "gc"),
}
"""Module and name of each command that is not `verbs.VERB.command`."""

HELP = """Run a pipeline; look at, verify, repair and clean up its checkpoints.

A store's address is a path, file://, s3://, gs://, az:// or hdfs://. Directories that LaminarDB wrote open as they are.
Nothing is ever removed or changed before it has been shown and agreed to.
"""

EPILOG = """\b
Examples:
  holdfast run --master local[4] orders.py          run a pipeline's file, and watch it
  holdfast status s3://bucket/orders --watch        how it fares, from anywhere
  holdfast ls /data/orders                          what is there
  holdfast show s3://bucket/orders latest           where it would resume, sinks, state
  holdfast diff /data/orders 41 42                  what one epoch moved
  holdfast verify s3://bucket/orders --deep         read every byte; exit 6 if one is wrong
  holdfast recover /data/orders --dry-run           which checkpoint can be trusted
  holdfast prune /data/orders --keep 10 --dry-run   what would go
  holdfast gc /data/orders --older-than 1h          sweep what crashes left behind
  holdfast files s3://bucket/lake/orders            what readers may read of a FileSink
  holdfast sources sqlite:///data/turnover.db       how far an index has read its sources
  holdfast projections sqlite:///data/shop.db       how far each projection has come

\b
Exit codes:
  0 fine   1 unexpected   2 usage   3 not found   4 conflict   5 fenced
  6 corruption found   7 outcome unknown   8 unavailable   130 interrupted
"""


class Verbs(click.Group):
    """A group whose commands are modules of this package, named in `VERBS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, name = _WHERE.get(cmd_name, (f"verbs.{cmd_name}", "command"))
        command: click.Command = getattr(importlib.import_module(f"holdfast.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and ("/" in args[0] or args[0] == "."):  # not repeated: an address may hold a password
            ctx.fail("The verb comes before the address, as in: holdfast ls /data/orders")
        if args and args[0] not in VERBS:
            meant = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"There is no verb {args[0]!r}." + (f" Did you mean {meant[0]}?" if meant else ""))
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from holdfast import __version__

        click.echo(f"holdfast {__version__}")
        ctx.exit()


@click.group(
    cls=Verbs,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="VERB URL [OPTIONS]",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """The group itself does nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises.

    A closed pipe is not reported as an error: `holdfast ls | head -1` ends quietly.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # do not fail for a character that the terminal cannot show
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _fail(given, "Interrupted", "interrupted", "Interrupted.", INTERRUPTED)
        return INTERRUPTED
    except OSError as error:
        return _output_failed(given, error)


def _run(given: list[str]) -> int:
    from holdfast.errors import HoldfastError

    try:
        result: Any = cli.main(given, prog_name="holdfast", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except SystemExit:  # click raises it here only for a broken pipe
        return PIPE_CLOSED
    except click.ClickException as error:
        return _usage_failed(given, error)
    except HoldfastError as error:
        _show_traceback(given)
        _output(given).fail(error)
        return error.exit_code
    except OSError as error:
        if _is_about_output(error):
            raise
        return _unexpected(given, error)
    except Exception as error:
        return _unexpected(given, error)


def _output(given: list[str]) -> Any:
    from holdfast.cli.options import choose_output

    verb = next((word for word in given if word in VERBS), "")
    return choose_output(verb, "--json" in given)


def _fail(given: list[str], kind: str, code: str, message: str, exit_code: int, next_step: str | None = None) -> None:
    from holdfast.errors import HoldfastError

    error = HoldfastError(message, code=code, next_step=next_step)
    error.exit_code = exit_code  # type: ignore[misc]  # a code that no error class has
    with contextlib.suppress(OSError):
        _output(given).fail(error, kind)


def _usage_failed(given: list[str], error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    path = context.command_path if context else "holdfast"
    _fail(given, "Usage", "usage", error.format_message(), error.exit_code, f"{path} --help")
    return error.exit_code


def _unexpected(given: list[str], error: Exception) -> int:
    _show_traceback(given)
    from holdfast.errors import one_line

    what = one_line(error, kind=True)
    _fail(
        given,
        "Unexpected",
        "unexpected",
        f"This is a bug in Holdfast: {what}",
        UNEXPECTED,
        "run it again with --debug and report what it prints",
    )
    return UNEXPECTED


def _show_traceback(given: list[str]) -> None:
    if "--debug" in given or os.environ.get("HOLDFAST_DEBUG", "") not in ("", "0"):
        from holdfast.cli.format import printable

        for line in traceback.format_exc().splitlines():
            click.echo(printable(line), err=True)


def _is_about_output(error: OSError) -> bool:
    """Whether writing our own output failed. Failures of a store are `HoldfastError`s, not `OSError`s."""
    return error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO) and error.filename is None


def _output_failed(given: list[str], error: OSError) -> int:
    # The interpreter flushes standard output once more at exit; that must not fail again.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return PIPE_CLOSED
    _fail(given, "Unavailable", "output.failed", f"The output could not be written: {error.strerror or error}.", 8)
    return 8
