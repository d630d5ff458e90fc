"""Job tables as Spark tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from drain.database import postgres
from drain.errors import ConfigError
from drain.pipeline.datasources import (
    adbc,
    columns,
    conditions,
    options,
    options as given_options,
    snapshot,
    transactions,
)

_TABLE = "finished_jobs"
# Defaults of `max_rows`, `max_connections` and `snapshot_seconds`.
_MAX_ROWS = 200_000

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceWriter, Filter

_MAX_CONNECTIONS = 8
_UNUSED_SECONDS = 60.0
# 16 MB: for fewer, a connection costs more than it saves.
_BLOCKS_PER_TASK = 2048

_LEAVES = """
SELECT leaf::text, pg_relation_size(leaf) / current_setting('block_size')::bigint,
    has_table_privilege(leaf::oid, 'SELECT') FROM (
    SELECT coalesce(tree.relid, main.oid)::regclass AS leaf
    FROM pg_class AS main LEFT JOIN pg_partition_tree(main.oid) AS tree ON true
    WHERE main.oid = %s::regclass AND coalesce(tree.isleaf, true)) AS leaves
WHERE pg_relation_size(leaf) > 0 ORDER BY 1
"""


class JobTable(DataSource):
    """Data source for a job table.

    Options: `database_url` (DRAIN_DATABASE_URL by default), `columns` (separated by commas; all by default), `where`
    (in Postgres' SQL), `max_connections` (8), `snapshot` (an exported one's name; by default one is exported and held
    while it is read), `snapshot_seconds` (60: how long one without a reader is held), `pushdown` (`false`).

    A role without rights on the table's partitions, such as `drain_inspection`, reads over one connection.

    With `pushdown`, Spark's filters on ids, names, queues and times reach Postgres too, if
    `spark.sql.python.filterPushdown.enabled` is on. Then use each DataFrame for one query only: once queried with a
    filter, it still applies the filter to later queries without (seen with Spark 4.3). `where` has no such effect.
    """

    table: ClassVar[str]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Executors have another environment.
        self.database_url = given_options.database_url(options)

    @classmethod
    def name(cls) -> str:
        """Return the name in Spark."""
        return cls.table

    def schema(self) -> str:
        """Describe the chosen columns."""
        return columns.spark_schema(
            columns.TABLES[self.table], columns.chosen(self.table, self.options.get("columns"))
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the table."""
        filtering = self.options.get("pushdown", "false").lower() == "true"
        return (FilteringReader if filtering else JobTableReader)(self, schema.names)


class StagedJobs(JobTable):
    """Data source for `staged_jobs`; `staging.stage_rows` stages jobs."""

    table = "staged_jobs"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002, FBT001  (Spark's own)
        """Refuse to write."""
        raise ConfigError(
            "staged_jobs is read-only: stage jobs with pipeline.staging.stage_rows(rows, run_id)"
        )


class InflightJobs(JobTable):
    """Data source for `inflight_jobs`: drained and not finished."""

    table = "inflight_jobs"


class DeadJobs(JobTable):
    """Data source for `dead_jobs`."""

    table = "dead_jobs"


class JobSteps(JobTable):
    """Data source for `job_steps`."""

    table = "job_steps"


class JobEdges(JobTable):
    """Data source for `job_edges`."""

    table = "job_edges"


class Flows(JobTable):
    """Data source for `flows`."""

    table = "flows"


class FinishedJobs(JobTable):
    """Data source for `finished_jobs`; also a stream, see `FinishedJobsStream`."""

    table = "finished_jobs"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's own)
        """Follow the table."""
        return FinishedJobsStream(self.database_url, dict(self.options), schema.names)


class Blocks(NamedTuple):
    """Blocks of a leaf partition: `first` <= number < `end`; None for the whole table."""

    leaf: str
    first: int
    end: int | None


class Share(InputPartition):
    """Ranges of blocks for one task."""

    def __init__(self, snapshot_name: str, blocks: list[Blocks]) -> None:
        super().__init__(blocks)
        # Spark copies the reader to the executors before it asks for partitions.
        self.snapshot = snapshot_name
        self.blocks = blocks


class JobTableReader(DataSourceReader):
    """Reader of blocks, on parallel connections with one snapshot."""

    def __init__(self, source: JobTable, names: list[str]) -> None:
        self._database_url = source.database_url
        self._table = source.table
        self._names = columns.chosen(source.table, ",".join(names))
        self._snapshot = source.options.get("snapshot")
        self._unused_seconds = given_options.positive(source.options, "snapshot_seconds", _UNUSED_SECONDS)
        self._connections = given_options.whole(source.options, "max_connections", _MAX_CONNECTIONS)
        where = source.options.get("where")
        self._conditions = [f"({where})"] if where else []

    def partitions(self) -> list[InputPartition]:
        """Divide the blocks among at most `max_connections` tasks."""
        name = self._snapshot or snapshot.hold(self._database_url, self._table, self._unused_seconds)
        connection = postgres.connect(self._database_url, "drain spark")
        with connection, postgres.reachable(self._database_url):
            leaves = connection.execute(_LEAVES, [self._table]).fetchall()
        # Rights on a table do not include its partitions.
        if not all(may_read for *_, may_read in leaves):
            return [Share(name, [Blocks(self._table, 0, None)])]
        blocks = ((leaf, number) for leaf, number, _ in leaves)
        return [Share(name, share) for share in _shares(blocks, self._connections)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read matching rows of these blocks."""
        # Without blocks, Spark plans one task with its own partition.
        if not isinstance(partition, Share):
            return
        schema = columns.arrow_schema({name: columns.TABLES[self._table][name] for name in self._names})
        with snapshot.joined(self._database_url, partition.snapshot) as connection:
            for block in partition.blocks:
                yield from adbc.batches(connection, self._statement(block), schema)

    def _statement(self, block: Blocks) -> str:
        selected = f"SELECT {columns.select_list(self._table, self._names)} FROM"
        if block.end is None:
            return f"{selected} {block.leaf} WHERE {' AND '.join(['true', *self._conditions])}"
        within = f"ctid >= '({block.first},0)' AND ctid < '({block.end},0)'"
        return f"{selected} ONLY {block.leaf} WHERE {' AND '.join([within, *self._conditions])}"


class FilteringReader(JobTableReader):
    """Reader that accepts Spark's filters, if Spark allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's own)
        """Accept filters that SQL can express; Spark applies the others."""
        for given in filters:
            found = conditions.condition(given)
            if found is None:
                yield given
            else:
                self._conditions.append(found)


def _shares(leaves: Iterable[tuple[str, int]], most: int) -> Iterator[list[Blocks]]:
    leaves = list(leaves)
    size = max(_BLOCKS_PER_TASK, -(-sum(blocks for _, blocks in leaves) // most))
    share: list[Blocks] = []
    room = size
    for leaf, blocks in leaves:
        first = 0
        while first < blocks:
            end = min(first + room, blocks)
            share.append(Blocks(leaf, first, end))
            room -= end - first
            first = end
            if not room:
                yield share
                share, room = [], size
    if share:
        yield share


class FinishedJobsStream(DataSourceStreamReader):
    """Stream of all transactions before the oldest open one, which delays it, so that no row appears behind it.

    Options: `max_rows` of a batch (200,000; one transaction's rows, never divided, may be more); `database_url`;
    `columns`.
    """

    def __init__(self, database_url: str, given: Mapping[str, str], names: Sequence[str]) -> None:
        self._database_url = database_url
        self._names = columns.chosen(_TABLE, ",".join(names))
        self._max_rows = options.whole(given, "max_rows", _MAX_ROWS)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's own)
        """Return the position before the first transaction."""
        return {"xid": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's own)
        """Limit the rows of a batch."""
        return ReadMaxRows(self._max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """See `transactions.latest`."""
        connection = postgres.connect(self._database_url, "drain spark stream")
        with connection, postgres.reachable(self._database_url):
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return {"xid": transactions.latest(connection, start["xid"], most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Create one partition."""
        return [InputPartition((start["xid"], end["xid"]))] if end["xid"] > start["xid"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read these transactions."""
        start, end = partition.value
        with adbc.connect(self._database_url, "drain spark stream") as connection:
            yield from transactions.read(connection, start, end, self._names)
