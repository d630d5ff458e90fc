"""Archive: closed days of `finished_jobs` go to Parquet, and then their rows leave Postgres.

For each day, one after the other: rows that its files do not have are appended; every row that Postgres has is looked
for in the files, where it has to be once and as it is; and the day's partition is dropped, if it still holds exactly
these rows. So whatever dies on the way, the same again completes it, whether nothing, a part or all of a day was
written before. Rows that came late, when their day had no partition any more, take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING

from psycopg import errors

from drain import wording
from drain.database import pooler, postgres, schema
from drain.database.postgres import Connection
from drain.errors import DrainError, UnavailableError
from drain.tables import finished
from drain.tables.finished import Checksum, Day
from pipeline import files, history
from pipeline.failures import explained

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

# The checksum of a day with hundreds of millions of rows.
_STATEMENT_SECONDS = 6 * 3600
_LOCK_SECONDS = 60
# How often rows may turn up in a closed day between its archiving and its end.
_TRIES = 5
_PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 30.0


class NotArchivedError(DrainError):
    """A day stays in Postgres as it is; the text says why."""


@dataclass(frozen=True)
class Archived:
    """Result of archiving one day.

    Attributes:
        day: By UTC.
        rows: How many Postgres had, and the archive has now.
        late: They were without a partition of their own.
        seconds: What it took.
        problem: Why the day is still in Postgres; None if it is not.
    """

    day: date
    rows: int
    late: bool
    seconds: float
    problem: str | None = None


@contextmanager
def alone(database_url: str) -> Iterator[Connection]:
    """Connect, and hold the archive's lock while the block runs.

    Raises:
        DrainError: Somebody else archives this database, or it has no schema of ours.
        UnavailableError: It cannot be reached, or is lost.
    """
    connection = postgres.connect(database_url, "drain archive")
    with connection, postgres.reachable(database_url):
        pooler.require_own_session(connection, database_url)
        schema.check(connection)
        if not finished.try_to_archive(connection):
            raise DrainError("another `drain archive` is at work on this database; nothing was done")
        postgres.limit_session(connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS)
        yield connection


def waiting(database_url: str, keep: int = 0) -> dict[date, int]:
    """Count the rows of each day that would be archived, the oldest day first."""
    connection = postgres.connect(database_url, "drain archive")
    counts: dict[date, int] = {}
    with connection, postgres.reachable(database_url):
        schema.check(connection)
        for day in finished.closed_days(connection, keep):
            counts[day.date] = counts.get(day.date, 0) + finished.checksum(connection, day).rows
    return counts


def run(
    database_url: str,
    archive: str,
    session: Callable[[], AbstractContextManager[SparkSession]],
    *,
    keep: int = 0,
    report: Callable[[str], None] = lambda _step: None,
) -> Iterator[Archived]:
    """Archive all closed days, the oldest first; yields the result of each.

    Args:
        database_url: Where they are.
        archive: Where they go; see `pipeline.history`.
        session: Makes the Spark session, if there is anything to write.
        keep: So many closed days are left where they are.
        report: Is told what is being done.

    Raises:
        DrainError: Nothing more can be done, for any day.
    """
    with alone(database_url) as connection, ExitStack() as stack:

        @cache
        def started() -> SparkSession:
            return stack.enter_context(session())

        work = Archive(connection, database_url, archive, started, report)
        for day in finished.closed_days(connection, keep):
            yield work.close(day)


class Archive:
    """Archiver of closed days, one at a time.

    Args:
        connection: Holds the lock; see `alone`. What it drops, nobody else is archiving.
        database_url: Of the same database.
        path: Where the files are.
        spark: Gives the session, and starts it if need be.
        report: Is told what is being done.
    """

    def __init__(
        self,
        connection: Connection,
        database_url: str,
        path: str,
        spark: Callable[[], SparkSession],
        report: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._connection = connection
        self._database_url = database_url
        self._path = path
        self._spark = spark
        self._report = report

    def close(self, day: Day, patience: float = PATIENCE_SECONDS) -> Archived:
        """Archive a day, and remove it from Postgres.

        Args:
            day: That is over.
            patience: For how many seconds to wait for those who use the partition.
        """
        began = monotonic()
        rows, problem = 0, None
        try:
            rows = self._settle(day, patience)
        except NotArchivedError as error:
            problem = str(error)
        except UnavailableError:
            raise
        # The next day may be in order.
        except DrainError as error:
            problem = (
                f"{day.date}: not archived, and nothing was dropped: {error}. If it is about a file, and Postgres "
                f"still has the whole day, remove {files.directory(self._path, day.date)} and run this again"
            )
        return Archived(day.date, rows, day.partition == finished.OTHER, monotonic() - began, problem)

    def _settle(self, day: Day, patience: float) -> int:
        for _ in range(_TRIES):
            kept = self._keep(day)
            # The instant has ended: its locks would be in the way.
            if self._remove(day, kept, patience):
                return kept.rows
        raise NotArchivedError(f"{day.date}: rows are still being added; it was not dropped")

    def _keep(self, day: Day) -> Checksum:
        """Write all rows of the day into the files, and check that the files have them."""
        with history.instant(self._database_url) as instant:
            expected = finished.checksum(instant.connection, day)
            if expected.rows:
                with explained():
                    self._append(instant, day, expected)
                    files.settle(self._spark(), self._path, day.date)
                    self._verify(instant, day, expected)
        return expected

    def _append(self, instant: history.Instant, day: Day, expected: Checksum) -> None:
        from pyspark.sql import functions as f

        spark = self._spark()
        self._report(f"{day.date}: writing {wording.count(expected.rows, 'row')}")
        rows = instant.table(spark, "finished_jobs", files.COLUMNS, where=_within(day.date))
        rows = rows.withColumn(history.DATE, f.lit(str(day.date)))
        files.append(files.without(rows, files.of_days(spark, self._path, [day.date])), self._path)

    def _verify(self, instant: history.Instant, day: Day, expected: Checksum) -> None:
        spark = self._spark()
        self._report(f"{day.date}: comparing {wording.count(expected.rows, 'row')}")
        rows = instant.table(spark, "finished_jobs", files.COLUMNS, where=_within(day.date))
        found = files.compare(rows, files.of_days(spark, self._path, [day.date]))
        if not found.equal or found.rows != expected.rows:
            raise NotArchivedError(
                f"{day.date}: files and table disagree: of {wording.count(expected.rows, 'row')} in {day.partition} "
                f"{found.rows:,} were read; {found.missing:,} are missing in the files, {found.doubled:,} are there "
                f"more than once, {found.different:,} differ; nothing was dropped. If Postgres still has the whole "
                f"day, remove {files.directory(self._path, day.date)} and run this again"
            )

    def _remove(self, day: Day, kept: Checksum, patience: float) -> bool:
        self._report(f"{day.date}: dropping {day.partition}")
        deadline = monotonic() + patience
        while True:
            try:
                return finished.remove_day(self._connection, day, kept)
            except errors.LockNotAvailable:
                if monotonic() > deadline:
                    raise NotArchivedError(
                        f"{day.date}: archived, and {day.partition} is in use by somebody's transaction: "
                        "it was not dropped; run this again"
                    ) from None
            sleep(_PAUSE_SECONDS)


def _within(day: date) -> str:
    return f"finished_at >= '{day} 00:00:00+00' AND finished_at < '{day + timedelta(days=1)} 00:00:00+00'"
