"""Fencing a workdir on a disk: each generation's Spark reaches it by a path of its own, which the next one removes.

A driver that was taken over does not know it until it checks the lease, and Spark never checks: its tasks and its
clean-up go on writing, by path. So the path that Spark is given is a symbolic link that belongs to one generation. Once
the link is gone, what a stale Spark writes cannot reach the workdir: it makes directories where the link was, and a
later start removes them.

On a network file system another machine may go on seeing a removed link for as long as it caches names.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from holdfast.base.steps import step
from holdfast.errors import Unavailable

_NUMBERED = re.compile(r"\.spark-(\d+)-[0-9a-f]+\Z")


def fence_path(home: Path, generation: int, still_ours: Callable[[], None]) -> Path:
    """A path to the workdir at `home` that only this generation has; the paths of all others are removed.

    The link is made before `still_ours` checks the lease: a successor is either seen there, or finds the link.
    """
    generation_path = home.parent / f".{home.name}.spark-{generation}-{uuid.uuid4().hex[:8]}"
    try:
        with step("workdir.enter"):
            home.parent.mkdir(parents=True, exist_ok=True)
            close_older_paths(home, generation, still_ours)
            os.symlink(home.name, generation_path)
    except OSError as error:
        raise Unavailable(
            f"The link {generation_path.name} beside the workdir {home} cannot be created ({error.strerror or error}).",
            code="workdir.disk",
            about=str(home),
            unchanged="the store and every sink",
            next_step="let this user write there, or pass a workdir on a file system that has symbolic links",
        ) from error
    try:
        still_ours()
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(generation_path)
        raise
    return generation_path


def close_older_paths(home: Path, generation: int, still_ours: Callable[[], None]) -> None:
    """Remove the path of every other generation, and what a stale Spark has put where one was.

    A path of this generation or a higher one is a successor's, unless the store has lost its record of that
    generation. So `still_ours` is called first.
    """
    for path in home.parent.glob(glob.escape(f".{home.name}.spark-") + "*"):
        numbered = _NUMBERED.search(path.name)
        if numbered is None or int(numbered[1]) >= generation:
            still_ours()
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
