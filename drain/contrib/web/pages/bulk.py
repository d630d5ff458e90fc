"""Bulk runs: those that are under way, those that have staged their jobs, and other bulk work of now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from drain.contrib.web.forms import FormError
from drain.contrib.web.paging import ROWS, page_of, place_of
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.database import locks
from drain.database.postgres import Connection
from drain.read import queries

# Name of a run that its command has made.
_MADE = re.compile(r"([a-z]+)-\d{8}-\d{6}-[0-9a-f]{6}")
_STAGED = """
SELECT run_id, rows, committed_at FROM bulk_runs
WHERE committed_at IS NOT NULL
    AND (%(at)s::timestamptz IS NULL OR (committed_at, run_id) < (%(at)s::timestamptz, %(run)s::text))
ORDER BY committed_at DESC, run_id DESC LIMIT %(limit)s
"""
# The driver holds the lock of its run. Only its own role, and roles that may read all statistics, see how far its COPY
# has come. A run that was killed before its first commit is listed for a day.
_UNDER_WAY = f"""
WITH runs AS (
    SELECT run_id, begun_at, rows, (
        SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
            AND classid = {locks.BULK_RUN.first}::oid
            AND objid::bigint = hashtext(run_id)::bigint & 4294967295
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1) AS driver
    FROM bulk_runs WHERE committed_at IS NULL
)
SELECT run_id, begun_at, rows + coalesce((
        SELECT sum(tuples_processed) FROM pg_stat_progress_copy WHERE pid = driver)::bigint, 0), driver IS NOT NULL
FROM runs WHERE rows > 0 OR driver IS NOT NULL OR begun_at > now() - make_interval(days => 1)
ORDER BY begun_at, run_id LIMIT %(limit)s
"""
# The time of a session is shown to its own role and to those that may read all statistics.
_HOLDERS = f"""
SELECT held.classid::bigint, session.backend_start FROM pg_locks AS held
LEFT JOIN pg_stat_activity AS session USING (pid)
WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2
    AND (held.classid = {locks.RECONCILE.first}::oid
        OR held.classid = {locks.ARCHIVE.first}::oid AND held.objid = {locks.ARCHIVE.second}::oid)
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY session.backend_start LIMIT %(limit)s
"""

# Upper bound of the runs that are shown as under way.
_FEW = 50


def _show(view: View) -> Mapping[str, Any]:
    after = _after(place_of(view, (str, str)))
    with view.snapshot() as connection:
        staged = latest(connection, ROWS + 1, after)
        return {
            "now": queries.now(connection),
            "under_way": under_way(connection, _FEW),
            "work": work(connection, _FEW),
            "page": page_of(view, staged, lambda run: (run.committed_at.isoformat(), run.run_id)),
        }


def _after(place: Sequence[Any] | None) -> tuple[datetime, str] | None:
    if place is None:
        return None
    try:
        at = datetime.fromisoformat(place[0])
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise FormError("the address is not a page of this list: start from the first page")
    return at, place[1]


ROUTES = [page("/bulk", _show, name="bulk", template="bulk.html", live="bulk_live.html")]


class StagedRun(NamedTuple):
    """Run that has staged all its jobs."""

    run_id: str
    rows: int
    committed_at: datetime

    @property
    def kind(self) -> str:
        """Command that has made the run's name; "" if a person has chosen the name."""
        return kind_of(self.run_id)


class RunUnderWay(NamedTuple):
    """Run that has begun and has not staged all its jobs.

    Attributes:
        run_id: Its name.
        since: When it began.
        rows: Number of rows that it has copied so far, as far as is known.
        is_driven: Its driver is alive.
    """

    run_id: str
    since: datetime
    rows: int
    is_driven: bool

    @property
    def kind(self) -> str:
        """Command that has made the run's name; "" if a person has chosen the name."""
        return kind_of(self.run_id)


class BulkWork(NamedTuple):
    """Other bulk work of now: `reconcile` or `archive`, and since when its session exists, if that may be seen."""

    kind: str
    since: datetime | None


def kind_of(run_id: str) -> str:
    """Name the command that has made the name of a run; "" if a person has chosen it."""
    match = _MADE.fullmatch(run_id)
    return match[1] if match else ""


def latest(connection: Connection, limit: int, after: tuple[datetime, str] | None = None) -> list[StagedRun]:
    """List runs that have staged, the latest first; `after` is time and name of the last one of the page before."""
    at, run = after or (None, None)
    rows: Any = connection.execute(_STAGED, {"at": at, "run": run, "limit": limit}, binary=True)
    return [StagedRun._make(row) for row in rows]


def under_way(connection: Connection, limit: int) -> list[RunUnderWay]:
    """List runs that have begun and have not staged all their jobs, the oldest first."""
    rows: Any = connection.execute(_UNDER_WAY, {"limit": limit}, binary=True)
    return [RunUnderWay._make(row) for row in rows]


def work(connection: Connection, limit: int) -> list[BulkWork]:
    """List the sessions of `drain reconcile` and `drain archive` that hold their locks, the oldest first."""
    rows: Any = connection.execute(_HOLDERS, {"limit": limit}, binary=True)
    return [
        BulkWork("reconcile" if first == locks.RECONCILE.first else "archive", since) for first, since in rows
    ]
