"""The way into a workdir: each generation's Spark has a symbolic link of its own to it, and the next takes it away.

A driver that was taken over does not know it until it looks at the lease, and Spark never looks. Its tasks and its
clean-up go on writing, by path. Once the link in that path is gone, what they write lands nowhere that matters: Spark
makes directories where the link was, and a later start sweeps them away.

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
from holdfast.pipeline.workdir.workdir import Workdir

_NUMBERED = re.compile(r"\.spark-(\d+)-[0-9a-f]+\Z")


def enter(workdir: Workdir, generation: int, still_ours: Callable[[], None]) -> Workdir:
    """The same workdir, by a path that only this generation has; every other way in is closed.

    The link is made before the lease is looked at once more: a successor either is seen there, or finds the link.
    """
    home = workdir.home
    entrance = home.parent / f".{home.name}.spark-{generation}-{uuid.uuid4().hex[:8]}"
    try:
        with step("workdir.enter"):
            home.parent.mkdir(parents=True, exist_ok=True)
            close_entrances(workdir, generation, still_ours)
            os.symlink(home.name, entrance)
    except OSError as error:
        raise Unavailable(
            f"The workdir {home} cannot be entered: no link {entrance.name} beside it ({error.strerror or error}).",
            code="workdir.disk",
            about=str(home),
            unchanged="the store and every sink",
            next_step="let this user write there, or pass a workdir on a file system that has symbolic links",
        ) from error
    try:
        still_ours()
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(entrance)
        raise
    return Workdir(home, entrance=entrance)


def close_entrances(workdir: Workdir, generation: int, still_ours: Callable[[], None]) -> None:
    """Take every link away, and what Spark has put where one was.

    One of a generation that is not below ours is a successor's, or belongs to a past that the store does not know.
    """
    home = workdir.home
    for entrance in home.parent.glob(glob.escape(f".{home.name}.spark-") + "*"):
        numbered = _NUMBERED.search(entrance.name)
        if numbered is None or int(numbered[1]) >= generation:
            still_ours()
        remove_entrance(entrance)


def remove_entrance(entrance: Path) -> None:
    """Take one away, whatever it is by now."""
    if entrance.is_symlink():
        entrance.unlink(missing_ok=True)
    else:
        shutil.rmtree(entrance, ignore_errors=True)
