"""The log of a running pipeline: a line per epoch, on standard error if the program has not configured logging."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping

from holdfast.pipeline.reports import EpochReport

log = logging.getLogger("holdfast.epochs")
_library = logging.getLogger("holdfast")


def log_epoch(report: EpochReport) -> None:
    """One INFO record per epoch. `holdfast run` shows the report itself, so the record is marked as told."""
    log.info("%s: %s", report.pipeline, epoch_words(report), extra={"is_told": True})


def epoch_words(report: EpochReport) -> str:
    """One epoch in one line. Pure."""
    rows = "1 row" if report.rows == 1 else f"{report.rows:,} rows"
    parts = [
        f"epoch {report.epoch}{' again' if report.is_replay else ''}: {rows}",
        f"{report.rows_per_second:,.1f}/s" if report.rows else "",
        refused_in_words(report.refused),
        f"{report.seconds:,.2f} s",
        "lag " + ", ".join(f"{name} {behind}" for name, behind in sorted(report.lag.items())) if report.lag else "",
        sinks_in_words(report.sinks),
        f"checkpoint {report.checkpoint_id}",
    ]
    return ", ".join(part for part in parts if part)


def sinks_in_words(sinks: Mapping[str, str]) -> str:
    """`sinks committed`, or the status of each sink if one is not committed."""
    if not sinks:
        return ""
    if len(set(sinks.values())) == 1 and "Committed" in sinks.values():
        return "sinks committed"
    return "sinks " + ", ".join(f"{name} {status[:1].lower()}{status[1:]}" for name, status in sorted(sinks.items()))


def refused_in_words(refused: Mapping[str, int]) -> str:
    """`3 refused by pg`, or nothing."""
    return ", ".join(f"{count:,} refused by {name}" for name, count in sorted(refused.items()))


class StderrHandler(logging.Handler):
    """Prints the library's records, as long as nothing else handles them.

    Writes to the descriptor: a record may come from a signal handler, in the middle of a write to `sys.stderr`.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_alone():
            self.print(self.format(record))

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return f"{logging.Formatter().formatTime(record)}  {level}{super().format(record)}"

    def is_alone(self) -> bool:
        """Whether the program has configured no logging, and `holdfast run` does not show the records itself."""
        return not logging.getLogger().handlers and _library.handlers == [self]

    def print(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or without a descriptor
            os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="backslashreplace"))


_handler = StderrHandler()


def show_on_stderr() -> None:
    """Print the library's INFO records and warnings, if the program has not configured logging. Fine to call twice."""
    if logging.getLogger().handlers or _library.handlers:
        return
    _library.addHandler(_handler)
    if _library.level == logging.NOTSET:
        _library.setLevel(logging.INFO)


def print_now(text: str) -> None:
    """Print a line where the log is on standard error. Safe in a signal handler, unlike most handlers of records."""
    if _handler.is_alone():
        _handler.print(text)
