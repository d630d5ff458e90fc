"""`finished_jobs` as a stream: every row once, in the order of transactions, in batches of a given size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from drain.database import postgres
from drain.pipeline.datasources import adbc, columns, options, transactions

_TABLE = "finished_jobs"
# Default of `max_rows`.
_MAX_ROWS = 200_000


class FinishedJobsStream(DataSourceStreamReader):
    """Stream of the rows of all transactions before the oldest open one, so that no row can appear behind it.

    A transaction that stays open for an hour delays the stream by an hour, and loses no row.

    Options: `max_rows` of a batch (200,000; the rows of one transaction are never divided, and may be more);
    `database_url`; `columns`.
    """

    def __init__(self, database_url: str, given: Mapping[str, str], names: Sequence[str]) -> None:
        self._database_url = database_url
        self._names = columns.chosen(_TABLE, ",".join(names))
        self._max_rows = options.whole(given, "max_rows", _MAX_ROWS)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's own)
        """Name the position before the first transaction."""
        return {"xid": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's own)
        """Limit the rows of a batch."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Find the last transaction of the next batch; returns the start again if there is nothing new.

        Raises:
            DrainError: The rows, or the start, have transaction numbers of another server, beyond those of this one.
        """
        connection = postgres.connect(self._database_url, "drain spark stream")
        with connection, postgres.reachable(self._database_url):
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return {"xid": transactions.latest(connection, start["xid"], most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Make one partition, for the rows of these transactions."""
        return [InputPartition((start["xid"], end["xid"]))] if end["xid"] > start["xid"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of these transactions."""
        start, end = partition.value
        with adbc.connect(self._database_url, "drain spark stream") as connection:
            yield from transactions.read(connection, start, end, self._names)
