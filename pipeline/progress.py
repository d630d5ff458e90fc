"""Progress of a run, asked of Postgres: the rows that its tasks have copied so far, of all rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from drain.database import postgres
from drain.errors import DrainError
from drain.tables import bulk
from drain.wording import count, duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Interval between two reports.
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Step:
    """Progress at one moment.

    Attributes:
        rows: Number of rows copied so far.
        total: Number of rows to copy.
        seconds: Seconds since copying began.
    """

    rows: int
    total: int
    seconds: float

    def __str__(self) -> str:
        rate = self.rows / self.seconds if self.seconds else 0.0
        if self.rows >= self.total:
            return f"{count(self.total, 'row')} copied; staging them in one commit"
        left = f", {duration((self.total - self.rows) / rate)} left" if rate else ""
        return f"{self.rows:,} of {count(self.total, 'row')}, {rate:,.0f} a second{left}"


Reporter: TypeAlias = Callable[[str], None]


@contextmanager
def watched(database_url: str, run_id: str, rows: DataFrame, report: Reporter | None) -> Iterator[None]:
    """Report the progress of the run, twice a second, while the block runs.

    The rows are counted first. Without `report` nothing is counted, and no progress is asked for.
    """
    if report is None:
        yield
        return
    report("counting the rows")
    total = rows.count()
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(database_url, run_id, total, report, ended), name="progress", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(database_url: str, run_id: str, total: int, report: Reporter, ended: threading.Event) -> None:
    began = monotonic()
    # A failure of the database is raised by the run itself.
    with suppress(DrainError):
        connection = postgres.connect(database_url, "drain progress")
        with connection, postgres.reachable(database_url):
            while not ended.wait(_LOOK_SECONDS):
                report(
                    str(Step(min(total, bulk.copied_rows(connection, run_id)), total, monotonic() - began))
                )
