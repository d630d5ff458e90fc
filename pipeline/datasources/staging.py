"""Writer of `staged_jobs` for Spark: all rows in one commit, or none."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from time import sleep
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from drain.database import locks, postgres
from drain.errors import ConfigError, DrainError, StageError
from drain.tables import bulk
from drain.tables.bulk import Task
from pipeline import interruption
from pipeline.datasources import adbc, columns, options

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection as ArrowConnection
    from pyspark.sql import DataFrame

    from drain.database.postgres import Connection

# Default of `max_connections`.
_MAX_CONNECTIONS = 8
# Timeout for a statement: the commit of tens of millions of rows takes hours.
_COMMIT_SECONDS = 6 * 3600
# Timeout for a lock.
_LOCK_SECONDS = 60
# Upper bound of the pause between two attempts to lock a slot.
_LONGEST_WAIT_SECONDS = 1.0

# Lock of one slot: a task that copies holds one of `max_connections` slots.
_LOCK_SLOT = f"SELECT pg_try_advisory_xact_lock({locks.BULK_PLACE})"

# Message of a task as a row.
_MESSAGE = "task bigint, rows bigint"

# Spark's types that are accepted for each kind of column.
_ACCEPTED = {
    "string": ("string",),
    "json": ("string",),
    "int": ("int", "bigint", "smallint", "tinyint"),
    "timestamp": ("timestamp",),
    "double": ("double", "float", "int", "bigint", "smallint", "tinyint"),
}


@dataclass
class Copied(WriterCommitMessage):
    """Message of one task to the driver: the number of rows that it has copied to the side table and committed."""

    task: int
    rows: int


class Staging(DataSourceArrowWriter):
    """Writer that stages a job for each row, with the columns `job_name`, `job_args`, … of `staged_jobs`.

    Spark may start a task twice, kill a task that goes on to commit a part of its rows, or fail half-way. So tasks copy
    to a side table that belongs to this write alone, each row with the number of its task; the driver's commit stages
    the rows of exactly those tasks that Spark reports, together with a note that this run has been staged.

    Options: `run_id` (required), `database_url`, `max_connections` (8), `rows_per_second` (number of jobs that come due
    in each second; all at once by default), `plan` (description of the jobs, noted with the run).

    Raises:
        ConfigError: An option or a column is missing or unknown.
        UnavailableError: The database cannot be reached.
    """

    def __init__(
        self, database_url: str, given: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> None:
        self._database_url = database_url
        self._run_id = given.get("run_id", "")
        if not self._run_id:
            raise ConfigError("option run_id is missing: a name for this run alone, such as reindex-2026-11")
        if overwrite:
            raise ConfigError('staged_jobs can only be appended to: use mode("append")')
        self._connections = options.whole(given, "max_connections", _MAX_CONNECTIONS)
        rate = options.positive(given, "rows_per_second", 0.0)
        self._rows_per_second = rate or None
        self._plan = given.get("plan")
        self._names = _stageable(schema)
        with self._control() as connection:
            done = bool(bulk.rows_of(connection, self._run_id))
            self._side_table = None if done else bulk.create_side_table(connection, self._run_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Copied:
        """Copy a task's rows to the side table."""
        task = _task_attempt()
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None or self._side_table is None:
            # Spark requires that the iterator is exhausted.
            for _ in iterator:
                pass
            return Copied(task, 0)
        schema = _copied_schema(self._names)
        rows = (_with_task(batch, schema, task) for batch in chain([first], iterator) if batch.num_rows)
        try:
            with self._in_slot() as connection:
                copied = adbc.copy(connection, self._side_table, rows, schema)
                connection.commit()
        except DrainError:
            if not self._is_staged():
                raise
            # Another driver has staged the run, and has dropped its side tables.
            return Copied(task, 0)
        return Copied(task, copied)

    def write_and_report(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy a task's rows to the side table, and yield the message as a row of `_MESSAGE`."""
        copied = self.write(iterator)
        yield pa.RecordBatch.from_pylist([{"task": copied.task, "rows": copied.rows}])

    def _is_staged(self) -> bool:
        with self._control() as connection:
            return bool(bulk.rows_of(connection, self._run_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Stage the rows that these tasks have copied, and note the run, in one transaction."""
        if self._side_table is None:
            return
        tasks = [Task(each.task, each.rows) for each in messages if isinstance(each, Copied) and each.rows]
        with self._control() as connection:
            bulk.stage(
                connection,
                self._run_id,
                self._side_table,
                tasks,
                rows_per_second=self._rows_per_second,
                plan=self._plan,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002  (Spark's own)
        """Drop the side table; no job has been staged."""
        if self._side_table is None:
            return
        with self._control() as connection:
            bulk.drop_side_table(connection, self._side_table)

    @contextmanager
    def _control(self) -> Iterator[Connection]:
        connection = postgres.connect(self._database_url, "drain spark commit")
        with connection, postgres.reachable(self._database_url):
            postgres.limit_session(connection, statement_seconds=_COMMIT_SECONDS, lock_seconds=_LOCK_SECONDS)
            yield connection

    @contextmanager
    def _in_slot(self) -> Iterator[ArrowConnection]:
        """Connect once fewer than `max_connections` other tasks copy to this side table."""
        while True:
            with adbc.connect(self._database_url, "drain spark copy") as connection:
                if any(self._lock_slot(connection, slot) for slot in range(self._connections)):
                    yield connection
                    return
            # Waiting tasks hold no connection, since the server has few.
            sleep(random.uniform(0.1, _LONGEST_WAIT_SECONDS))  # noqa: S311  (no secret)

    def _lock_slot(self, connection: ArrowConnection, slot: int) -> bool:
        """Lock one of the slots until the transaction ends; returns False if another task holds it."""
        with connection.cursor() as cursor:
            cursor.execute(_LOCK_SLOT.format(name=f"{self._side_table}/{slot}"))
            return cursor.fetchone() == (True,)


def stage(jobs: DataFrame, database_url: str, given: Mapping[str, str]) -> None:
    """Stage a job for each row of a DataFrame, as its `write.format("staged_jobs")` does, 4 seconds sooner.

    Spark starts Python processes to look up a data source, to plan its write and to commit it. Here the driver plans
    and commits, and only the tasks run in processes of Spark's. A row of the result of a query comes from the one
    attempt of a task that Spark has accepted, as a message to the driver does.

    Args:
        jobs: Rows with columns of `staged_jobs`.
        database_url: Database that the jobs are staged in.
        given: Options of `Staging`.

    Raises:
        ConfigError: An option or a column is missing or unknown.
        DrainError: Nothing was staged. A side table may be left, which `bulk.abandon` drops.
        KeyboardInterrupt: SIGINT arrived; of the commit too, either nothing is left or all of it.
    """
    staging = Staging(database_url, given, jobs.schema, overwrite=False)
    found = jobs.mapInArrow(staging.write_and_report, _MESSAGE).collect()
    with interruption.at_once():
        staging.commit([Copied(row.task, row.rows) for row in found])


def _task_attempt() -> int:
    context = TaskContext.get()
    if context is None:
        raise StageError("rows can be copied only within a task of Spark's")
    return context.taskAttemptId()


def _stageable(schema: StructType) -> list[str]:
    kinds = columns.STAGEABLE
    if "job_name" not in schema.names:
        raise ConfigError(f"column job_name is missing; there are {', '.join(schema.names) or 'none'}")
    for field in schema.fields:
        if field.name not in kinds:
            raise ConfigError(f"column {field.name!r} cannot be staged; columns that can: {', '.join(kinds)}")
        given = field.dataType.simpleString()
        if given not in _ACCEPTED[kinds[field.name]]:
            hint = "; to_json(array(…)) makes one" if kinds[field.name] == "json" else ""
            raise ConfigError(
                f"column {field.name} is {given} and must be {_ACCEPTED[kinds[field.name]][0]}{hint}"
            )
    return list(schema.names)


def _copied_schema(names: Sequence[str]) -> pa.Schema:
    return columns.arrow_schema({bulk.TASK: "bigint"} | {name: columns.STAGEABLE[name] for name in names})


def _with_task(batch: pa.RecordBatch, schema: pa.Schema, task: int) -> pa.RecordBatch:
    """Convert a batch to the side table's columns, with the number of the task."""
    number = pa.repeat(pa.scalar(task, pa.int64()), batch.num_rows)
    names = schema.names[1:]
    # cast() refuses a number that is too large for its column, and does not truncate it.
    cast = [batch.column(name).cast(schema.field(name).type) for name in names]
    return pa.record_batch([number, *cast], schema=schema)
