"""Ctrl-C inside a call of Spark's, in one line.

Python's default is a traceback through PySpark and Py4J, and Py4J logs the same once more. Neither says more than that
the user has pressed Ctrl-C. Interrupts anywhere else in a program are left as they are.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from holdfast.base.jvm import kill_starting_jvm

_SPARK = ("pyspark", "py4j", "holdfast")


def quiet_interrupts() -> None:
    """From now on print one line for a Ctrl-C inside Spark that nothing catches. The exit status is as before.

    Does nothing if the program has an exception hook of its own, or at a Python prompt. Fine to call twice.
    """
    if sys.excepthook is not sys.__excepthook__ or hasattr(sys, "ps1"):
        return
    sys.excepthook = _hook
    logging.getLogger().addFilter(_is_no_interrupt)  # of records logged to the root itself, which Py4J does


def is_inside_spark(trace: TracebackType | None) -> bool:
    """Whether a frame of this traceback belongs to Spark's Python packages, or to ours that calls them."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _SPARK:
            return True
        trace = trace.tb_next
    return False


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt) and is_inside_spark(trace):
        kill_starting_jvm(trace)
        print("Interrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a record is anything else than Py4J's about a Ctrl-C.

    PySpark's own handler of SIGINT makes a call to the JVM, in the middle of another one: Py4J calls that reentrant.
    """
    text = str(record.msg)
    if text.startswith("KeyboardInterrupt while sending command"):
        return False
    error = record.exc_info[1] if record.exc_info else None
    cause = error and (error.__cause__ or error.__context__)
    return not (text.startswith("Exception while sending command") and "reentrant call" in str(cause))
