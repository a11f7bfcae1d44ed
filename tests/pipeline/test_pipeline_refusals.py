"""What a pipeline refuses: definitions, directories and stores that are not its own, changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from revenue_place import ONCE, Place

from holdfast.checkpoints import manifest_json
from holdfast.errors import Corrupt, HoldfastError, Invalid
from holdfast.sinks.files import FileSink
from holdfast.spark import Pipeline
from pipeline.shop import revenue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


class TestRefusals:
    def refused(self, place: Place, error: type[HoldfastError], *words: str, **options: Any) -> None:
        with pytest.raises(error) as caught:
            place.run(**options)
        for word in words:
            assert word in str(caught.value)

    def test_no_sinks(self, place: Place) -> None:
        pipeline = place.pipeline()
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        with pytest.raises(Invalid, match="has no sink"):
            pipeline.run(orders)

    def test_how_long_checkpoints_are_kept(self, tmp_path: Path) -> None:
        assert Pipeline("orders", checkpoints=tmp_path / "store", keep="7d")._store._keep == 7 * 86400
        with pytest.raises(Invalid, match="keep: 'a week' is not a length of time, such as '30s'"):
            Pipeline("orders", checkpoints=tmp_path / "store", keep="a week")
        assert list(tmp_path.iterdir()) == []

    def test_two_of_one_name(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="already"):
            pipeline.sink("files", FileSink(place.root / "other"))

    def test_not_a_sink(self, place: Place) -> None:
        with pytest.raises(Invalid, match="cannot stage"):
            place.pipeline().sink("print", print)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="cannot stage"):
            place.pipeline().sink("class", FileSink)  # type: ignore[arg-type]

    def test_a_frame_that_is_not_streaming(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="not streaming"):
            pipeline.run(place.spark.range(3))
        with pytest.raises(Invalid, match="not streaming"):
            pipeline.source("numbers", place.spark.range(3))

    def test_a_named_source_that_is_not_used(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="not part of the query"):
            pipeline.run(place.shop.orders(place.spark), trigger=ONCE)

    def test_triggers_that_no_batch_function_has(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        for trigger in ({"continuous": "1 second"}, {"realTime": "5 minutes"}, {"once": True, "availableNow": True}):
            with pytest.raises(Invalid, match="trigger"):
                pipeline.run(place.shop.orders(place.spark), trigger=trigger)

    def test_a_query_that_spark_refuses(self, place: Place) -> None:
        pipeline = place.pipeline()
        pipeline.sink("files", FileSink(place.out))
        with pytest.raises(Invalid, match="Spark does not run this query"):
            pipeline.run(place.shop.orders(place.spark), output_mode="complete", trigger=ONCE)

    def test_a_workdir_of_another_pipeline(self, place: Place) -> None:
        place.shop.sell(1)
        place.run(workdir=place.root / "workdir")
        other = Pipeline("other", checkpoints=str(place.root / "other"), workdir=place.root / "workdir")
        other.sink("files", FileSink(place.root / "other-out"))
        with pytest.raises(Invalid, match=r"belongs to pipeline 'revenue'"):
            other.run(place.shop.orders(place.spark), trigger=ONCE)

    def test_a_directory_that_is_no_workdir_is_left_alone(self, place: Place) -> None:
        place.shop.sell(1)
        precious = place.root / "home"
        precious.mkdir()
        (precious / "thesis.txt").write_text("years of work")
        self.refused(place, Invalid, "belongs to something else", workdir=precious)
        assert (precious / "thesis.txt").read_text() == "years of work"

    def test_a_workdir_that_could_not_be_replaced_is_refused_before_anything_is_claimed(self, place: Place) -> None:
        place.shop.sell(1)
        (place.root / "large disk").mkdir()
        (place.root / "workdir").symlink_to(place.root / "large disk")
        words = ["a symbolic link to", str(place.root / "large disk")]
        self.refused(place, Invalid, *words, workdir=place.root / "workdir")
        assert not Path(place.store).exists()
        assert list((place.root / "large disk").iterdir()) == []

    def test_a_store_of_another_pipeline(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        other = Pipeline("other", checkpoints=place.store, workdir=place.root / "workdir-2")
        other.sink("files", FileSink(place.root / "other-out"))
        with pytest.raises(Invalid, match=r"belong to pipeline 'revenue'"):
            other.run(place.shop.orders(place.spark), trigger=ONCE)

    def test_a_lost_store_is_not_a_fresh_start(self, place: Place) -> None:
        place.shop.sell(1)
        place.run(workdir=place.root / "workdir")
        before = place.delivered()
        shutil.rmtree(place.store)
        self.refused(place, Corrupt, "no checkpoint", workdir=place.root / "workdir")
        shutil.rmtree(place.root / "workdir")
        self.refused(place, Corrupt, "Sink 'files' has epoch")
        assert place.delivered() == before

    def test_a_checkpoint_of_a_newer_format(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        newest = max(Path(place.store).glob("checkpoints/checkpoint_*/manifest.json"))
        newest.write_bytes(manifest_json.encode(msgspec.structs.replace(place.newest(), version=2)))
        place.shop.sell(1)
        before = place.delivered()
        self.refused(place, Invalid, "format version 2")
        assert place.delivered() == before


class TestChanges:
    def changed(self, place: Place, **options: Any) -> None:
        pipeline = place.pipeline(**options)
        orders = pipeline.source("orders", place.shop.orders(place.spark))
        pipeline.sink("files", FileSink(place.out))
        pipeline.run(revenue(orders.where("amount >= 0")), output_mode="update", trigger=ONCE)

    def test_fail_is_the_default(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        before = place.delivered()
        place.shop.sell(1)
        with pytest.raises(Invalid, match="has changed since checkpoint"):
            self.changed(place)
        assert place.delivered() == before
        place.run()  # as it was, it goes on
        assert len(place.delivered()) == 2 * len(before)

    def test_accept_goes_on_from_the_same_state(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        place.shop.sell(1)
        self.changed(place, on_change="accept")
        assert sum(row[2] for row in place.delivered()) == 24

    def test_reset_begins_again_under_a_new_lineage(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        self.changed(place, on_change="reset")
        assert place.newest().own.lineage == 1
        assert sum(row[2] for row in place.delivered()) == 24  # the sink keeps what it had
        place.shop.sell(1)
        self.changed(place, on_change="reset")  # unchanged now: goes on
        assert place.newest().own.lineage == 1
        assert sum(row[2] for row in place.delivered()) == 36

    def test_a_new_sink_is_a_change(self, place: Place) -> None:
        place.shop.sell(1)
        place.run()
        pipeline = place.pipeline()
        pipeline.sink("archive", FileSink(place.root / "archive"))
        with pytest.raises(Invalid, match="sink 'archive' is new"):
            place.run(pipeline)
