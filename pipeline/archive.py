"""Archive: closed days of `finished_jobs` go to Parquet, then leave Postgres.

A day's missing rows are written, or the whole day if its files are many. Files get their names once they hold every row
in Postgres exactly once, unchanged; the partition is dropped if it still holds exactly these rows. Late rows, whose
partition is gone, are added the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from psycopg import errors

from drain import formatting
from drain.database import pooler, postgres, schema
from drain.database.postgres import Connection
from drain.errors import DrainError, UnavailableError
from drain.pipeline import days, files, history
from drain.pipeline.datasources import columns
from drain.pipeline.days import Answer, Order
from drain.pipeline.lake import stores
from drain.pipeline.lake.files import DATE, JOBS, Archive
from drain.tables import finished
from drain.tables.finished import Checksum, Day

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from drain.pipeline.history import Instant

# Tables with rows about finished jobs.
RELATED = tuple(table for table in columns.KEYS if table != JOBS)
# Checksums of hundreds of millions of rows take hours.
_STATEMENT_SECONDS = 6 * 3600
_LOCK_SECONDS = 60
# Rows may be added between comparison and drop.
_TRIES = 5
_PAUSE_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
Write: TypeAlias = "Callable[[Sequence[Order]], list[Answer]]"


class NotArchivedError(DrainError):
    """A day stays in Postgres."""


@dataclass(frozen=True)
class Archived:
    """Archived UTC day; `late` rows lack a partition, `problem` says why the day stays."""

    day: date
    rows: int
    late: bool
    seconds: float
    problem: str | None = None


@contextmanager
def exclusive(database_url: str) -> Iterator[Connection]:
    """Hold the archive's lock, or raise DrainError."""
    connection = postgres.connect(database_url, "drain archive")
    with connection, postgres.reachable(database_url):
        pooler.require_own_session(connection, database_url)
        schema.check(connection)
        if not finished.try_to_archive(connection):
            raise DrainError("another `drain archive` is running on this database; nothing was done")
        postgres.limit_session(connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS)
        yield connection


def count_rows(database_url: str, keep: int = 0) -> dict[date, int]:
    """Count each day's rows, oldest first."""
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
    """Archive closed days but the latest `keep`, oldest first; start a session if there is anything to write."""
    with exclusive(database_url) as connection, ExitStack() as stack:

        @cache
        def started() -> SparkSession:
            return stack.enter_context(session())

        def write(orders: Sequence[Order]) -> list[Answer]:
            return days.archive(started(), orders)

        work = Archiver(connection, database_url, archive, write, report)
        # Fail once, not for each day.
        Archive(archive).exists()
        for day in finished.closed_days(connection, keep):
            yield work.close(day)


class Archiver:
    """Archives closed days under the archive's lock."""

    def __init__(
        self,
        connection: Connection,
        database_url: str,
        path: str,
        write: Write,
        report: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._connection = connection
        self._database_url = database_url
        self._archive = Archive(path)
        self._write = write
        self._report = report

    def close(self, day: Day, patience: float = PATIENCE_SECONDS) -> Archived:
        """Archive a day, waiting `patience` seconds for transactions in its partition."""
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
            # The instant's locks would prevent the drop.
            if self._drop(day, archived, patience):
                return archived.rows
        raise NotArchivedError(f"{day.date}: rows are still being added; it was not dropped")

    def _complete(self, day: Day) -> Checksum:
        with history.instant(self._database_url) as instant:
            expected = finished.checksum(instant.connection, day)
            if expected.rows:
                self._archive_tables(day, self._orders(instant, day, expected.rows))
        return expected

    def _orders(self, instant: Instant, day: Day, rows: int) -> dict[Order, int]:
        """Map the orders of a day to their numbers of rows."""
        jobs = Order(
            *(self._database_url, instant.snapshot, self._archive.place, str(day.date), uuid4().hex),
            size=finished.size(instant.connection, day),
            late=day.partition == finished.OTHER,
        )
        orders = {}
        for table in RELATED:
            related = replace(jobs, table=table)
            number, size = finished.measure(instant.connection, table, related.where)
            if number:
                orders[replace(related, size=size)] = number
        return orders | {jobs: rows}

    def _archive_tables(self, day: Day, orders: Mapping[Order, int]) -> None:
        # Left by a dead process.
        _remove_unused(day, orders)
        counts = [
            formatting.count(rows, "row") + ("" if order.table == JOBS else f" of {order.table}")
            for order, rows in orders.items()
        ]
        self._report(f"{day.date}: writing and comparing {', '.join(counts)}")
        with self._archive.explained():
            answers = self._write([*orders])
            try:
                for (order, rows), answer in zip(orders.items(), answers, strict=True):
                    self._commit(Archive(order.archive, order.table), day, rows, answer, order.run)
            except NotArchivedError:
                _remove_unused(day, orders)
                raise

    def _commit(self, archive: Archive, day: Day, rows: int, answer: Answer, run: str) -> None:
        found = answer.comparison
        if not found.equal or found.rows != rows:
            table = day.partition if archive.table == JOBS else archive.table
            raise NotArchivedError(
                f"{day.date}: files and table disagree: of {formatting.count(rows, 'row')} in {table} "
                f"{found.rows:,} were read; {found.missing:,} are missing in the files, {found.doubled:,} are there "
                f"more than once, {found.different:,} differ; nothing was dropped. If Postgres still has the whole "
                f"day, remove {self._directory(day, archive)} and run this again"
            )
        if answer.written:
            files.add_to_day(archive, day.date, answer.written, run, whole=answer.whole)
        # Against a power cut, flush before and after removing replaced files.
        files.flush(archive, day.date)
        if answer.replaced:
            files.remove(archive, answer.replaced)
            files.flush(archive, day.date)

    def _directory(self, day: Day, archive: Archive | None = None) -> str:
        table = "" if archive is None or archive.table == JOBS else f"/{archive.table}"
        return f"{stores.shown(self._archive.place).rstrip('/')}{table}/{DATE}={day.date}"

    def _drop(self, day: Day, archived: Checksum, patience: float) -> bool:
        self._report(f"{day.date}: dropping {day.partition}")
        deadline = monotonic() + patience
        while True:
            try:
                return finished.remove_day(self._connection, day, archived)
            except errors.LockNotAvailable as error:
                if monotonic() > deadline:
                    raise NotArchivedError(
                        f"{day.date}: archived, but {day.partition} was not dropped: {finished.why_kept(error)}; "
                        "run this again"
                    ) from None
            sleep(_PAUSE_SECONDS)


def _remove_unused(day: Day, orders: Iterable[Order]) -> None:
    for order in orders:
        files.remove_unused(Archive(order.archive, order.table), day.date)
