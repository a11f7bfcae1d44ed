"""Running a pipeline's file: the environment that passes options to Spark, the run itself, and its failures."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast import errors
from holdfast.errors import HoldfastError, Invalid, NotFound, one_line

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
SUBMIT_OPTS = "SPARK_SUBMIT_OPTS"
SHELL = "pyspark-shell"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_OWN_ERROR = re.compile(r"^(?:.*\s)?holdfast\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
"""Matches the line of a Python traceback, as Spark quotes it, that names an error of ours."""


def check_file(path: str) -> None:
    """`NotFound` if there is no such file, `Invalid` if it cannot be read or is not a file."""
    if not os.path.exists(path):
        raise NotFound(
            f"There is no file {path}.",
            code="run.no-file",
            about=path,
            next_step="name the pipeline's Python file",
        )
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        what = "is not a file" if not os.path.isfile(path) else "cannot be read"
        raise Invalid(f"{path} {what}.", code="run.no-file", about=path, next_step="name the pipeline's Python file")


def spark_environment(
    environment: Mapping[str, str], *, master: str | None, settings: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """The environment variables that make Spark start with these options. Pure, except that it looks for log4j2 files.

    The same precedence as spark-submit: settings in the file win over the command line, the command line over the
    environment, the environment over spark-defaults.conf.
    """
    words = shlex.split(environment.get(SUBMIT_ARGS, SHELL))
    end = words.index(SHELL) if SHELL in words else len(words)
    ours = ["--master", master] if master else []
    for key, value in settings:
        ours += ["--conf", f"{key}={value}"]
    quiet = ["--conf", "spark.ui.showConsoleProgress=false"]
    changes = {SUBMIT_ARGS: shlex.join([*quiet, *words[:end], *ours, *(words[end:] or [SHELL])])}
    if "PYSPARK_PYTHON" not in environment and _is_local_master([*words, *ours]):
        changes["PYSPARK_PYTHON"] = sys.executable  # workers use the driver's Python
    if not _has_log_settings(environment, [*words, *ours]):
        quietly = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
        changes[SUBMIT_OPTS] = " ".join(filter(None, [environment.get(SUBMIT_OPTS), shlex.quote(quietly)]))
    return changes


def _is_local_master(words: Sequence[str]) -> bool:
    """Whether Spark's workers run on this machine and no option names their Python."""
    if any(word.startswith("spark.pyspark.") for word in words):
        return False
    named = [after for word, after in itertools.pairwise(words) if word == "--master"]
    named += [word.partition("=")[2] for word in words if word.startswith("spark.master=")]
    return all(master.startswith("local") for master in named)


def _has_log_settings(environment: Mapping[str, str], words: Sequence[str]) -> bool:
    """Whether Spark's logging was configured by the user."""
    if "log4j" in environment.get(SUBMIT_OPTS, "") or any("log4j" in word for word in words):
        return True
    folders = [environment.get("SPARK_CONF_DIR"), os.path.join(environment.get("SPARK_HOME", ""), "conf")]
    return any(folder and list(Path(folder).glob("log4j2.*")) for folder in folders)


def unheeded(asked: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each option of the command line that had no effect."""
    for key, value in asked.items():
        found = actual.get(key)
        if found != value:
            option = f"--master {value}" if key == "spark.master" else f"--conf {key}={value}"
            yield f"{option} does not count: the file itself sets {key}" + ("" if found is None else f" to {found}")


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables while the block runs."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def run_file(path: str, arguments: Sequence[str]) -> None:
    """Run a file as `python FILE arguments` does, in this process. Raises what the file raises."""
    before = sys.argv, list(sys.path)
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def own_error(error: BaseException) -> HoldfastError | None:
    """The `HoldfastError` behind an exception: itself, a cause, or one that Spark quotes. None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, HoldfastError):
            return seen
        if type(seen).__module__.partition(".")[0] in ("pyspark", "py4j") and (quoted := _quoted(str(seen))):
            return quoted
        seen = seen.__cause__
    return None


def _quoted(text: str) -> HoldfastError | None:
    kinds = {kind.__name__: kind for kind in _kinds(HoldfastError)}
    for name, message in _OWN_ERROR.findall(text):
        if name in kinds:
            return kinds[name](message.strip())
    return None


def _kinds(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)


def traceback_of(error: BaseException, path: str) -> str:
    """The traceback as `python FILE` would print it: without the frames above the file's own."""
    told = traceback.TracebackException.from_exception(error)
    places = [place for place, frame in enumerate(told.stack) if frame.filename == path]
    told.stack = traceback.StackSummary.from_list(list(told.stack)[places[0] :] if places else [])
    return "".join(told.format())


def failure_of(error: BaseException, path: str) -> HoldfastError:
    """The error that ended the file as a `HoldfastError` of one sentence; the traceback is shown separately."""
    what = one_line(error, kind=True)
    return HoldfastError(f"{path} failed: {what}", code="run.failed", next_step=_hint(error))


def _hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ("pyspark", "py4j"):
        return "pip install 'holdfast[spark]'"
    condition: Any = getattr(error, "getCondition", None)
    if callable(condition) and condition() == "JAVA_GATEWAY_EXITED":
        return "Spark needs Java 17 or newer: install one, or set JAVA_HOME"
    return None


def exit_code_of(stop: SystemExit) -> int:
    """The exit code of `sys.exit(...)` in the file; a text is printed to standard error, as Python does."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return errors.HoldfastError.exit_code
