"""A projection named on the command line: `FILE.py:Class` or `package.module:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from holdfast.errors import HoldfastError, Invalid, NotFound, one_line
from holdfast.projections import Projection
from holdfast.projections.projection import ProjectionLike, check_projection


def load_projection(given: str, name: str) -> ProjectionLike:
    """Load the projection, called without arguments if it is a class; `Invalid` if its name is not `name`.

    Runs the file with its directory on `sys.path`, or imports the module with the current directory on `sys.path`.
    """
    where, colon, what = given.rpartition(":")
    if not colon or not where or not what:
        raise _refused(given, "it must be FILE.py:CLASS or package.module:CLASS")
    module = _file(given, where) if where.endswith(".py") or os.sep in where else _module(given, where)
    found: Any = getattr(module, what, None)
    if found is None:
        raise _refused(given, f"there is no {what} in it; its projections: {_projections_in(module)}")
    try:
        projection: ProjectionLike = found() if isinstance(found, type) else found
        check_projection(projection)
    except HoldfastError as error:
        raise _refused(given, error.message.rstrip(".")) from error
    except Exception as error:
        raise _refused(given, f"making one fails: {one_line(error, kind=True).rstrip('.')}") from error
    if projection.name != name:
        raise _refused(given, f"its name is {projection.name[:200]!r}, not {name[:200]!r}")
    return projection


def _file(given: str, path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise NotFound(
            f"There is no file {path}.",
            code="projection.no-file",
            about=path,
            unchanged="everything",
            next_step="name the Python file that has the projection, as in --projection turnover.py:Turnover",
        )
    # A name of its own, because the file may have the name of a module that is in use.
    name = f"_projection_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _refused(given, f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _refused(given, f"running it fails: {one_line(error, kind=True).rstrip('.')}") from error
    return module


def _module(given: str, name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _refused(given, f"importing it fails: {one_line(error, kind=True).rstrip('.')}") from error


def _projections_in(module: ModuleType) -> str:
    found = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Projection) and value is not Projection
    ]
    return ", ".join(found) or "none"


def _refused(given: str, why: str) -> Invalid:
    return Invalid(
        f"--projection {given}: {why}.",
        code="projection.refused",
        about=given,
        unchanged="everything",
        next_step="name the projection's class, as in --projection turnover.py:Turnover",
    )
