"""The same pipelines on executors that are processes of their own, and that die."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chains import HERE
from orders import (
    check_luck,
    check_nothing_is_left_over,
    check_sinks_at_the_end,
    make_orders,
    revenue_by_epoch,
    write_orders,
)

import holdfast
from holdfast.checkpoints.lease import current
from holdfast.testing.faults.crash import kill_at
from servers.spark_cluster import spark_cluster

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

NEVER = 10**9


@pytest.mark.parametrize(
    ("provider", "works"),
    [
        ("rocksdb-changelog", ["revenue"]),
        pytest.param("rocksdb-changelog", ["luck"], marks=pytest.mark.soak),
        pytest.param("hdfs", ["revenue", "luck"], marks=pytest.mark.soak),
    ],
)
def test_executors_die_in_the_middle_of_an_epoch(provider: str, works: list[str], tmp_path: Path) -> None:
    """They take the frame with them that the first sink has read and the second one is about to.

    What they had computed is computed again. Where that gives something else, the sinks agree all the same.
    """
    orders = make_orders(3)
    write_orders(tmp_path / "orders", orders)
    root = tmp_path / "pipelines"
    ended = kill_at(
        f"{HERE / 'works.py'}:on_a_cluster",
        NEVER,
        timeout=400.0,
        root=str(root),
        orders=str(tmp_path / "orders"),
        kill_executors_at=("sink.stage", "begin", 4),
        provider=provider,
        works=works,
    )
    assert len(ended.acknowledged) == len(works)
    assert "killed 0" not in ended.acknowledged
    if "revenue" in works:
        check_sinks_at_the_end(root / "revenue", revenue_by_epoch(orders))
        assert packed_on_executors(root / "revenue")
    if "luck" in works:
        check_luck(root / "luck", revenue_by_epoch(orders))
    for work in works:
        check_nothing_is_left_over(root / work)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a worker disks of its own")
def test_executors_that_do_not_share_the_workdir_are_refused_at_the_start(tmp_path: Path) -> None:
    """Also one that comes only after another one has answered."""
    write_orders(tmp_path / "orders", make_orders(2))
    root = tmp_path / "pipelines"
    root.mkdir()
    with spark_cluster() as cluster, probed(root / "store" / "workdir", lambda: cluster.add_worker(hidden=[root])):
        cluster.add_worker()
        ended = kill_at(
            f"{HERE / 'works.py'}:on_disks_of_their_own",
            NEVER,
            timeout=200.0,
            root=str(root),
            orders=str(tmp_path / "orders"),
            master=cluster.master,
        )
    [said] = ended.acknowledged
    assert said.startswith("workdir.not-shared: The executor on ")
    assert holdfast.open_store(root / "store").list_ids() == []
    assert not list((root / "store" / "workdir").glob(".holdfast-probe-*"))


def test_executors_with_another_release_are_refused_at_the_start(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", make_orders(2))
    other = tmp_path / "other"
    shutil.copytree(Path(holdfast.__file__).parent, other / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "holdfast/base/version.py").write_text('VERSION = "0.0.9"\n')
    ended = kill_at(
        f"{HERE / 'works.py'}:with_another_release",
        NEVER,
        timeout=200.0,
        root=str(tmp_path / "pipelines"),
        orders=str(tmp_path / "orders"),
        path=str(other),
    )
    [said] = ended.acknowledged
    assert said.startswith("executor.version: The executor on ")
    assert f"has Holdfast 0.0.9, and the driver {holdfast.__version__}." in said
    assert current(holdfast.open_store(tmp_path / "pipelines/store").objects) is None  # no driver was fenced


@contextmanager
def probed(workdir: Path, then: Callable[[], None]) -> Iterator[None]:
    """Do something as soon as a driver asks its executors what they see."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            if list(workdir.glob(".holdfast-probe-*")):
                then()
                return

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()


def packed_on_executors(root: Path) -> bool:
    newest = holdfast.open_store(root / "store").load_latest()
    assert newest is not None
    return any("nodes/" in batch.key for batch in newest.needed_batches)
