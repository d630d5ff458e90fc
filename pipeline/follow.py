"""Continuous archive: finished jobs go to the files a few seconds after they finish, and Spark starts to close days.

Following needs no Spark and little memory: rows are read in the order of their transactions, and each batch is a file.
A thread closes the days that are over, with Spark in a process of its own; meanwhile nothing is written for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from time import monotonic
from typing import TYPE_CHECKING

from drain.database import postgres
from drain.database.postgres import Connection
from drain.pipeline.archive import Archived, Archiver, exclusive
from drain.pipeline.datasources import adbc, transactions
from drain.pipeline.days import Answer, Order
from drain.pipeline.files import COLUMNS
from drain.pipeline.hours import Hours
from drain.pipeline.lake.files import Archive
from drain.tables import finished
from drain.tables.finished import Day

if TYPE_CHECKING:
    import pyarrow as pa

# Name of the connections in pg_stat_activity.
_APPLICATION = "drain archive follow"
# Interval between two batches, unless more rows than fit into one are waiting.
_BATCH_SECONDS = 2.0
# Interval between two attempts to close days.
_CLOSE_SECONDS = 60.0
_MAX_ROWS = 100_000


@dataclass(frozen=True)
class Batch:
    """Rows of some transactions.

    Attributes:
        rows: Number of rows, those of days that are being closed included.
        behind: Seconds since the last of these jobs finished.
    """

    rows: int
    behind: float


@dataclass(frozen=True)
class Plan:
    """Source and destination of a continuous archive.

    Attributes:
        database_url: Database with the job tables.
        archive: Path of the archive; see `drain.pipeline.lake`.
        keep: Number of closed days that stay in Postgres after they have been archived.
        max_rows: Upper bound of the rows of a batch, unless one transaction has more.
    """

    database_url: str
    archive: str
    keep: int = 0
    max_rows: int = _MAX_ROWS


def run(
    plan: Plan,
    write: Callable[[Order], Answer],
    stop: threading.Event,
    *,
    end: Callable[[], None] = lambda: None,
    on_batch: Callable[[Batch], None] = lambda _batch: None,
    on_day: Callable[[Archived], None] = lambda _day: None,
    report: Callable[[str], None] = lambda _step: None,
) -> None:
    """Archive finished jobs until `stop` is set, and then return after the current batch.

    Args:
        plan: Source and destination.
        write: Writes and compares the files of a closed day; see `drain.pipeline.days.archive`. A thread calls it.
        stop: Event that ends the archive; any thread and any signal handler may set it.
        end: Lets `write` return or fail soon.
        on_batch: Called with each batch that has been written.
        on_day: Called with the result for each closed day.
        report: Receives a line at each step.

    Raises:
        DrainError: The archive has failed. Nothing is lost: the next run continues where this one ended.
    """
    with exclusive(plan.database_url) as lock:
        follower = Follower(plan, lock, write, on_day, report)
        report("following finished_jobs until Ctrl-C")
        try:
            while not stop.is_set():
                until = monotonic() + _BATCH_SECONDS
                follower.close_days_if_due()
                batch = follower.run_once()
                if batch:
                    on_batch(batch)
                is_full = batch is not None and batch.rows >= plan.max_rows
                follower.merge(0.0 if is_full else until)
                if not is_full:
                    stop.wait(max(0.0, until - monotonic()))
        finally:
            end()
            follower.close()


class Follower:
    """Writer of batches, which lets a thread close days.

    Args:
        plan: Source and destination.
        lock: Connection that holds the archive's lock; see `drain.pipeline.archive.exclusive`.
        write: Writes and compares the files of a closed day.
        on_day: Called with the result for each closed day; once for the same problem of a day.
        report: Receives a line at each step.
    """

    def __init__(
        self,
        plan: Plan,
        lock: Connection,
        write: Callable[[Order], Answer],
        on_day: Callable[[Archived], None] = lambda _day: None,
        report: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._plan = plan
        self._archive = Archive(plan.archive)
        self._archiver = Archiver(lock, plan.database_url, plan.archive, write, report)
        self._on_day = on_day
        self._reported: set[tuple[date, str]] = set()
        self._connection = postgres.connect(plan.database_url, _APPLICATION)
        self._thread: threading.Thread | None = None
        self._is_ended = False
        self._results: list[Archived] = []
        self._failure: Exception | None = None
        self._close_at = 0.0
        since = min([day.date for day in finished.days(lock)], default=finished.today(lock))
        with self._archive.explained():
            # Reports a bucket that does not exist.
            self._archive.exists()
            self._hours = Hours(self._archive, since, finished.next_transaction(lock))

    def run_once(self) -> Batch | None:
        """Write the next batch; None if there is nothing new."""
        plan, start = self._plan, self._hours.position
        end = transactions.latest(self._connection, start, plan.max_rows)
        if end == start:
            return None
        rows = 0
        with (
            self._archive.explained(),
            adbc.connect(plan.database_url, _APPLICATION) as connection,
        ):

            def counted() -> Iterator[pa.RecordBatch]:
                nonlocal rows
                for batch in transactions.read(connection, start, end, COLUMNS):
                    rows += batch.num_rows
                    yield batch

            latest = self._hours.write(counted(), end)
        return Batch(rows, finished.clock(self._connection) - latest / 1e6)

    def merge(self, until: float) -> None:
        """Merge files of hours that are over, until the monotonic clock shows `until`, and at least a little."""
        with self._archive.explained():
            self._hours.merge(finished.clock(self._connection), until)

    def close_days_if_due(self) -> None:
        """Let a thread close days, if a minute has passed since the last time, and report what it has closed.

        Raises:
            UnavailableError: The thread has lost the database.
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            self._report_results()
            self._close_at = monotonic() + _CLOSE_SECONDS
        elif monotonic() >= self._close_at:
            self._close_at = monotonic() + _CLOSE_SECONDS
            days = finished.closed_days(self._connection, self._plan.keep)
            if days:
                self._hours.leave({day.date for day in days})
                self._thread = threading.Thread(target=self._close_days, args=(days,), daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop, with no file half written; a day that is being closed stays as it is."""
        self._is_ended = True
        self._hours.close()
        if self._thread is not None:
            self._thread.join()
        for day in self._results:
            if day.problem is None:
                self._report(day)
        self._connection.close()

    def _close_days(self, days: list[Day]) -> None:
        try:
            with postgres.reachable(self._plan.database_url):
                for day in days:
                    if not self._is_ended:
                        # Without patience: the transactions that use the partition now have ended a minute from now.
                        self._results.append(self._archiver.close(day, patience=0))
        except Exception as error:  # noqa: BLE001  (raised by the thread that looks at the results)
            self._failure = error

    def _report_results(self) -> None:
        results, self._results = self._results, []
        for day in results:
            self._report(day)
        if self._failure is not None:
            raise self._failure

    def _report(self, day: Archived) -> None:
        if day.problem is None:
            # A problem that comes back after a success is a new one.
            self._reported = {(other, problem) for other, problem in self._reported if other != day.day}
        elif (day.day, day.problem) in self._reported:
            return
        else:
            self._reported.add((day.day, day.problem))
        self._on_day(day)
