"""Bulk runs and other bulk work."""

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

_MADE = re.compile(r"([a-z]+)-\d{8}-\d{6}-[0-9a-f]{6}")
_STAGED = """
SELECT run_id, rows, committed_at FROM bulk_runs
WHERE committed_at IS NOT NULL
    AND (%(at)s::timestamptz IS NULL OR (committed_at, run_id) < (%(at)s::timestamptz, %(run)s::text))
ORDER BY committed_at DESC, run_id DESC LIMIT %(limit)s
"""
# A driver holds its run's lock. COPY progress is visible only to its own role and pg_read_all_stats. A run killed
# before its first commit is listed for a day.
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
# Visible only to the session's own role and pg_read_all_stats.
_HOLDERS = f"""
SELECT held.classid::bigint, session.backend_start FROM pg_locks AS held
LEFT JOIN pg_stat_activity AS session USING (pid)
WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2
    AND (held.classid = {locks.RECONCILE.first}::oid
        OR held.classid = {locks.ARCHIVE.first}::oid AND held.objid = {locks.ARCHIVE.second}::oid)
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY session.backend_start LIMIT %(limit)s
"""

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
    """Run that has staged all jobs."""

    run_id: str
    rows: int
    committed_at: datetime

    @property
    def kind(self) -> str:
        """Command that named the run, if any."""
        return kind_of(self.run_id)


class RunUnderWay(NamedTuple):
    """Unfinished run; `rows` are those copied so far, if visible."""

    run_id: str
    since: datetime
    rows: int
    is_driven: bool

    @property
    def kind(self) -> str:
        """Command that named the run, if any."""
        return kind_of(self.run_id)


class BulkWork(NamedTuple):
    """Running `reconcile` or `archive`, with its session's start if visible."""

    kind: str
    since: datetime | None


def kind_of(run_id: str) -> str:
    """Return the command that generated a run's name; "" for a custom name."""
    match = _MADE.fullmatch(run_id)
    return match[1] if match else ""


def latest(connection: Connection, limit: int, after: tuple[datetime, str] | None = None) -> list[StagedRun]:
    """List staged runs, latest first; `after` is the previous page's last."""
    at, run = after or (None, None)
    rows: Any = connection.execute(_STAGED, {"at": at, "run": run, "limit": limit}, binary=True)
    return [StagedRun._make(row) for row in rows]


def under_way(connection: Connection, limit: int) -> list[RunUnderWay]:
    """List unfinished runs, oldest first."""
    rows: Any = connection.execute(_UNDER_WAY, {"limit": limit}, binary=True)
    return [RunUnderWay._make(row) for row in rows]


def work(connection: Connection, limit: int) -> list[BulkWork]:
    """List running `reconcile` and `archive` commands, oldest first."""
    rows: Any = connection.execute(_HOLDERS, {"limit": limit}, binary=True)
    return [
        BulkWork("reconcile" if first == locks.RECONCILE.first else "archive", since) for first, since in rows
    ]
