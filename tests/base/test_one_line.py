from __future__ import annotations

import pytest

from holdfast.errors import one_line

PYTHON_IN_SPARK = """
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/job.py", line 3, in handle
    raise ValueError("no such order")
ValueError: no such order

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)
\t... 12 more
"""
PY4J = """An error occurred while calling o91.save.
: org.apache.hadoop.fs.FileAlreadyExistsException: Output directory file:/out already exists
\tat org.apache.hadoop.mapred.FileOutputFormat.checkOutputSpecs(FileOutputFormat.java:131)
"""
JAVA = """Job aborted.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.jobAbortedError(QueryExecutionErrors.scala:638)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
OBSTORE = """Generic S3 error: Error performing PUT http://127.0.0.1:1/b/k in 1.2s - HTTP error

Debug source:
Generic {
    store: "S3",
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such table"), "no such table"),
        (ValueError("  first\n\nsecond"), "first"),
        (ValueError(""), "ValueError"),
        (ValueError(" \n\t"), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        ("", "no message"),
        ("a text", "a text"),
        (RuntimeError(PYTHON_IN_SPARK), "ValueError: no such order"),
        (
            RuntimeError(PY4J),
            "org.apache.hadoop.fs.FileAlreadyExistsException: Output directory file:/out already exists",
        ),
        (RuntimeError("An error occurred while calling o1.x."), "An error occurred while calling o1.x."),
        (RuntimeError(JAVA), "java.io.IOException: No space left on device"),
        (OSError(OBSTORE), "Generic S3 error: Error performing PUT http://127.0.0.1:1/b/k in 1.2s - HTTP error"),
        (ValueError("a\x1b[31m\tred\x00"), "a\\x1b[31m red\\x00"),
        (ValueError("turned \u202eround \udc80"), "turned \\u202eround \\udc80"),
        (ValueError("one\u2028two"), "one"),
        (
            "org.apache.spark.SparkException: Exception thrown in awaitResult:\n\tat a.B.c(B.scala:1)\n"
            "Caused by: org.apache.spark.SparkException: Job aborted.\n\tat d.E.f(E.scala:2)",
            "org.apache.spark.SparkException: Job aborted.",
        ),
    ],
)
def test_the_line_that_says_what_is_wrong_is_quoted(error: BaseException | str, line: str) -> None:
    assert one_line(error) == line


def test_a_long_line_is_cut_and_says_so() -> None:
    assert one_line(ValueError("x" * 300)) == "x" * 300
    assert one_line(ValueError("x" * 301)) == "x" * 300 + "…"
    assert one_line("x" * 10_000_000, 5) == "xxxxx…"
    assert len(one_line("\x1b" * 300)) <= 301


def test_the_kind_of_the_error_stands_first_if_asked_for() -> None:
    assert one_line(KeyError("x"), kind=True) == "KeyError: 'x'"
    assert one_line(KeyError(), kind=True) == "KeyError"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cannot reach postgresql://me:s3cret@db:5432/x", "cannot reach postgresql://db:5432/x"),
        ("cannot reach redis://:p@ss@db/0", "cannot reach redis://db/0"),
        ("cannot read s3://bucket/path@2", "cannot read s3://bucket/path@2"),
        ("bad dsn host=db password=s3cret user=me", "bad dsn host=db password=… user=me"),
        ("bad dsn PASSWORD='two words' user=me", "bad dsn PASSWORD=… user=me"),
    ],
)
def test_credentials_are_left_out(text: str, line: str) -> None:
    assert one_line(text) == line
