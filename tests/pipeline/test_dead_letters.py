"""Rows that a sink refuses: the others arrive, and these are in the dead letters once, with the reason."""

from __future__ import annotations

import datetime
import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.dataset
import pytest
from deltalake import DeltaTable
from letter_place import ONCE, TABLE, Item, items_of, letters_in, write_items

import holdfast
from holdfast.errors import Invalid
from holdfast.pipeline import dead_letters
from holdfast.pipeline.dead_letters import DeadLetterFiles
from holdfast.sinks import DeltaSink, FileSink, PostgresSink, RowsRefused
from holdfast.spark import Pipeline
from holdfast.testing.faults.crash import Moment, StepEvent, kill_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOOD: list[Item] = [(1, "one", "1.00"), (2, "two", None), (3, "a b  ", "99.99")]
NO_KEY: Item = (None, "lost", "1.00")
NUL: Item = (4, "a\0b", "1.00")
TOO_LONG: Item = (5, "much too long", "1.00")
TOO_LARGE: Item = (6, "six", "100.00")
NO_NAME: Item = (7, None, "1.00")
BAD = [NO_KEY, NUL, TOO_LONG, TOO_LARGE, NO_NAME]
REASONS = {
    NO_KEY: "key column 'id' is null",
    NUL: "column 'name' holds a NUL character, which PostgreSQL cannot store",
    TOO_LONG: "column 'name' is too long for character varying(5)",
    TOO_LARGE: "column 'amount' is out of range for numeric(4,2)",
    NO_NAME: "column 'name', which is NOT NULL, is null",
}


def ask(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def ids(dsn: str) -> list[int]:
    return [row[0] for row in ask(dsn, "SELECT id FROM out ORDER BY id")]


def item(letter: dict[str, Any]) -> Item:
    row = letter["row"]
    return row["id"], row["name"], None if row["amount"] is None else f"{row['amount']:.2f}"


class Place:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.store = root / "store"
        self.letters = self.store / "dead-letters"

    def write(self, *epochs: list[Item]) -> None:
        write_items(self.root / "items", *epochs)

    def pipeline(self, **options: Any) -> Pipeline:
        return Pipeline("items", **({"checkpoints": self.store} | options))

    def run(self, pipeline: Pipeline) -> None:
        pipeline.run(pipeline.source("items", items_of(self.spark, self.root / "items")), trigger=ONCE)

    def run_with(self, dsn: str, **options: Any) -> None:
        pipeline = self.pipeline()
        pipeline.sink("pg", PostgresSink(dsn, "out", "id"), **options)
        self.run(pipeline)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_good_rows_arrive_and_bad_ones_are_kept_with_the_reason(place: Place, dsn: str) -> None:
    ask(dsn, TABLE)
    place.write([*GOOD, NO_KEY, NUL], [(8, "eight", None)], [TOO_LONG, TOO_LARGE, NO_NAME])
    before = datetime.datetime.now(datetime.UTC)
    place.run_with(dsn, on_refused="dead-letter")
    assert ids(dsn) == [1, 2, 3, 8]
    letters = letters_in(place.letters)
    assert sorted((REASONS[item(found)], found["epoch"]) for found in letters) == sorted(
        (REASONS[bad], 1 if bad in (NO_KEY, NUL) else 3) for bad in BAD
    )
    for letter in letters:
        assert letter["reason"] == REASONS[item(letter)]
        assert letter["sink"] == "pg"
        assert letter["lineage"] == 0
        assert letter["directory"] == letter["epoch"]
        assert before <= datetime.datetime.fromisoformat(letter["at"]) <= datetime.datetime.now(datetime.UTC)

    newest = holdfast.open_store(place.store).load_latest()
    assert newest is not None
    assert newest.is_settled
    assert newest.sink_epochs == {"dead-letters": 3, "pg": 3}
    place.write([(9, "nine", None), (None, "again", None)])
    place.run_with(dsn, on_refused="dead-letter")
    assert ids(dsn) == [1, 2, 3, 8, 9]
    assert [found["epoch"] for found in letters_in(place.letters)] == [1, 1, 3, 3, 3, 4]
    store = holdfast.open_store(place.store)
    assert store.cleanup_orphans() == 0
    assert store.recover_latest_validated().skipped == []
    assert len(letters_in(place.letters)) == 6


def test_by_default_the_epoch_fails(place: Place, dsn: str) -> None:
    ask(dsn, TABLE)
    place.write([*GOOD, NO_KEY])
    with pytest.raises(RowsRefused, match="a key column is null"):
        place.run_with(dsn)
    assert ids(dsn) == []
    assert not place.letters.exists()


def test_refusals_that_no_row_shows_by_itself_still_fail_the_epoch(place: Place, dsn: str) -> None:
    ask(dsn, TABLE)
    place.write([*GOOD, (1, "twice", None), NO_KEY])
    with pytest.raises(RowsRefused, match="same key"):
        place.run_with(dsn, on_refused="dead-letter")
    assert ids(dsn) == []
    assert letters_in(place.letters) == []


def test_two_sinks_refuse_what_each_of_them_refuses(place: Place, dsn: str) -> None:
    ask(dsn, TABLE)
    place.write([*GOOD, NO_KEY, TOO_LONG])
    pipeline = place.pipeline()
    pipeline.sink("pg", PostgresSink(dsn, "out", "id"), on_refused="dead-letter")
    pipeline.sink("delta", DeltaSink(place.root / "delta", "id"), on_refused="dead-letter")
    pipeline.sink("files", FileSink(place.root / "files"))
    pipeline.dead_letters(FileSink(place.root / "letters", "json", epoch_column="holdfast_epoch"))
    place.run(pipeline)
    assert ids(dsn) == [1, 2, 3]
    assert sorted(DeltaTable(place.root / "delta").to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3, 5]
    assert pyarrow.dataset.dataset(place.root / "files", partitioning="hive").count_rows() == 5
    letters = letters_in(place.root / "letters")
    assert sorted((found["sink"], item(found)) for found in letters if item(found) != NO_KEY) == [("pg", TOO_LONG)]
    assert sorted(found["sink"] for found in letters if item(found) == NO_KEY) == ["delta", "pg"]
    assert not place.letters.exists()


def test_letters_in_a_table(place: Place, dsn: str) -> None:
    ask(dsn, TABLE)
    place.write([*GOOD, NUL])
    pipeline = place.pipeline(checkpoints="memory://", workdir=place.root / "workdir")
    pipeline.sink("pg", PostgresSink(dsn, "out", "id"), on_refused="dead-letter")
    pipeline.dead_letters(PostgresSink(dsn, "letters"))
    place.run(pipeline)
    assert ids(dsn) == [1, 2, 3]
    ((sink, epoch, reason, row),) = ask(dsn, "SELECT sink, epoch, reason, row FROM letters")
    assert (sink, epoch, reason) == ("pg", 1, REASONS[NUL])
    assert row == '{"id":4,"name":"a\\u0000b","amount":1.00}'


def test_a_view_is_called_once_and_its_rows_are_split_as_they_are(place: Place) -> None:
    """Which rows have no key depends on chance: every row is delivered or refused, none twice, none not at all."""
    from pyspark.sql import functions

    chance = functions.udf(lambda: random.SystemRandom().random() < 0.5, "boolean").asNondeterministic()
    calls: list[int] = []

    def view(frame: DataFrame) -> DataFrame:
        calls.append(1)
        return frame.withColumn("key", functions.when(chance(), functions.col("id")))

    place.write([(number, "n", None) for number in range(300)])
    pipeline = place.pipeline()
    pipeline.sink("delta", DeltaSink(place.root / "delta", "key"), view=view, on_refused="dead-letter")
    place.run(pipeline)
    kept = DeltaTable(place.root / "delta").to_pyarrow_table()["id"].to_pylist()
    refused = [found["row"]["id"] for found in letters_in(place.letters)]
    assert kept
    assert refused
    assert sorted([*kept, *refused]) == list(range(300))
    assert len(calls) == 2  # when it was prepared, and for the epoch
    assert place.spark.sparkContext._jsc.getPersistentRDDs().isEmpty()  # type: ignore[union-attr]


def test_a_view_that_depends_on_chance_on_a_cluster(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions

    monkeypatch.setattr(dead_letters, "is_one_process", lambda _: False)
    place.write([(1, "n", None)])
    pipeline = place.pipeline()
    pipeline.sink(
        "delta",
        DeltaSink(place.root / "delta", "id"),
        view=lambda frame: frame.withColumn("chance", functions.rand()),
        on_refused="dead-letter",
    )
    with pytest.raises(Invalid, match="not deterministic"):
        place.run(pipeline)
    assert not (place.root / "delta").exists()


def test_what_is_refused_when_it_is_declared(place: Place, dsn: str) -> None:
    pipeline = place.pipeline()
    with pytest.raises(Invalid, match="FileSink, which cannot tell which rows it would refuse"):
        pipeline.sink("files", FileSink(place.root / "files"), on_refused="dead-letter")
    with pytest.raises(Invalid, match="'stop' or 'dead-letter', not 'ignore'"):
        pipeline.sink("pg", PostgresSink(dsn, "out", "id"), on_refused="ignore")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="cannot stage"):
        pipeline.dead_letters(print)  # type: ignore[arg-type]
    pipeline.dead_letters(FileSink(place.root / "letters"))
    with pytest.raises(Invalid, match="already"):
        pipeline.dead_letters(FileSink(place.root / "letters"))


def test_what_is_refused_when_it_starts(place: Place, dsn: str) -> None:
    place.write(GOOD)
    remote = place.pipeline(checkpoints="memory://", workdir=place.root / "workdir")
    remote.sink("pg", PostgresSink(dsn, "out", "id"), on_refused="dead-letter")
    with pytest.raises(Invalid, match="no place for dead letters"):
        place.run(remote)
    taken = place.pipeline()
    taken.sink("dead-letters", FileSink(place.root / "letters"))
    taken.sink("pg", PostgresSink(dsn, "out", "id"), on_refused="dead-letter")
    with pytest.raises(Invalid, match="has a sink called 'dead-letters'"):
        place.run(taken)
    assert not place.letters.exists()


def test_a_pipeline_is_moved_with_its_letters(tmp_path: Path) -> None:
    assert DeadLetterFiles(str(tmp_path / "a")).describe() == DeadLetterFiles(str(tmp_path / "b")).describe()
    assert DeadLetterFiles(str(tmp_path / "a")).path == str(tmp_path / "a" / "dead-letters")


WORK = f"{Path(__file__).with_name('letter_place.py')}:deliver"
DECIDED = StepEvent("epoch.decide", "end")
DEATHS = [
    Moment(StepEvent("sink.stage", "end"), nth=3),  # all have staged, nothing is decided
    Moment(DECIDED),
    Moment(StepEvent("sink.commit", "end"), nth=2, since=DECIDED),  # the letters are not committed yet
]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("deaths", [DEATHS[2:], pytest.param(DEATHS, marks=pytest.mark.soak)], ids=["one", "all"])
def test_killed_between_stage_decide_and_commit(deaths: list[Moment], tmp_path: Path, dsn: str) -> None:
    ask(dsn, TABLE)
    epochs: list[list[Item]] = [
        [(10 * number, "good", None), (None, f"no {number}", None), (10 * number + 1, f"too long {number}", None)]
        for number in range(1, 5)
    ]
    write_items(tmp_path / "items", *epochs)
    for death in deaths:
        run = kill_at(WORK, death, timeout=200.0, root=str(tmp_path), dsn=dsn)
        assert run.event == death.event
        assert run.killed
    last = kill_at(WORK, Moment(StepEvent("never", "end")), timeout=200.0, root=str(tmp_path), dsn=dsn)
    assert last.acknowledged == ["done"]
    assert ids(dsn) == [10, 20, 30, 40]
    table = DeltaTable(tmp_path / "delta").to_pyarrow_table()["id"].to_pylist()
    assert sorted(table) == sorted(itertools.chain((10, 20, 30, 40), (11, 21, 31, 41)))
    letters = letters_in(tmp_path / "store" / "dead-letters")
    assert all(found["directory"] == found["epoch"] for found in letters)
    assert sorted((found["epoch"], found["sink"], found["row"]["name"]) for found in letters) == sorted(
        (number, sink, f"{name} {number}")
        for number in range(1, 5)
        for sink, name in (("delta", "no"), ("pg", "no"), ("pg", "too long"))
    )
