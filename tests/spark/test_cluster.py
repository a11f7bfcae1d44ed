"""The same pipelines on executors that are processes of their own, and that die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chains import WORKS
from orders import (
    check_luck,
    check_nothing_is_left_over,
    check_sinks_at_the_end,
    make_orders,
    revenue_by_epoch,
    write_orders,
)

import holdfast
from holdfast.testing.crash import kill_at

pytestmark = [pytest.mark.soak, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

NEVER = 10**9


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb-changelog"])
def test_executors_die_in_the_middle_of_an_epoch(provider: str, shared: Path, tmp_path: Path) -> None:
    """They take the frame with them that the first sink has read and the second one is about to."""
    orders = make_orders(5)
    run(
        tmp_path, shared, work="revenue", provider=provider, kill_executors_at=("sink.stage", "begin", 6), orders=orders
    )
    check_sinks_at_the_end(tmp_path / "pipeline", revenue_by_epoch(orders))
    assert packed_on_executors(tmp_path / "pipeline")
    check_nothing_is_left_over(tmp_path / "pipeline")


def test_sinks_agree_when_executors_die_between_them(shared: Path, tmp_path: Path) -> None:
    """What they had computed would be computed again, and be something else."""
    orders = make_orders(4)
    run(tmp_path, shared, work="luck", provider="hdfs", kill_executors_at=("sink.stage", "begin", 4), orders=orders)
    check_luck(tmp_path / "pipeline", revenue_by_epoch(orders))


def run(folder: Path, shared: Path, *, orders: Any, **arguments: Any) -> None:
    """Undisturbed but for the executors."""
    write_orders(folder / "orders", orders)
    places = {
        "root": str(folder / "pipeline"),
        "orders": str(folder / "orders"),
        "archive": str(shared / "classes.jsa"),
    }
    ended = kill_at(f"{WORKS}:on_a_cluster", NEVER, timeout=400.0, **places, **arguments)
    assert "killed 2 executors" in ended.acknowledged


def packed_on_executors(root: Path) -> bool:
    newest = holdfast.open_store(root / "store").load_latest()
    assert newest is not None
    return any("nodes/" in batch.key for batch in newest.needed_batches)
