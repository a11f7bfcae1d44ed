"""What a start warns about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from revenue_place import Place

from holdfast.pipeline import start
from holdfast.pipeline.start_warnings import growing_sinks, many_partitions
from holdfast.sinks import DeltaSink, FileSink, PostgresSink
from holdfast.spark import Notice, watch
from sparks import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("mode", "words"),
    [("complete", "every epoch adds the whole result"), ("update", "every epoch adds one more row for each change")],
)
def test_modes_that_repeat_rows_in_a_sink_that_only_appends(mode: str, words: str) -> None:
    [told] = growing_sinks(mode, ["files"])
    assert words in told
    assert "'files'" in told


def test_nothing_to_say_of_sinks() -> None:
    assert list(growing_sinks("append", ["files"])) == []
    assert list(growing_sinks("update", [])) == []


@pytest.mark.parametrize(
    ("partitions", "is_stateful", "is_first_start", "is_told"),
    [
        (200, True, True, True),
        (16, True, True, True),
        (15, True, True, False),
        (200, False, True, False),
        (200, True, False, False),
    ],
)
def test_many_partitions_on_two_cores(partitions: int, is_stateful: bool, is_first_start: bool, is_told: bool) -> None:
    told = list(many_partitions(partitions, 2, is_stateful=is_stateful, is_first_start=is_first_start))
    assert bool(told) == is_told
    assert all(
        f"{partitions} partitions on 2 cores" in sentence and "to 4 for instance" in sentence for sentence in told
    )


def test_sinks_that_only_append(tmp_path: object) -> None:
    dsn = "postgresql://localhost/db"
    assert FileSink(f"{tmp_path}/files").only_appends
    assert [DeltaSink(f"{tmp_path}/d").only_appends, DeltaSink(f"{tmp_path}/d", key="id").only_appends] == [True, False]
    assert [PostgresSink(dsn, "t").only_appends, PostgresSink(dsn, "t", key="id").only_appends] == [True, False]


# A start


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["Sink 'files' only appends: with output mode 'update'"]),
        (
            {"spark.sql.shuffle.partitions": "200"},
            [
                "Sink 'files' only appends: with output mode 'update'",
                "The query keeps its state in 200 partitions on 2",
            ],
        ),
    ],
)
def test_a_start_says_so_in_its_log_and_to_those_who_watch(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, str],
    words: list[str],
) -> None:
    told: list[object] = []
    stop = watch(told.append)
    try:
        with configured(spark, settings):
            Place(spark, tmp_path).run()  # nothing was sold: there is no epoch
    finally:
        stop()
    warned = [event.text for event in told if isinstance(event, Notice) and event.level == "warning"]
    assert [text.startswith(begin) for text, begin in zip(warned, words, strict=True)] == [True] * len(words)
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert logged == [f"revenue: {text}" for text in warned]


def test_a_start_says_which_executors_were_not_asked(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "check_executors_see", lambda workdir, spark: "1 executor did not answer.")
    Place(spark, tmp_path).run()
    assert "revenue: 1 executor did not answer." in [record.getMessage() for record in caplog.records]
