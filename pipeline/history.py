"""What has become of jobs, as of one instant: the four tables, and the archive behind `finished_jobs`.

The archive is a directory, or whatever else Spark can write to, with Parquet files in
`finished_date=2026-11-20/queue=mail/`: the columns of `finished_jobs`, JSON as its text, a day by UTC. While a day's
partition is still in Postgres, the archive may hold none, some or all of its rows; once it is gone, the archive holds
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drain import postgres
from drain.postgres import Connection
from drain.transitions import finished
from pipeline.datasources import columns, snapshot

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

DATE = "finished_date"
QUEUE = "queue"

_TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")


@dataclass(frozen=True)
class Instant:
    """One instant of a database.

    Attributes:
        connection: The one that holds the instant open; what is asked on it is as of that instant too.
        database_url: Of the database.
        snapshot: The name under which others can join.
        days: Whose partitions of `finished_jobs` are in Postgres.
    """

    connection: Connection
    database_url: str
    snapshot: str
    days: frozenset[date]

    def table(
        self, spark: SparkSession, name: str, names: Sequence[str], *, where: str | None = None
    ) -> DataFrame:
        """These columns of a job table, of rows that fulfil a condition in Postgres' SQL."""
        reader = (
            spark.read.format(name)
            .option("database_url", self.database_url)
            .option("snapshot", self.snapshot)
            .option("columns", ",".join(names))
        )
        return (reader.option("where", where) if where else reader).load()

    def finished(
        self,
        spark: SparkSession,
        names: Sequence[str],
        *,
        archive: str | None,
        where: str | None = None,
        since: date | None = None,
    ) -> DataFrame:
        """These columns of all finished jobs, archived or not, each job once.

        Args:
            spark: With the data sources registered.
            names: Of columns of `finished_jobs`.
            archive: Where the archive is; None if there is none.
            where: A condition that both Postgres and Spark understand, such as `queue = 'mail'`.
            since: Days of the archive before this one are not looked at.
        """
        needed = list(dict.fromkeys([*names, "id", "finished_at"]))
        live = self.table(spark, "finished_jobs", needed, where=where)
        if archive is None or not exists(spark, archive):
            return live.select(*names)
        archived = read(spark, archive).where(where or "true")
        if since is not None:
            archived = archived.where(archived[DATE] >= f"{since:%Y-%m-%d}")
        if self.days:
            days = [f"{day:%Y-%m-%d}" for day in self.days]
            archived = archived.where(~archived[DATE].isin(days))
        # A row that came after its day had been archived may be in both until it is deleted here.
        late = self.table(spark, "finished_jobs", ["id"], where="tableoid = 'finished_jobs_other'::regclass")
        if not late.isEmpty():
            live = live.join(archived.select("id").join(late, "id", "left_semi"), "id", "left_anti")
        return live.select(*names).unionByName(archived.select(*names))


@contextmanager
def instant(database_url: str) -> Iterator[Instant]:
    """Hold one instant of all job tables open while the block runs; no partition of theirs is dropped meanwhile.

    Raises:
        UnavailableError: The database cannot be reached, or is lost.
    """
    connection = postgres.connect(database_url, "drain snapshot")
    with (
        connection,
        postgres.reachable(database_url),
        snapshot.exported(connection, _TABLES) as name,
    ):
        days = frozenset(day.date for day in finished.days(connection))
        yield Instant(connection, database_url, name, days)


def read(spark: SparkSession, archive: str) -> DataFrame:
    """The archive as it is, with the columns of `finished_jobs` and `finished_date`."""
    schema = columns.spark_schema("finished_jobs", list(columns.TABLES["finished_jobs"]))
    # A queue may be called 007, and is no number then.
    return spark.read.schema(f"{schema}, {DATE} string").parquet(archive)


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is anything at a path that Spark can read, on whatever file system."""
    # PySpark has no file system of its own.
    jvm: Any = spark.sparkContext._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return bool(where.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(where))
