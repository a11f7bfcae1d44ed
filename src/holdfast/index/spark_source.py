"""An index as a batch data source of Spark: keys and values, read on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from holdfast.base.addresses import kv_absolute
from holdfast.index import open_index

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

NAME = "holdfast_index"
BATCH_ROWS = 1 << 14


def read_index(spark: SparkSession, url: str) -> DataFrame:
    """The index at `url`, as columns `key` and `value`. Every executor must reach it at this address."""
    spark.dataSource.register(IndexDataSource)
    return spark.read.format(NAME).option("url", kv_absolute(url)).load()


class IndexDataSource(DataSource):
    """`spark.read.format("holdfast_index").option("url", "sqlite:////...")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: Any) -> IndexReader:
        return IndexReader(self.options["url"])


class IndexReader(DataSourceReader):
    """Reads the whole index as one partition: the distribution of its keys, by which to split it, is unknown."""

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        import pyarrow

        schema = pyarrow.schema([("key", pyarrow.binary()), ("value", pyarrow.binary())])
        with open_index(self._url, read_only=True) as index:
            rows = index.results.scan(b"")
            while batch := list(islice(rows, BATCH_ROWS)):
                keys, values = zip(*batch, strict=True)
                columns = [pyarrow.array(column, pyarrow.binary()) for column in (keys, values)]
                yield pyarrow.record_batch(columns, schema=schema)
