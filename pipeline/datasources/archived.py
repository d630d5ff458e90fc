"""The archive as a Spark table."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from drain.pipeline.datasources import columns
from drain.pipeline.lake.files import JOBS, Archive, File

if TYPE_CHECKING:
    import pyarrow as pa

# A task reads at least this.
_TASK_BYTES = 64 * 1024 * 1024
# Opening a file costs as much as reading this.
_FILE_BYTES = 1024 * 1024
_BATCH_ROWS = 32_768


class ArchivedJobs(DataSource):
    """Data source for an archive's files.

    Options: `path`; `table`, finished_jobs by default; `columns`, separated by commas; `files`, the fields of each
    `File`, as JSON.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name in Spark."""
        return "archived_jobs"

    def schema(self) -> str:
        """Describe the chosen columns."""
        kinds = columns.ARCHIVED[self.options.get("table", JOBS)]
        return columns.spark_schema(kinds, self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the files."""
        return _Reader(self.options, schema.names)


class _Share(InputPartition):
    def __init__(self, files: list[File]) -> None:
        super().__init__(files)
        self.files = files


class _Reader(DataSourceReader):
    def __init__(self, options: MutableMapping[str, str], names: list[str]) -> None:
        self._path = options["path"]
        self._table = options.get("table", JOBS)
        self._files = [File(*fields) for fields in json.loads(options["files"])]
        self._names = names

    def partitions(self) -> list[InputPartition]:
        shares: list[list[File]] = [[]]
        size = 0
        for file in self._files:
            if size >= _TASK_BYTES:
                shares.append([])
                size = 0
            shares[-1].append(file)
            size += max(file.size, _FILE_BYTES)
        return [_Share(files) for files in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Share):
            return
        kinds = columns.ARCHIVED[self._table]
        schema = columns.arrow_schema({name: kinds[name] for name in self._names})
        archive = Archive(self._path, self._table)
        with archive.explained():
            for file in partition.files:
                for batch in archive.batches(file, self._names, rows=_BATCH_ROWS):
                    yield batch.cast(schema)
