"""Continuous archive: finished jobs go to files within seconds; Spark only closes days.

Rows are read in transaction order, each batch a file, in little memory. A thread closes past days with Spark in another
process; until then, nothing is written for them.
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
from drain.pipeline.archive import Archived, Archiver, Write, exclusive
from drain.pipeline.datasources import adbc, transactions
from drain.pipeline.files import COLUMNS
from drain.pipeline.hours import Hours
from drain.pipeline.lake.files import Archive
from drain.tables import finished
from drain.tables.finished import Day

if TYPE_CHECKING:
    import pyarrow as pa

_APPLICATION = "drain archive follow"
# Unless more rows wait than fit into one batch.
_BATCH_SECONDS = 2.0
_CLOSE_SECONDS = 60.0
_MAX_ROWS = 100_000


@dataclass(frozen=True)
class Batch:
    """Rows, and seconds since the last job's finish."""

    rows: int
    behind: float


@dataclass(frozen=True)
class Plan:
    """Settings; `keep` days stay in Postgres, and one transaction may exceed `max_rows`."""

    database_url: str
    archive: str
    keep: int = 0
    max_rows: int = _MAX_ROWS


def run(
    plan: Plan,
    write: Write,
    stop: threading.Event,
    *,
    end: Callable[[], None] = lambda: None,
    on_batch: Callable[[Batch], None] = lambda _batch: None,
    on_day: Callable[[Archived], None] = lambda _day: None,
    report: Callable[[str], None] = lambda _step: None,
) -> None:
    """Archive finished jobs until any thread or signal handler sets `stop`; the next run continues here.

    Args:
        write: As `days.archive`; called by a thread.
        end: Makes `write` return or fail soon.
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
    """Writes batches; a thread closes days, and each problem of a day is reported once."""

    def __init__(
        self,
        plan: Plan,
        lock: Connection,
        write: Write,
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
            self._archive.exists()
            self._hours = Hours(self._archive, since, finished.next_transaction(lock))

    def run_once(self) -> Batch | None:
        """Write the next batch, if any."""
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
        """Merge past hours' files until this `monotonic()` time, and at least a little."""
        with self._archive.explained():
            self._hours.merge(finished.clock(self._connection), until)

    def close_days_if_due(self) -> None:
        """Close days in a thread at most once a minute."""
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
        """Stop, leaving neither half a file nor a half-closed day."""
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
                        # The next try follows in a minute.
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
            # After a success, a problem is new again.
            self._reported = {(other, problem) for other, problem in self._reported if other != day.day}
        elif (day.day, day.problem) in self._reported:
            return
        else:
            self._reported.add((day.day, day.problem))
        self._on_day(day)
