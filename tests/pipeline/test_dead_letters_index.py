"""Rows that an index refuses: the others arrive; these are in the dead letters once, with the reason, and counted."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from letter_place import ONCE, Item, items_of, letters_in, write_items

import holdfast
from holdfast.base.arguments import MAX_KEY_BYTES
from holdfast.pipeline.epoch_log import epoch_words
from holdfast.sinks import FileSink, IndexSink, RowsRefused
from holdfast.sinks.index import refused_rows
from holdfast.sinks.index.sink import sequence_of
from holdfast.spark import EpochReport, Pipeline
from holdfast.testing.faults.crash import Moment, StepEvent, kill_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = "n" * (MAX_KEY_BYTES + 1)
BIG = "b" * 600


class Indexed:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.url = f"sqlite:///{root}/index.db"
        self.reports: list[EpochReport] = []

    def run(self, *epochs: list[Item], on_refused: str = "dead-letter") -> None:
        write_items(self.root / "items", *epochs)
        pipeline = Pipeline("items", checkpoints=self.root / "store")
        pipeline.sink("index", IndexSink(self.url, "name"), on_refused=on_refused)  # type: ignore[arg-type]
        pipeline.sink("files", FileSink(self.root / "files"))
        pipeline.on_epoch(self.reports.append)
        pipeline.run(pipeline.source("items", items_of(self.spark, self.root / "items")), trigger=ONCE)

    def names(self) -> list[str]:
        return names_in(self.url, "name")

    def letters(self) -> list[tuple[int, str, str, int | None]]:
        found = letters_in(self.root / "store" / "dead-letters")
        return sorted((one["epoch"], one["sink"], one["reason"], one["row"]["id"]) for one in found)


def names_in(url: str, column: str) -> list[str]:
    with holdfast.open_index(url, read_only=True) as index:
        return [json.loads(value)[column] for _, value in index.results.scan()]


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Indexed:
    return Indexed(spark, tmp_path)


def test_null_and_long_keys_and_large_rows(
    place: Indexed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refused_rows, "MAX_VALUE_BYTES", 500)
    caplog.set_level(logging.INFO, "holdfast.epochs")
    place.run([(1, "one", None), (2, None, None), (3, LONG, None), (4, BIG, None)], [(5, "five", None)])
    assert place.names() == ["five", "one"]
    assert place.letters() == [
        (1, "index", "key column 'name' is null", 2),
        (1, "index", "the key, as JSON, is longer than 2,048 bytes", 3),
        (1, "index", "the row, as JSON, is larger than 500 bytes", 4),
    ]
    assert [report.refused for report in place.reports] == [{"index": 3}, {}]
    assert "3 refused by index" in epoch_words(place.reports[0])
    assert "refused" not in epoch_words(place.reports[1])
    assert [("3 refused by index" in line) for line in caplog.messages if "epoch 1" in line] == [True]


def test_all_rows_of_a_key_that_comes_twice(place: Indexed) -> None:
    place.run(
        [(1, "one", None), (2, "two", None)], [(3, "two", None), (4, "two", None), (5, None, None), (6, "six", None)]
    )
    assert place.names() == ["one", "six", "two"]
    twice = "another row has the same name"
    null = "key column 'name' is null"
    assert place.letters() == [(2, "index", twice, 3), (2, "index", twice, 4), (2, "index", null, 5)]
    with holdfast.open_index(place.url, read_only=True) as index:
        assert index.checkpoints.read_all_checkpoints()["items"].sequence == sequence_of(0, 2)
    assert [report.refused for report in place.reports] == [{}, {"index": 3}]


def test_by_default_the_epoch_fails(place: Indexed) -> None:
    with pytest.raises(RowsRefused, match="several rows with the same name"):
        place.run([(1, "one", None), (2, "one", None)], on_refused="stop")
    assert place.letters() == []


WORK = f"{Path(__file__).with_name('letter_place.py')}:index_items"
DECIDED = StepEvent("epoch.decide", "end")
DEATHS = [
    Moment(StepEvent("sink.stage", "end"), nth=2),  # all have staged, nothing is decided
    Moment(DECIDED),
    Moment(StepEvent("sink.commit", "end"), nth=1, since=DECIDED),  # the letters are not committed yet
]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.soak  # test_dead_letters.py dies at one of these in `make test`
@pytest.mark.timeout(600)
def test_killed_between_stage_decide_and_commit(tmp_path: Path) -> None:
    epochs: list[list[Item]] = [
        [(10 * n, "good", None), (None, f"no {n}", None), (10 * n + 1, f"a {n}", None), (10 * n + 1, f"b {n}", None)]
        for n in range(1, 5)
    ]
    write_items(tmp_path / "items", *epochs)
    for death in DEATHS:
        run = kill_at(WORK, death, timeout=200.0, root=str(tmp_path))
        assert run.event == death.event
        assert run.killed
    last = kill_at(WORK, Moment(StepEvent("never", "end")), timeout=200.0, root=str(tmp_path))
    assert last.acknowledged == ["done"]
    assert names_in(f"sqlite:///{tmp_path}/index.db", "id") == [10, 20, 30, 40]
    letters = letters_in(tmp_path / "store" / "dead-letters")
    assert all(found["directory"] == found["epoch"] for found in letters)
    assert sorted((found["epoch"], found["row"]["name"]) for found in letters) == sorted(
        (n, f"{name} {n}") for n in range(1, 5) for name in ("no", "a", "b")
    )
