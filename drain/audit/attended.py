"""Queues with jobs but no worker.

Only delivered jobs count; staged or retrying ones wait for the enqueuer. A dead worker stays registered for two
minutes, an `rq worker` for eight.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from drain.audit.report import SAMPLES, Breach, queue_names
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.formatting import clock
from drain.tables.columns import DELIVERED
from drain.tables.waiting import WAITS_SINCE
from drain.wire import Producer

_MOST = 10

_WAITING = f"""
SELECT queue, count(*), min({WAITS_SINCE}) FROM inflight_jobs
WHERE {DELIVERED} GROUP BY queue
HAVING min({WAITS_SINCE}) < now() - make_interval(secs => %s) ORDER BY 3
"""
_IDS = f"""
SELECT id FROM inflight_jobs WHERE {DELIVERED} AND queue = %s
ORDER BY delivery LIMIT {SAMPLES}
"""


class Waiting(NamedTuple):
    """Queue's delivered jobs, the oldest `since`."""

    queue: str
    jobs: int
    since: datetime


class AttendedCheck:
    """Check that queues with jobs have a worker."""

    def __init__(self, connection: Connection, redis: Producer, seconds: float) -> None:
        self._connection = connection
        self._redis = redis
        self._seconds = seconds
        self._unattended: list[Waiting] | None = None
        self._problem: str | None = None

    @property
    def in_doubt(self) -> bool:
        """True while any seems unattended or Redis fails."""
        return bool(self._problem or self._unattended)

    def look(self) -> None:
        """Find queues without a worker, or keep those still without."""
        known = None if self._unattended is None else {waiting.queue for waiting in self._unattended}
        rows = self._connection.execute(_WAITING, (self._seconds,), binary=True)
        waiting = [each for each in map(Waiting._make, rows) if known is None or each.queue in known]
        try:
            workers = self._redis.workers([each.queue for each in waiting])
        except UnavailableError as error:
            self._problem = str(error)
            return
        self._problem = None
        self._unattended = [each for each in waiting if not workers[each.queue]]

    def breaches(self) -> list[Breach]:
        """Return breaches found every time, longest first."""
        if self._problem:
            return []
        unattended = self._unattended or []
        breaches = [self._breach(waiting) for waiting in unattended[:_MOST]]
        if rest := unattended[_MOST:]:
            names = queue_names([waiting.queue for waiting in rest])
            breaches.append(Breach("attended", f"more queues with jobs and no worker ({names})", len(rest)))
        return breaches

    def unchecked(self) -> dict[str, str]:
        """Name this check if Redis did not answer."""
        return {"attended": self._problem} if self._problem else {}

    def _breach(self, waiting: Waiting) -> Breach:
        ids = tuple(sorted(id_ for (id_,) in self._connection.execute(_IDS, (waiting.queue,))))
        explanation = (
            f"waiting in queue {waiting.queue}, which has no worker, since {clock(waiting.since)}; "
            f"start `drain work {waiting.queue}`"
        )
        return Breach("attended", explanation, waiting.jobs, ids)
