"""Sources other than files: their positions are in the manifest, and they go on exactly when the workdir is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from workshop import remove

import holdfast
from holdfast.pipeline.reports import Notice, watch
from holdfast.pipeline.workdir.local import LocalWorkdir
from holdfast.sinks import FileSink
from holdfast.spark import Pipeline
from pipeline.shop import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Place:
    """A pipeline that copies a stream into files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, **sources: DataFrame) -> None:
        pipeline = Pipeline("copy", checkpoints=self.root / "store", workdir=self.root / "workdir")
        frames = [pipeline.source(name, frame) for name, frame in sources.items()]
        pipeline.sink("files", FileSink(self.root / "out"))
        together = frames[0]
        for frame in frames[1:]:
            together = together.union(frame)
        pipeline.run(together, trigger={"availableNow": True})

    def lose_workdir(self) -> None:
        remove(self.root / "workdir")

    @property
    def offsets(self) -> dict[str, dict[str, str]]:
        """Where the newest checkpoint has each source."""
        newest = holdfast.open_store(self.root / "store").load_latest()
        assert newest is not None
        return {name: source.offsets for name, source in newest.source_offsets.items()}

    @property
    def values(self) -> list[int]:
        return [value for (value,) in rows(self.root / "out", "value")]


def rate(spark: SparkSession) -> DataFrame:
    """Ten numbers per batch, the same ones for the same batch."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    return reader.option("startTimestamp", 1_767_225_600_000).load().select("value")


def counting(spark: SparkSession, until: Path) -> DataFrame:
    """Numbers from 0 to where a file says, from a data source in Python whose position is a JSON document."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Span(InputPartition):
        def __init__(self, start: int, end: int) -> None:
            self.start, self.end = start, end

    class Reader(DataSourceStreamReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802
            return {"at": {"number": 0}}

        def latestOffset(self) -> dict[str, Any]:  # noqa: N802
            with open(self.path) as file:
                return {"at": {"number": int(file.read())}}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [Span(start["at"]["number"], end["at"]["number"])]

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            return ((number,) for number in range(partition.start, partition.end))

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "value long"

        def streamReader(self, schema: Any) -> Reader:  # noqa: N802
            return Reader(self.options["path"])

    spark.dataSource.register(Counting)
    return spark.readStream.format("counting").option("path", str(until)).load()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_rate(place: Place, spark: SparkSession) -> None:
    for run in range(3):
        place.run(ticks=rate(spark))
        assert place.values == list(range(10 * (run + 1)))
        assert place.offsets["ticks"]["offset"] == str(10 * (run + 1))
        if run != 1:
            place.lose_workdir()


def test_a_data_source_in_python(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    """Such a source does not know of availableNow: like Spark alone, a run that repeats a batch ends after it."""
    until = tmp_path / "until"
    for count in (3, 8):
        until.write_text(str(count))
        place.run(numbers=counting(spark, until))
        place.run(numbers=counting(spark, until))
        assert place.values == list(range(count))
        assert place.offsets == {"numbers": {"at.number": str(count)}}
        place.lose_workdir()


def test_a_source_that_does_not_answer_is_no_reason_to_doubt_the_workdir(
    place: Place, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuilt one would have the last epoch run again; the source was told that it is done, and may have let go."""
    monkeypatch.setenv("HOLDFAST_RESTARTS", "1")
    until, workdir = tmp_path / "until", LocalWorkdir(tmp_path / "workdir")
    until.write_text("3")
    place.run(numbers=counting(spark, until))
    until.unlink()
    notices: list[str] = []
    stop = watch(lambda told: notices.append(told.text) if isinstance(told, Notice) else None)
    try:
        with pytest.raises(Exception, match="No such file"):
            place.run(numbers=counting(spark, until))
    finally:
        stop()
    assert [text for text in notices if text.startswith("starting again")]
    assert workdir.suspect_reason() is None
    until.write_text("8")
    place.run(numbers=counting(spark, until))
    assert place.values == list(range(8))


def test_two_sources_side_by_side(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    """Spark's log names them by their place; each gets its own position back."""
    until = tmp_path / "until"
    for count in (3, 8):
        until.write_text(str(count))
        place.run(ticks=rate(spark), numbers=counting(spark, until))
        place.run(ticks=rate(spark), numbers=counting(spark, until))
        assert place.offsets["numbers"] == {"at.number": str(count)}
        ticks = int(place.offsets["ticks"]["offset"])
        assert ticks >= count
        assert place.values == sorted([*range(ticks), *range(count)])
        place.lose_workdir()


@pytest.mark.parametrize(
    ("late", "expected"),
    [({"orders"}, "orders"), ({"clicks"}, "clicks"), ({"orders", "clicks"}, None)],
    ids=["the first", "the second", "both"],
)
def test_the_watermark_of_one_source_among_several(
    spark: SparkSession, tmp_path: Path, late: set[str], expected: str | None
) -> None:
    place = Place(tmp_path)
    ends = {"orders": 1_767_225_600, "clicks": 1_767_229_200}
    frames = {}
    for name, end in ends.items():
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.json").write_text(f'{{"value":{number},"at":{end + number}}}\n')
        reader = spark.readStream.schema("value bigint, at timestamp").option("maxFilesPerTrigger", 1)
        frame = reader.json(str(tmp_path / name))
        frames[name] = frame.withWatermark("at", "10 seconds") if name in late else frame
    place.run(**frames)
    newest = holdfast.open_store(tmp_path / "store").load_latest()
    assert newest is not None
    lowest = min(ends[name] for name in late)
    assert newest.watermark is not None
    assert lowest - 10 < newest.watermark / 1000 <= lowest + 2 - 10
    assert newest.source_watermarks == ({expected: newest.watermark} if expected else {})
