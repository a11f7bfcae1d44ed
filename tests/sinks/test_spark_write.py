"""A failed write, told apart: the rows, the disk, or neither."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError, Unavailable
from holdfast.sinks.sink import RowsRefused
from holdfast.sinks.spark_write import explain

HERE = "/data/out/_staging/x"


class Told(Exception):
    """As Spark's exceptions are: with a state, and perhaps with a cause."""

    def __init__(self, text: str, state: str | None = None, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._state = state
        self._cause = cause

    def getSqlState(self) -> str | None:  # noqa: N802
        return self._state


REFUSED = Told("[CAST_INVALID_INPUT] The value 'x' cannot be cast.\n== SQL ==\nmore", "22018")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (REFUSED, RowsRefused, "The value 'x' cannot be cast."),
        (Told("[TASK_WRITE_FAILED] Task failed.", "58030", REFUSED), RowsRefused, "The value 'x' cannot be cast."),
        (
            Told("An exception was thrown\nTraceback\n  File\nZeroDivisionError: no", "38000"),
            RowsRefused,
            "ZeroDivisionError",
        ),
        (Told("[USER_RAISED_EXCEPTION] No space left on device", "P0001"), RowsRefused, "USER_RAISED"),
        (Told("Job aborted.\njava.io.IOException: No space left on device"), Unavailable, "No space left"),
        (Told(f"java.io.FileNotFoundException: {HERE}/p (Permission denied)"), Unavailable, "Permission denied"),
        (Told("java.io.FileNotFoundException: /source/p (Permission denied)"), None, ""),
        (Told("[FAILED_READ_FILE] Error reading file:/source/p", "KD001"), None, ""),
        (Told("Job 3 cancelled"), None, ""),
    ],
)
def test_an_error_of_spark_becomes_one_of_ours(error: Exception, kind: type[HoldfastError] | None, says: str) -> None:
    explained = explain(error, HERE)
    if kind is None:
        assert explained is None
        return
    assert type(explained) is kind
    assert says in str(explained)
    assert "== SQL" not in str(explained)
    assert explained.next_step


def test_cause_that_goes_round_in_circles() -> None:
    error = Told("a")
    error._cause = Told("b", None, error)
    assert explain(error, HERE) is None
