r"""Spark data source for the index, so that `drain reconcile` can compare it with the store.

    PYTHONPATH=examples drain reconcile --register docsearch.spark:IndexSource \
        --source 'sql:SELECT id, name, text FROM documents' --target docsearch_index:/path/to/index.sqlite3 \
        --key id --compare name,text --job docsearch.index_document --delete-job docsearch.index_document --queue index

The job that indexes a document removes it if the store no longer has it, so it corrects each difference. This module
imports no other module of the example, nor job-drain: Spark's workers need only this one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

_DOCUMENTS = "SELECT rowid, name, text FROM documents"
_BUSY_SECONDS = 10.0


class IndexSource(DataSource):
    """Data source of the documents in an index: `docsearch_index:/path/to/index.sqlite3`."""

    @classmethod
    def name(cls) -> str:
        """Name the data source as Spark knows it."""
        return "docsearch_index"

    def schema(self) -> str:
        """Describe the columns of a document."""
        return "id bigint, name string, text string"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (Spark's own)
        """Read the file that the path names."""
        return _IndexReader(Path(self.options["path"]))


class _IndexReader(DataSourceReader):
    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str, str]]:  # noqa: ARG002  (Spark's own)
        if not self._path.is_file():
            raise FileNotFoundError(f"there is no index at {self._path}")
        address = f"{self._path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
            yield from connection.execute(_DOCUMENTS)
