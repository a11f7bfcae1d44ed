"""The input of the pipelines under test, what must come out of them, and a look at what did.

Orders arrive in files, one file per epoch. What is due is worked out here without Spark: revenue per shop and minute,
as rows that changed in each epoch. Some orders are late: where a watermark is lost, they count although they must not.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from buckets import BUCKET_NAMED, bucket_of
from deltalake import DeltaTable

import holdfast
from holdfast.errors import NotFound
from holdfast.storage.objects import open_objects

SCHEMA = "shop string, amount long, at timestamp"
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
INDEX_NAMED = "index-url"
"""The file that has the address of a pipeline's index."""
HDFS_NAMED = "hdfs-address"
"""The file that has the address on HDFS where a pipeline has everything: checkpoints, workdir and files."""
LATE_AFTER = 120
"""Seconds that the watermark trails behind."""
FIRST_MINUTE = 10
"""Of the first orders, so that the third file already can have some that come too late."""


class Order(NamedTuple):
    shop: str
    amount: int
    second: int
    """Since `BEGIN`."""


class Revenue(NamedTuple):
    """A row that the pipelines make: the revenue of a shop in a minute."""

    shop: str
    minute: int
    total: int
    orders: int


def make_orders(files: int, *, seed: int = 0) -> list[list[Order]]:
    """As many lists of orders, a minute each. Most are in time, some a little late, some too late."""
    chance = random.Random(seed)
    made = []
    for number in range(files):
        at = (FIRST_MINUTE + number) * 60
        seconds = [at + chance.randrange(60) for _ in range(6)] + [at - 75]
        seconds += [at - 600 - chance.randrange(60)] if number % 3 == 2 else []
        if number % 7 == 2:  # a whole file that comes too late: an epoch without rows
            seconds = [at - 700]
        made.append([Order(f"shop-{chance.randrange(3)}", chance.randrange(1, 10**6), second) for second in seconds])
    return made


def write_orders(folder: Path, orders: list[list[Order]], *, first: int = 0) -> None:
    """One file each, in an order that the file source keeps: it goes by time of change."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(orders, start=first):
        hidden = folder / f".{number:05}"
        hidden.write_text("".join(json.dumps(_document(order)) + "\n" for order in lines))
        os.utime(hidden, (1_800_000_000 + number, 1_800_000_000 + number))
        hidden.rename(folder / f"{number:05}.json")


def _document(order: Order) -> dict[str, object]:
    at = BEGIN + datetime.timedelta(seconds=order.second)
    return {"shop": order.shop, "amount": order.amount, "at": at.isoformat()}


def revenue_by_epoch(orders: list[list[Order]]) -> list[list[Revenue]]:
    """What each epoch changes, in Spark's update mode with a watermark.

    A batch drops orders for minutes that ended before the watermark of the batch before it, and forgets minutes that
    ended before its own; a watermark is the newest order of all batches before, less the delay.
    """
    state: dict[tuple[str, int], tuple[int, int]] = {}
    newest = 0
    watermark = before = 0
    epochs = []
    for lines in orders:
        touched = set()
        for order in lines:
            minute = order.second // 60
            if (minute + 1) * 60 <= before:
                continue
            total, count = state.get((order.shop, minute), (0, 0))
            state[order.shop, minute] = (total + order.amount, count + 1)
            touched.add((order.shop, minute))
        epochs.append(sorted(Revenue(*key, *state[key]) for key in touched))
        state = {key: value for key, value in state.items() if (key[1] + 1) * 60 > watermark}
        newest = max([newest, *(order.second for order in lines)])
        before, watermark = watermark, max(watermark, newest - LATE_AFTER)
    return epochs


def merged(epochs: Iterable[list[Revenue]]) -> list[Revenue]:
    """What a table that is merged by shop and minute holds after these epochs."""
    table = {(row.shop, row.minute): row for rows in epochs for row in rows}
    return sorted(table.values())


# What came out


def files_by_epoch(path: Path) -> dict[int, list[Revenue]]:
    """What readers of a file sink see, epoch by epoch. Epochs without rows are there, too."""
    found = {}
    for folder in sorted(path.glob("epoch=*")):
        rows = _parquet(sorted(folder.glob("*.parquet"))).to_pylist()
        found[int(folder.name.removeprefix("epoch="))] = sorted(Revenue(**row) for row in rows)
    return found


def _parquet(where: Path | list[Path], **how: str) -> Any:
    import pyarrow.dataset  # here, since it takes pandas with it, which the pipelines under test can do without

    return pyarrow.dataset.dataset(where, format="parquet", **how).to_table()


def hdfs_files_by_epoch(root: Path) -> dict[int, list[Revenue]]:
    """As `files_by_epoch`, on HDFS: what a reader sees that lists the directory and skips what is hidden."""
    import pyarrow.parquet

    objects = open_objects(f"{(root / HDFS_NAMED).read_text()}/files")
    found: dict[int, list[Revenue]] = {}
    for info in objects.list(""):
        folder, _, name = info.key.partition("/")
        if not folder.startswith("epoch="):
            continue
        rows = found.setdefault(int(folder.removeprefix("epoch=")), [])
        if name.startswith("part-"):
            body = io.BytesIO(objects.read(info.key, limit=1 << 20))
            rows += [Revenue(**row) for row in pyarrow.parquet.read_table(body).to_pylist()]
    return {epoch: sorted(rows) for epoch, rows in found.items()}


def check_hdfs_so_far(root: Path, epochs: list[list[Revenue]]) -> int:
    """Readers on HDFS see whole epochs from the first on, each as it must be. Returns how many."""
    files = hdfs_files_by_epoch(root)
    assert list(files) == list(range(1, len(files) + 1))
    assert list(files.values()) == [*epochs, [], []][: len(files)]
    return len(files)


def check_hdfs_at_the_end(root: Path, epochs: list[list[Revenue]]) -> None:
    """Everything was delivered, once."""
    assert check_hdfs_so_far(root, epochs) >= len(epochs)


def check_s3_so_far(root: Path, epochs: list[list[Revenue]]) -> int:
    """As `check_sinks_so_far`, on S3. Readers that list the files see rows of decided epochs alone, each row once."""
    bucket = bucket_of(root)
    due = [*epochs, [], []]
    logged, listed = _revenues(bucket.logged()), _revenues(bucket.listed())
    assert list(logged) == list(range(1, len(logged) + 1))
    assert list(logged.values()) == due[: len(logged)]
    ids = bucket.store().list_ids()
    newest = bucket.store().load_by_id(ids[-1]) if ids else None
    decided = newest.epoch if newest else 0
    assert len(logged) <= decided
    assert max(listed, default=0) <= decided
    for epoch, rows in listed.items():
        assert Counter(rows) <= Counter(due[epoch - 1]), f"epoch {epoch}"
    assert {epoch: listed[epoch] for epoch in logged} == logged
    table = sorted(Revenue(**row) for row in bucket.table_rows())
    assert table in [merged(due[:count]) for count in range(max(len(logged) - 1, 0), decided + 1)]
    return len(logged)


def check_s3_at_the_end(root: Path, epochs: list[list[Revenue]]) -> None:
    """Everything was delivered, once, to both sinks."""
    files = check_s3_so_far(root, epochs)
    assert files >= len(epochs)
    assert len(bucket_of(root).listed()) == files
    assert sorted(Revenue(**row) for row in bucket_of(root).table_rows()) == merged(epochs)


def _revenues(found: dict[int, list[dict[str, Any]]]) -> dict[int, list[Revenue]]:
    return {epoch: sorted(Revenue(**row) for row in rows) for epoch, rows in found.items()}


def table_rows(path: Path) -> list[Revenue]:
    """What readers of a Delta table see."""
    return sorted(Revenue(**row) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def check_sinks_so_far(root: Path, epochs: list[list[Revenue]]) -> int:
    """Whatever happened: readers see whole epochs from the first on, each as it must be. Returns how many."""
    files = files_by_epoch(root / "files")
    assert list(files) == list(range(1, len(files) + 1))
    due = [*epochs, [], []]  # at its end, Spark may run epochs without rows to advance the watermark
    assert list(files.values()) == due[: len(files)]
    if (root / "table" / "_delta_log").exists():
        table = table_rows(root / "table")
        assert table in [merged(due[:count]) for count in range(max(len(files) - 1, 0), len(files) + 2)]
    return len(files)


def check_sinks_at_the_end(root: Path, epochs: list[list[Revenue]]) -> None:
    """Everything was delivered, once, to both sinks."""
    files = files_by_epoch(root / "files")
    assert list(files) == list(range(1, len(files) + 1))
    assert list(files.values())[: len(epochs)] == epochs
    assert not any(list(files.values())[len(epochs) :])
    assert table_rows(root / "table") == merged(epochs)


def check_index_so_far(root: Path, epochs: list[list[Revenue]]) -> int:
    """Rows and positions in the index are of one epoch, at most one behind the files. Returns how many these have."""
    files = files_by_epoch(root / "files")
    due = [*epochs, [], []]
    assert list(files.values()) == due[: len(files)]
    rows, sequence = _in_index(root)
    assert len(files) - 1 <= sequence <= len(files)
    assert rows == merged(due[:sequence])
    return len(files)


def check_index_at_the_end(root: Path, epochs: list[list[Revenue]]) -> None:
    """Everything was delivered, once, to files and index, and nothing is staged any more."""
    files = check_index_so_far(root, epochs)
    assert files >= len(epochs)
    assert _in_index(root) == (merged(epochs), files)
    assert not (root / "staging").exists()


def _in_index(root: Path) -> tuple[list[Revenue], int]:
    """The rows, and the sequence of the one source; nothing and 0 for one that was not made yet."""
    try:
        index = holdfast.open_index((root / INDEX_NAMED).read_text(), read_only=True)
    except NotFound:
        return [], 0
    with index:
        rows = sorted(Revenue(**json.loads(value)) for _, value in index.results.scan())
        checkpoint = index.checkpoints.read_checkpoint("orders")
    return rows, 0 if checkpoint is None else checkpoint.sequence


def check_nothing_is_left_over(root: Path, *, was_taken_over: bool = False) -> None:
    """No staged output, no half of a workdir, nothing in the store that no checkpoint owns, everything valid.

    Beside the workdir is one link, by which its last driver's Spark came in. One that was taken over while it was at
    work may have written where its own link was; the next start removes that.
    """
    assert not (root / "files" / "_staging").exists()
    assert not (root / "table" / "_holdfast_staging").exists()
    if (root / BUCKET_NAMED).exists():
        check_place_on_s3(root)
        return
    if (root / HDFS_NAMED).exists():
        check_place_on_hdfs(root)
        return
    workdir = root / "store" / "workdir"
    links = [path for path in workdir.parent.glob(f".{workdir.name}.spark-*") if path.is_symlink()]
    assert len(links) == 1
    left = {path.name for path in workdir.parent.glob(f".{workdir.name}.*")} - {path.name for path in links}
    assert all(was_taken_over and name.startswith(f".{workdir.name}.spark-") for name in left), left
    check_store(holdfast.open_store(root / "store"))


def check_place_on_s3(root: Path) -> None:
    """Only the last driver's place is left, nothing is staged; and as `check_nothing_is_left_over`."""
    bucket = bucket_of(root)
    assert len(bucket.places()) == 1, "places of drivers that are gone were removed"
    assert bucket.staged() == []
    check_store(bucket.store())


def check_place_on_hdfs(root: Path) -> None:
    """As `check_place_on_s3`, and nothing is staged any more."""
    at = (root / HDFS_NAMED).read_text()
    left = open_objects(f"{at}/workdir").list("")
    assert len({info.key.partition("/")[0] for info in left}) == 1, "places of drivers that are gone were removed"
    assert open_objects(f"{at}/files").list("_staging/") == []
    check_store(holdfast.open_store(f"{at}/store"))


def check_store(store: holdfast.CheckpointStore) -> None:
    """Every checkpoint is valid, the newest one is committed everywhere, and nothing belongs to no checkpoint."""
    ids = store.list_ids()
    assert ids
    for number in ids:
        result = store.validate_checkpoint(number)
        assert [issue for issue in result.issues if issue.is_fatal] == []
        assert result.valid
    report = store.recover_latest_validated()
    assert (report.chosen_id, report.skipped) == (ids[-1], [])
    newest = store.load_latest()
    assert newest is not None
    assert set(newest.sink_commit_statuses.values()) == {"Committed"}
    store.cleanup_orphans(older_than=0)
    assert store.plan_cleanup(older_than=0).orphans == []
    assert store.validate_checkpoint(ids[-1]).valid


def check_luck(root: Path, epochs: list[list[Revenue]]) -> None:
    """Both sinks have the same rows, and as many as there must be."""
    files = _lucky_rows(_parquet(root / "files", partitioning="hive"))
    table = _lucky_rows(DeltaTable(root / "table").to_pyarrow_table())
    assert files == table
    due = Counter((row.shop, row.minute, row.orders) for epoch in epochs for row in epoch)
    assert Counter((row["shop"], row["minute"], row["orders"]) for row in files) == due
    assert len({row["luck"] for row in files}) == len(files)


def _lucky_rows(table: Any) -> list[dict[str, Any]]:
    """The rows without what only one of the sinks has, in one order."""
    columns = ["shop", "minute", "total", "orders", "luck"]
    return sorted(table.select(columns).to_pylist(), key=lambda row: tuple(row.values()))
