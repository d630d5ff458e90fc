"""History of jobs as of one instant: the four tables, and the archive behind `finished_jobs`.

The archive is a directory, on any file system that Spark can write to, with Parquet files in
`finished_date=2026-11-20/queue=mail/`: the columns of `finished_jobs`, JSON as its text, days by UTC. While a day's
partition is still in Postgres, the archive may hold none, some or all of its rows; once it is gone, the archive holds
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drain.database import postgres
from drain.database.postgres import Connection
from drain.tables import finished
from pipeline.datasources import columns, snapshot
from pipeline.failures import explained

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

# Columns by which the archive is divided into directories.
DATE = "finished_date"
QUEUE = "queue"

# Hive's name for the directory of rows without a value; Spark reads it as null.
_NO_QUEUE = "__HIVE_DEFAULT_PARTITION__"

# Upper bound of the time from a job's finish, by the clock of its row, to its commit.
_LONGEST_TRANSACTION = timedelta(days=1)
_TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")


@dataclass(frozen=True)
class Instant:
    """One instant of a database.

    Attributes:
        connection: Connection that holds the instant open; statements on it see that instant too.
        database_url: URL of the database.
        snapshot: Name of the exported snapshot, under which other connections join the instant.
        days: Days whose partitions of `finished_jobs` are in Postgres.
        at: Time of the instant, by the database's clock.
        xmax: Transaction number from which on every transaction is invisible.
        unseen: Numbers below `xmax` of transactions that were in progress, and are invisible too.
    """

    connection: Connection
    database_url: str
    snapshot: str
    days: frozenset[date]
    at: datetime
    xmax: int
    unseen: Sequence[int]

    def table(
        self, spark: SparkSession, name: str, names: Sequence[str], *, where: str | None = None
    ) -> DataFrame:
        """Read these columns of a job table, of rows that fulfil a condition in Postgres' SQL."""
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
        """Read these columns of all finished jobs, archived or not, each job once.

        Args:
            spark: Session with the data sources registered.
            names: Columns of `finished_jobs`.
            archive: Path of the archive; None if there is none.
            where: Condition in SQL that both Postgres and Spark understand, such as `queue = 'mail'`.
            since: First day of the archive that is read; None: all days.
        """
        from pyspark.sql import functions as f

        needed = list(dict.fromkeys([*names, "id", "finished_at"]))
        live = self.table(spark, "finished_jobs", needed, where=where)
        if archive is None or not exists(spark, archive):
            return live.select(*names)
        archived = read(spark, archive).where(where or "true")
        if since is not None:
            archived = archived.where(archived[DATE] >= since.isoformat())
        if self.days:
            archived = archived.where(~archived[DATE].isin([day.isoformat() for day in self.days]))
        # Rows that were finished and archived after the instant are left out. Older rows stay, whatever their
        # transaction numbers: they may be those of a server that this database was on before.
        xid = f.coalesce(archived["finished_xid"], f.lit(0))
        unseen = (xid >= self.xmax) | xid.isin(list(self.unseen))
        archived = archived.where(~(unseen & (archived["finished_at"] > self.at - _LONGEST_TRANSACTION)))
        # A late row, finished when its day had been archived, may be in both until Postgres' copy is deleted.
        late = self.table(spark, "finished_jobs", ["id"], where="tableoid = 'finished_jobs_other'::regclass")
        if not late.isEmpty():
            live = live.join(archived.select("id").join(late, "id", "left_semi"), "id", "left_anti")
        return live.select(*names).unionByName(archived.select(*names))


@contextmanager
def instant(database_url: str) -> Iterator[Instant]:
    """Hold one instant of all job tables open while the block runs; until then none of their partitions is dropped.

    Raises:
        UnavailableError: The database cannot be reached, or the connection is lost.
    """
    connection = postgres.connect(database_url, "drain snapshot")
    with (
        connection,
        postgres.reachable(database_url),
        snapshot.exported(connection, _TABLES) as name,
    ):
        days = frozenset(day.date for day in finished.days(connection))
        yield Instant(connection, database_url, name, days, *finished.visible_transactions(connection))


def read(spark: SparkSession, archive: str, *parts: str) -> DataFrame:
    """Read the archive, or these directories of it, with the columns of `finished_jobs` and `finished_date`."""
    from pyspark.sql import functions as f

    schema = columns.spark_schema("finished_jobs", list(columns.TABLES["finished_jobs"]))
    # Strings, not Spark's guess: a queue named 007 is no number.
    reader = spark.read.schema(f"{schema}, {DATE} string").option("basePath", archive)
    # Every row has a queue, so null can only be the queue that is named as Hive's directory of rows without a value.
    queue = f.coalesce(f.col(QUEUE), f.lit(_NO_QUEUE))
    return reader.parquet(*(parts or (archive,))).withColumn(QUEUE, queue)


def exists(spark: SparkSession, path: str) -> bool:
    """Check for files that Spark can read at a path, on any file system.

    Raises:
        DrainError: Spark has no driver for the file system, or cannot reach it.
    """
    with explained():
        where, system = _resolve(spark, path)
        return bool(system.exists(where))


def make_empty(spark: SparkSession, path: str, mark: str) -> None:
    """Replace a directory by one that contains only an empty file at `mark`."""
    where, system = _resolve(spark, path)
    system.delete(where, True)  # noqa: FBT003  (Hadoop's)
    system.create(_resolve(spark, mark)[0]).close()


def local(spark: SparkSession, path: str) -> Path | None:
    """Resolve a path on this machine; None if it is on another file system.

    Raises:
        DrainError: As for `exists`.
    """
    with explained():
        where, system = _resolve(spark, path)
        return Path(str(where.toUri().getPath())) if system.getUri().getScheme() == "file" else None


def _resolve(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Resolve a path to Hadoop's path and file system: PySpark has no API for them."""
    jvm: Any = spark.sparkContext._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return where, where.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
