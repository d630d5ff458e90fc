"""Archive: closed days of `finished_jobs` go to Parquet, and then their rows leave Postgres.

For each day, one after the other: rows that its files lack are written, or the whole day is written again if its files
are many; every row that Postgres has is looked for in the files, where it has to be exactly once and unchanged; the
files get their names, and those that they replace are removed; and the day's partition is dropped, if it still holds
exactly these rows. So if a process dies on the way, repeating the command completes the archive, whether nothing, a
part or all of a day was written before. Late rows, whose day had no partition any more, are added in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING
from uuid import uuid4

from psycopg import errors

from drain import formatting
from drain.database import pooler, postgres, schema
from drain.database.postgres import Connection
from drain.errors import DrainError, UnavailableError
from drain.pipeline import days, files, history
from drain.pipeline.days import Answer, Order
from drain.pipeline.lake import stores
from drain.pipeline.lake.files import DATE, Archive
from drain.tables import finished
from drain.tables.finished import Checksum, Day

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

# Timeout for a statement: the checksum of a day with hundreds of millions of rows takes hours.
_STATEMENT_SECONDS = 6 * 3600
# Timeout for a lock, other than the partition's.
_LOCK_SECONDS = 60
# Upper bound of attempts to archive one day: each fails if rows were added between the comparison and the drop.
_TRIES = 5
# Pause between two attempts to lock a partition.
_PAUSE_SECONDS = 0.5
# Timeout for locking a partition that other transactions use.
PATIENCE_SECONDS = 30.0


class NotArchivedError(DrainError):
    """A day stays in Postgres as it is; the text says why."""


@dataclass(frozen=True)
class Archived:
    """Result of archiving one day.

    Attributes:
        day: By UTC.
        rows: Number of rows that Postgres had, and that the archive has now.
        late: True if the rows were late, without a partition of their day.
        seconds: Duration of the archiving.
        problem: Reason why the day is still in Postgres; None if it is not.
    """

    day: date
    rows: int
    late: bool
    seconds: float
    problem: str | None = None


@contextmanager
def exclusive(database_url: str) -> Iterator[Connection]:
    """Connect, and hold the archive's lock while the block runs.

    Raises:
        DrainError: Another process archives this database, or job-drain's schema is missing in it.
        UnavailableError: The database cannot be reached, or the connection is lost.
    """
    connection = postgres.connect(database_url, "drain archive")
    with connection, postgres.reachable(database_url):
        pooler.require_own_session(connection, database_url)
        schema.check(connection)
        if not finished.try_to_archive(connection):
            raise DrainError("another `drain archive` is at work on this database; nothing was done")
        postgres.limit_session(connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS)
        yield connection


def count_rows(database_url: str, keep: int = 0) -> dict[date, int]:
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
        database_url: Database with the job tables.
        archive: Path of the archive; see `drain.pipeline.history`.
        session: Makes the Spark session; called only if there is anything to write.
        keep: Number of the latest closed days that stay in Postgres.
        report: Receives a line at each step.

    Raises:
        DrainError: No further day can be archived.
    """
    with exclusive(database_url) as connection, ExitStack() as stack:

        @cache
        def started() -> SparkSession:
            return stack.enter_context(session())

        def write(order: Order) -> Answer:
            return days.archive(started(), order)

        work = Archiver(connection, database_url, archive, write, report)
        # Once, and not for each day: the archive cannot be reached.
        Archive(archive).exists()
        for day in finished.closed_days(connection, keep):
            yield work.close(day)


class Archiver:
    """Archiver of closed days, one at a time.

    Args:
        connection: Connection that holds the archive's lock, so that no other process archives what it drops; see
            `exclusive`.
        database_url: URL of the same database.
        path: Path of the archive.
        write: Writes and compares the files of a day; see `drain.pipeline.days.archive`.
        report: Receives a line at each step.
    """

    def __init__(
        self,
        connection: Connection,
        database_url: str,
        path: str,
        write: Callable[[Order], Answer],
        report: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._connection = connection
        self._database_url = database_url
        self._archive = Archive(path)
        self._write = write
        self._report = report

    def close(self, day: Day, patience: float = PATIENCE_SECONDS) -> Archived:
        """Archive a day, and remove it from Postgres.

        Args:
            day: Day that is over.
            patience: Timeout in seconds for transactions that use the partition.

        Returns:
            The result; a problem of this day is in it, and not raised, since the next day may be in order.

        Raises:
            UnavailableError: The database cannot be reached, or the connection is lost.
        """
        began = monotonic()
        rows, problem = 0, None
        try:
            rows = self._close(day, patience)
        except NotArchivedError as error:
            problem = str(error)
        except UnavailableError:
            raise
        except DrainError as error:
            problem = (
                f"{day.date}: not archived, and nothing was dropped: {error}. If it is about a file, and Postgres "
                f"still has the whole day, remove {self._directory(day)} and run this again"
            )
        return Archived(day.date, rows, day.partition == finished.OTHER, monotonic() - began, problem)

    def _close(self, day: Day, patience: float) -> int:
        for _ in range(_TRIES):
            archived = self._complete(day)
            # After the instant: its locks would keep the partition from being dropped.
            if self._drop(day, archived, patience):
                return archived.rows
        raise NotArchivedError(f"{day.date}: rows are still being added; it was not dropped")

    def _complete(self, day: Day) -> Checksum:
        """Let the files of a day have all of its rows, and check that they do; returns the checksum of the rows."""
        # Of a process that died; no other one is at work on this archive.
        files.remove_unused(self._archive, day.date)
        with history.instant(self._database_url) as instant:
            expected = finished.checksum(instant.connection, day)
            if expected.rows:
                order = Order(
                    *(self._database_url, instant.snapshot, self._archive.place, str(day.date), uuid4().hex),
                    size=finished.size(instant.connection, day),
                    late=day.partition == finished.OTHER,
                )
                self._report(f"{day.date}: writing and comparing {formatting.count(expected.rows, 'row')}")
                with self._archive.explained():
                    self._commit(day, expected, self._write(order), order.run)
        return expected

    def _commit(self, day: Day, expected: Checksum, answer: Answer, run: str) -> None:
        """Give the files of an answer their names, if they have exactly the rows of Postgres."""
        found = answer.comparison
        if not found.equal or found.rows != expected.rows:
            files.remove(self._archive, [file.path for file in answer.written])
            raise NotArchivedError(
                f"{day.date}: files and table disagree: of {formatting.count(expected.rows, 'row')} in {day.partition} "
                f"{found.rows:,} were read; {found.missing:,} are missing in the files, {found.doubled:,} are there "
                f"more than once, {found.different:,} differ; nothing was dropped. If Postgres still has the whole "
                f"day, remove {self._directory(day)} and run this again"
            )
        if answer.written:
            files.add_to_day(self._archive, day.date, answer.written, run, whole=answer.whole)
        # Before the older files are removed, and after it, so that a power cut neither loses nor doubles rows.
        files.flush(self._archive, day.date)
        if answer.replaced:
            files.remove(self._archive, answer.replaced)
            files.flush(self._archive, day.date)

    def _directory(self, day: Day) -> str:
        return f"{stores.shown(self._archive.place).rstrip('/')}/{DATE}={day.date}"

    def _drop(self, day: Day, archived: Checksum, patience: float) -> bool:
        self._report(f"{day.date}: dropping {day.partition}")
        deadline = monotonic() + patience
        while True:
            try:
                return finished.remove_day(self._connection, day, archived)
            except errors.LockNotAvailable:
                if monotonic() > deadline:
                    raise NotArchivedError(
                        f"{day.date}: archived, and a transaction uses {day.partition}, which "
                        "was not dropped; run this again"
                    ) from None
            sleep(_PAUSE_SECONDS)
