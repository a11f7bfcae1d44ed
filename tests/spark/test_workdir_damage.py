"""A workdir is lost, or damaged in every way that is known to stop Spark: the pipeline goes on, exactly.

Every test begins with the same pipeline, some epochs old, whose state and watermark matter to what comes next.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from orders import check_nothing_is_left_over
from workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDERS = ["hdfs", "rocksdb-changelog"]
Damage = Callable[[Path], None]
VERSIONED = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(?:delta|snapshot|changelog|zip)")


@pytest.fixture(scope="module", params=PROVIDERS)
def worked(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A pipeline that has run twice."""
    shop = Workshop(spark, tmp_path_factory.mktemp(request.param) / "shop", request.param)
    shop.arrive(4)
    shop.run()
    shop.arrive(2)
    shop.run()
    shop.check()
    shop.save()
    return shop


@pytest.fixture
def shop(worked: Workshop) -> Workshop:
    worked.put_back()
    return worked


def goes_on(shop: Workshop) -> None:
    """More orders arrive, and everything is delivered as if nothing had happened."""
    shop.arrive()
    shop.run()
    shop.check()
    check_nothing_is_left_over(shop.root)


def logs(workdir: Path, name: str) -> list[Path]:
    """The files of one of Spark's logs, the newest last."""
    return sorted((workdir / name).glob("[0-9]*"), key=lambda path: int(path.name))


def state_files(workdir: Path) -> list[Path]:
    """Files of the state's newest version, the largest last."""
    found = {path: VERSIONED.fullmatch(path.name) for path in (workdir / "state").rglob("*")}
    newest = max(int(match[1]) for match in found.values() if match)
    return sorted(
        (path for path, match in found.items() if match and int(match[1]) == newest),
        key=lambda path: path.stat().st_size,
    )


def flip(path: Path) -> None:
    """One bit is another: in a log of Spark's, a digit is another then."""
    body = bytearray(path.read_bytes())
    body[len(body) * 3 // 4] ^= 1
    path.write_bytes(body)


def delete_log(workdir: Path, name: str) -> None:
    for path in logs(workdir, name):
        path.unlink()


def empty_everything(workdir: Path) -> None:
    for path in workdir.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


def empty_folder(workdir: Path) -> None:
    shutil.rmtree(workdir)
    workdir.mkdir()


def rewind(workdir: Path) -> None:
    """What people do by hand to repeat some batches."""
    for path in (*logs(workdir, "commits")[-2:], *logs(workdir, "offsets")[-2:]):
        path.unlink()


def halve_everything(workdir: Path) -> None:
    for path in workdir.rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)


def without_checksums(workdir: Path) -> None:
    for path in workdir.rglob(".*.crc"):
        path.unlink()


TABLE: dict[str, Damage] = {
    "gone": shutil.rmtree,
    "emptied": empty_folder,
    "every file empty": empty_everything,
    "every file halved": halve_everything,
    "newest commit empty": lambda workdir: os.truncate(logs(workdir, "commits")[-1], 0),
    "newest commit halved": lambda workdir: os.truncate(logs(workdir, "commits")[-1], 10),
    "newest commit gone": lambda workdir: logs(workdir, "commits")[-1].unlink(),
    "newest offsets empty": lambda workdir: os.truncate(logs(workdir, "offsets")[-1], 0),
    "newest offsets gone": lambda workdir: logs(workdir, "offsets")[-1].unlink(),
    "commits gone": lambda workdir: delete_log(workdir, "commits"),
    "offsets gone": lambda workdir: delete_log(workdir, "offsets"),
    "a gap in the offsets": lambda workdir: logs(workdir, "offsets")[-2].unlink(),
    "a gap in the commits": lambda workdir: logs(workdir, "commits")[-2].unlink(),
    "metadata gone": lambda workdir: (workdir / "metadata").unlink(),
    "metadata empty": lambda workdir: os.truncate(workdir / "metadata", 0),
    "newest state gone": lambda workdir: state_files(workdir)[-1].unlink(),
    "newest state empty": lambda workdir: os.truncate(state_files(workdir)[-1], 0),
    "newest state flipped": lambda workdir: flip(state_files(workdir)[-1]),
    "state gone": lambda workdir: shutil.rmtree(workdir / "state"),
    "logs gone, state kept": lambda workdir: [delete_log(workdir, name) for name in ("offsets", "commits")] and None,
    "sources gone": lambda workdir: shutil.rmtree(workdir / "sources"),
    "newest offsets and commits gone": rewind,
    "checksums gone": without_checksums,
    "a mark that says nothing": lambda workdir: os.truncate(workdir / ".holdfast.json", 0),
}


@pytest.mark.parametrize("damage", TABLE)
def test_damage_that_stops_spark(damage: str, shop: Workshop) -> None:
    TABLE[damage](shop.workdir)
    goes_on(shop)


KINDS: dict[str, Damage] = {"deleted": Path.unlink, "emptied": lambda path: os.truncate(path, 0), "flipped": flip}


def damaged_one_by_one(shop: Workshop, kinds: Callable[[int], list[str]]) -> None:
    """Each file of the workdir in its turn, hidden ones included, in the ways that `kinds` gives for its number."""
    files = sorted(path.relative_to(shop.workdir) for path in shop.workdir.rglob("*") if path.is_file())
    problems = []
    for number, path in enumerate(files):
        for kind in kinds(number):
            shop.put_back()
            KINDS[kind](shop.workdir / path)
            try:
                goes_on(shop)
            except Exception as problem:
                problems.append(f"{path} {kind}: {type(problem).__name__}: {str(problem)[:500]}")
    assert problems == []


def test_each_file_damaged(shop: Workshop) -> None:
    names = list(KINDS)
    damaged_one_by_one(shop, lambda number: [names[number % len(names)]])
