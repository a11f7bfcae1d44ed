"""Whether Spark's words about its end blame its own directory, so that a rebuilt one may help."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import Corrupt, Fenced, Unavailable, one_line
from holdfast.pipeline.supervisor import is_workdir_trouble
from holdfast.pipeline.workdir.local import LocalWorkdir

WORKDIR = LocalWorkdir(Path("/data/workdir"))
LINK = "file:/data/.workdir.spark-3-5c7b2dd9"

BLAMED = [
    RuntimeError(f"Checksum error: {LINK}/offsets/4 at 512 exp: 1 got: 2"),
    RuntimeError(f"org.apache.hadoop.fs.ChecksumException: {LINK}/metadata"),
    RuntimeError(f"Failed to read log file {LINK}/sources/0/7. [MALFORMED_LOG_FILE] Log file was malformed: x"),
    RuntimeError("batches (5, 6) don't exist (batchFileNames: [])"),
    RuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state."),
    Corrupt("offsets/4 is torn.", code="workdir.log"),
]
NOT_BLAMED = [
    RuntimeError("[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] latestOffset: no route to host"),
    RuntimeError("java.io.FileNotFoundException: file:/in/orders/1.json"),
    RuntimeError("Checksum error: file:/in/orders/1.json at 0 exp: 1 got: 2"),
    Fenced("/data/workdir/ was taken over: ChecksumException"),
    Unavailable("the server is down"),
]


@pytest.mark.parametrize("error", BLAMED, ids=str)
def test_an_error_about_the_workdir_is_recognised(error: Exception) -> None:
    assert is_workdir_trouble(error, WORKDIR)


@pytest.mark.parametrize("error", NOT_BLAMED, ids=str)
def test_not_blamed(error: Exception) -> None:
    assert not is_workdir_trouble(error, WORKDIR)


def test_what_is_told_of_an_error() -> None:
    called = "An error occurred while calling o1240.start.\n: java.io.IOException: no room\n\tat x"
    assert one_line(RuntimeError(called)) == "java.io.IOException: no room"
    assert one_line(RuntimeError("An error occurred while calling o1.start.")).startswith("An error occurred")
    assert one_line(RuntimeError("\n one\ntwo")) == "one"
    assert one_line(RuntimeError()) == "RuntimeError"
