"""History of jobs as of one instant: the four tables, and the archive behind `finished_jobs`.

The archive is a directory, or whatever else Spark can write to, with Parquet files in
`finished_date=2026-11-20/queue=mail/`: the columns of `finished_jobs`, JSON as its text, a day by UTC. While a day's
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

DATE = "finished_date"
QUEUE = "queue"

# Hive's name for the directory of rows without a value, which Spark reads as null.
_NO_QUEUE = "__HIVE_DEFAULT_PARTITION__"

_LONGEST_TRANSACTION = timedelta(days=1)
_TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")


@dataclass(frozen=True)
class Instant:
    """One instant of a database.

    Attributes:
        connection: The one that holds the instant open; what is asked on it is as of that instant too.
        database_url: Of the database.
        snapshot: The name under which others can join.
        days: Whose partitions of `finished_jobs` are in Postgres.
        at: When it was taken, by the database's clock.
        xmax: Transactions from this one on are not seen.
        unseen: Nor are these.
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
            spark: With the data sources registered.
            names: Of columns of `finished_jobs`.
            archive: Where the archive is; None if there is none.
            where: A condition that both Postgres and Spark understand, such as `queue = 'mail'`.
            since: Days of the archive before this one are not looked at.
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
        # What has been finished and archived since then is not of this instant. Older rows may bear the numbers of a
        # server that this database lived on before.
        xid = f.coalesce(archived["finished_xid"], f.lit(0))
        unseen = (xid >= self.xmax) | xid.isin(list(self.unseen))
        archived = archived.where(~(unseen & (archived["finished_at"] > self.at - _LONGEST_TRANSACTION)))
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
        yield Instant(connection, database_url, name, days, *finished.visible_transactions(connection))


def read(spark: SparkSession, archive: str, *parts: str) -> DataFrame:
    """Read the archive, or these directories of it, with the columns of `finished_jobs` and `finished_date`."""
    from pyspark.sql import functions as f

    schema = columns.spark_schema("finished_jobs", list(columns.TABLES["finished_jobs"]))
    # A queue may be called 007, and is no number then.
    reader = spark.read.schema(f"{schema}, {DATE} string").option("basePath", archive)
    # One may even be called as the directory of those that have none, and each has one.
    queue = f.coalesce(f.col(QUEUE), f.lit(_NO_QUEUE))
    return reader.parquet(*(parts or (archive,))).withColumn(QUEUE, queue)


def exists(spark: SparkSession, path: str) -> bool:
    """Check for files that Spark can read at a path, on any file system.

    Raises:
        DrainError: Spark knows no such file system, or it cannot be reached.
    """
    with explained():
        where, system = _found(spark, path)
        return bool(system.exists(where))


def make_empty(spark: SparkSession, path: str, mark: str) -> None:
    """Replace a directory by one that contains nothing but this file, which is empty."""
    where, system = _found(spark, path)
    system.delete(where, True)  # noqa: FBT003  (Hadoop's)
    system.create(_found(spark, mark)[0]).close()


def local(spark: SparkSession, path: str) -> Path | None:
    """Resolve a path on this machine; None if it leads elsewhere.

    Raises:
        DrainError: As for `exists`.
    """
    with explained():
        where, system = _found(spark, path)
        return Path(str(where.toUri().getPath())) if system.getUri().getScheme() == "file" else None


def _found(spark: SparkSession, path: str) -> tuple[Any, Any]:
    # PySpark has no file system of its own.
    jvm: Any = spark.sparkContext._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return where, where.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
