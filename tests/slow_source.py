"""A Spark data source that takes its time: `--register tests.slow_source:Slow`, then `slow:`."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class Slow(DataSource):
    """A hundred million ids."""

    @classmethod
    def name(cls) -> str:
        return "slow"

    def schema(self) -> str:
        return "id bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader()


class _Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in range(100_000_000):
            yield (number,)
