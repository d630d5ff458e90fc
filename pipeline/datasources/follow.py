"""`finished_jobs` as a stream: every row once, in the order of transactions, in batches of a given size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from drain.database import postgres
from drain.errors import DrainError
from drain.tables import finished
from pipeline.datasources import adbc, columns, options

_TABLE = "finished_jobs"
# Default of `max_rows`.
_MAX_ROWS = 200_000

# Rows after the start that no invisible row can precede: every transaction that is not visible yet has a number from
# pg_snapshot_xmin() on. (PostgreSQL 14 has no max(xid8).)
_SEEN = """
finished_jobs WHERE finished_xid > %(start)s::text::xid8 AND finished_xid < pg_snapshot_xmin(pg_current_snapshot())
"""
# True if transaction numbers of rows or of the start are beyond those of this server: the database was restored from a
# dump of another server, or the checkpoint is from before that.
_IS_OF_ANOTHER_SERVER = """
SELECT greatest((SELECT finished_xid FROM finished_jobs ORDER BY finished_xid DESC LIMIT 1), %(start)s::text::xid8)
    >= pg_snapshot_xmax(pg_current_snapshot())
"""
_OF_ANOTHER_SERVER = (
    "finished_jobs, or the checkpoint, has transaction numbers that this server has not reached yet: the database has "
    f"moved here from another server. Execute {finished.ADOPT}, and begin with a new checkpoint"
)
_LATEST = f"SELECT finished_xid::text::bigint FROM {_SEEN} ORDER BY finished_xid DESC LIMIT 1"
# Last transaction within the limit of rows; if the first alone exceeds the limit, the first.
_LATEST_THAT_FITS = f"""
WITH too_far AS (
    SELECT finished_xid AS xid FROM {_SEEN} ORDER BY finished_xid OFFSET %(rows)s LIMIT 1
)
SELECT coalesce((
        SELECT finished_xid FROM {_SEEN} AND finished_xid < xid ORDER BY finished_xid DESC LIMIT 1), xid)::text::bigint
FROM too_far
"""


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
            parameters = {"start": start["xid"], "rows": getattr(limit, "max_rows", None)}
            (of_another,) = postgres.fetch_one(connection, _IS_OF_ANOTHER_SERVER, parameters)
            if of_another:
                raise DrainError(_OF_ANOTHER_SERVER)
            found = None
            if isinstance(limit, ReadMaxRows):
                found = connection.execute(_LATEST_THAT_FITS, parameters).fetchone()
            # Fewer rows than the limit are left.
            found = found or connection.execute(_LATEST, parameters).fetchone()
        return {"xid": int(found[0])} if found else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Make one partition, for the rows of these transactions."""
        return [InputPartition((start["xid"], end["xid"]))] if end["xid"] > start["xid"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of these transactions."""
        start, end = partition.value
        schema = columns.arrow_schema({name: columns.TABLES[_TABLE][name] for name in self._names})
        statement = (
            f"SELECT {columns.select_list(_TABLE, self._names)} FROM {_TABLE} "
            f"WHERE finished_xid > '{int(start)}'::xid8 AND finished_xid <= '{int(end)}'::xid8"
        )
        with adbc.connect(self._database_url, "drain spark stream") as connection:
            yield from adbc.batches(connection, statement, schema)
