"""The same pipelines on executors that are processes of their own, and that die."""

from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest
from chains import HERE
from orders import (
    Order,
    Revenue,
    check_luck,
    check_nothing_is_left_over,
    check_sinks_at_the_end,
    check_store,
    make_orders,
    revenue_by_epoch,
    write_orders,
)

import holdfast
from holdfast.checkpoints.lease import current
from holdfast.sinks import FileSink
from holdfast.storage.objects import open_objects
from holdfast.testing.faults.crash import kill_at
from maven import require_jars
from servers.s3 import S3Server
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a worker disks of its own")
def test_workers_that_share_nothing_but_s3(tmp_path: Path, s3_server: S3Server) -> None:
    """The workdir lies beside the checkpoints by itself, executors pack their state, and a start goes on from there.

    Sinks on a disk are refused, at the start, and when they stage what an executor has written elsewhere.
    """
    require_jars("s3a")
    bucket = s3_server.new_bucket()
    orders = make_orders(4)
    put_orders(s3_server, bucket, tmp_path, orders[:2], first=0)
    hidden, half = tmp_path / "driver only", tmp_path / "half"
    hidden.mkdir()
    half.mkdir()
    arguments = {"root": str(hidden), "endpoint": s3_server.endpoint, "bucket": bucket}
    with spark_cluster() as cluster:
        cluster.add_worker(hidden=[hidden])
        cluster.add_worker(hidden=[hidden, half])
        work = f"{HERE / 'works.py'}:on_s3_alone"
        first = kill_at(work, NEVER, timeout=300.0, master=cluster.master, half=str(half), **arguments)
        put_orders(s3_server, bucket, tmp_path, orders[2:], first=2)
        second = kill_at(work, NEVER, timeout=300.0, master=cluster.master, **arguments)
    check_refused_sinks(first.acknowledged[:-1])
    assert [first.acknowledged[-1], *second.acknowledged] == [f"workdir s3a://{bucket}/store/workdir"] * 2
    epochs = revenue_by_epoch(orders)
    assert files_on_s3(s3_server, bucket)[: len(epochs)] == epochs
    check_store(holdfast.open_store(f"s3://{bucket}/store", options=s3_server.options))
    newest = holdfast.open_store(f"s3://{bucket}/store", options=s3_server.options).load_latest()
    assert newest is not None
    assert any("nodes/" in batch.key for batch in newest.needed_batches), "state was packed on executors"


def check_refused_sinks(said: list[str]) -> None:
    refusals, claims, staged = said[:8:2], said[1:8:2], said[8:]
    for name, refusal, claim in zip(["files", "table", "index", "letters"], refusals, claims, strict=True):
        assert refusal.startswith(f"{name} sink.not-shared: The executor on ")
        assert claim == f"{name} claimed by None"
    assert len(staged) == 3
    for refusal in staged:
        assert refusal.startswith("staged sink.not-shared: Executors have written files ")


def put_orders(server: S3Server, bucket: str, folder: Path, orders: list[list[Order]], *, first: int) -> None:
    """Files of orders in the bucket, in the order in which they are to be read."""
    objects = open_objects(f"s3://{bucket}/orders", options=server.options)
    write_orders(folder / f"orders-{first}", orders)
    for number, path in enumerate(sorted((folder / f"orders-{first}").iterdir()), first):
        objects.create(f"{number:04}.json", [path.read_bytes()])


def files_on_s3(server: S3Server, bucket: str) -> list[list[Revenue]]:
    """What the file sink has committed, epoch by epoch."""
    found: dict[int, list[Revenue]] = {}
    objects = open_objects(f"s3://{bucket}", options=server.options)
    for address in FileSink(f"s3://{bucket}/files", storage_options=server.options).files():
        body = objects.read(address.removeprefix(f"s3://{bucket}/"), limit=1 << 20)
        rows = pyarrow.parquet.read_table(io.BytesIO(body)).to_pylist()
        epoch = int(address.partition("epoch=")[2].partition("/")[0])
        found.setdefault(epoch, []).extend(Revenue(**row) for row in rows)
    return [sorted(found.get(epoch, [])) for epoch in range(1, max(found) + 1)]


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
