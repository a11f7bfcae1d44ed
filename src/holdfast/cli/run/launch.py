"""A pipeline's file: options of the command line passed to Spark, the run itself, and failures in it."""

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
"""How Python's traceback, which Spark quotes, names an error of ours."""


def check_file(path: str) -> None:
    """`NotFound` or `Invalid` if there is no such file to run."""
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
    """What Spark finds in the environment so that it starts as the command line says. Pure, but for one look at files.

    The same order as spark-submit: what the file sets itself wins over the command line, that over the environment,
    that over spark-defaults.conf.
    """
    words = shlex.split(environment.get(SUBMIT_ARGS, SHELL))
    end = words.index(SHELL) if SHELL in words else len(words)
    ours = ["--master", master] if master else []
    for key, value in settings:
        ours += ["--conf", f"{key}={value}"]
    quiet = ["--conf", "spark.ui.showConsoleProgress=false"]
    changes = {SUBMIT_ARGS: shlex.join([*quiet, *words[:end], *ours, *(words[end:] or [SHELL])])}
    if "PYSPARK_PYTHON" not in environment and _runs_here([*words, *ours]):
        changes["PYSPARK_PYTHON"] = sys.executable  # what runs the driver runs its workers
    if not _has_log_settings(environment, [*words, *ours]):
        quietly = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
        changes[SUBMIT_OPTS] = " ".join(filter(None, [environment.get(SUBMIT_OPTS), shlex.quote(quietly)]))
    return changes


def _runs_here(words: Sequence[str]) -> bool:
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
    """Options of the command line that had no effect, in sentences."""
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
    """Our error: the exception itself, its cause, or one that Spark quotes. None if there is none."""
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
    """The traceback as `python FILE` would print it: without what is above the file."""
    told = traceback.TracebackException.from_exception(error)
    places = [place for place, frame in enumerate(told.stack) if frame.filename == path]
    told.stack = traceback.StackSummary.from_list(list(told.stack)[places[0] :] if places else [])
    return "".join(told.format())


def failure_of(error: BaseException, path: str) -> HoldfastError:
    """The error that ended the file, in one sentence; its traceback has been shown."""
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
    """What `sys.exit(...)` in the file means to a shell; a text is printed, as Python does."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return errors.HoldfastError.exit_code
