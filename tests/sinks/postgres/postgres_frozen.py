"""A driver that freezes within a transaction: stopped by a signal, its connection open. Run as a process of its own.

Its arguments are the DSN, what to do and the descriptor of what was staged, as JSON. It stops once, where it holds its
locks; when it is let go on, it prints how that ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from postgres_hands import SIMPLE, at, stage, use_hands

from holdfast.errors import HoldfastError
from holdfast.sinks.postgres import check_rows, connection, prepare, staging_table
from holdfast.sinks.postgres.sink import PostgresSink

IDLE_TIMEOUT = "1s"


def _freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _then_freeze(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        _freeze()
        return result

    return wrapped


def _merge_then_freeze(staged: Any, merge: Callable[..., Any] = check_rows.merge) -> Iterator[Any]:
    yield from merge(staged)
    _freeze()


def run(dsn: str, work: str, descriptor: dict[str, Any]) -> None:
    sink = PostgresSink(dsn, "out", "id")
    if work == "prepare":
        prepare._check_same_target = _then_freeze(prepare._check_same_target)  # type: ignore[assignment]
        sink.prepare(SIMPLE, at(0))
    elif work == "stage":
        use_hands(setattr)
        check_rows.merge = _merge_then_freeze  # type: ignore[assignment]
        stage(sink, [(1, "one")], at(1))
    else:
        staging_table.drop = _then_freeze(staging_table.drop)  # type: ignore[assignment]
        (sink.commit if work == "commit" else sink.rollback)(descriptor, at(1))


if __name__ == "__main__":
    connection.IDLE_TIMEOUT = IDLE_TIMEOUT
    try:
        run(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    except HoldfastError as error:
        print(type(error).__name__, error)
    else:
        print("done")
