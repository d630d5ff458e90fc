"""Recent compliance, from the tables.

Counts the latest jobs finished within an hour, and late waiting jobs. Jobs with several attempts do not count: the
table has only the last one's start. A flow counts at its end, or once its time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drain.contrib.slo.declared import Slo
from drain.database.postgres import Connection, fetch_one
from drain.read.snapshots import snapshot
from drain.tables.columns import DELIVERED, DUE, LANE_KIND, LANE_QUEUE
from drain.tables.lanes import KINDS

# Per state, latest first.
MOST = 10_000
_FINISHED = f"""
SELECT count(*), count(*) FILTER (WHERE claimed_at
    <= greatest(scheduled_at, staged_at) + make_interval(secs => %(seconds)s::float8))
FROM (
    SELECT job_name, claimed_at, scheduled_at, staged_at, attempts, superseded_by FROM finished_jobs
    WHERE queue = %(queue)s AND finished_at > now() - interval '1 hour' ORDER BY finished_at DESC LIMIT {MOST}) AS job
WHERE attempts = 1 AND superseded_by IS NULL AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s::text)
"""
_LANE = f"""
(SELECT job_name, greatest(staged_at, matured_at) AS since FROM staged_jobs_ready
 WHERE {DUE} AND {LANE_KIND} = {{kind}} AND {LANE_QUEUE} = %(queue)s ORDER BY priority, id LIMIT {MOST})
"""
_WAITING = f"""
SELECT count(*) FROM (
    {" UNION ALL ".join(_LANE.format(kind=kind) for kind in KINDS)}
    UNION ALL
    (SELECT job_name, greatest(scheduled_at, staged_at) FROM inflight_jobs
     WHERE {DELIVERED} AND queue = %(queue)s AND claimed_at IS NULL AND history IS NULL ORDER BY delivery LIMIT {MOST})
) AS job
WHERE since < clock_timestamp() - make_interval(secs => %(seconds)s::float8)
    AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s::text)
"""
# Cancelled flows count only if they were late.
_FLOWS = f"""
SELECT count(finished_at), count(*) FILTER (WHERE finished_at <= late_at), count(*) FILTER (WHERE finished_at IS NULL)
FROM (
    SELECT late_at,
        (SELECT finished_at FROM finished_jobs AS job WHERE job.id = flow.id LIMIT 1) AS finished_at,
        (SELECT died_at FROM dead_jobs AS job WHERE job.id = flow.id) AS died_at
    FROM (
        SELECT id, staged_at + make_interval(secs => %(seconds)s::float8) AS late_at FROM flows
        WHERE name = %(name)s::text ORDER BY id DESC LIMIT {MOST}) AS flow
    WHERE late_at > now() - interval '1 hour') AS flow
WHERE CASE WHEN finished_at <= late_at THEN finished_at > now() - interval '1 hour'
    ELSE late_at < clock_timestamp() AND (died_at <= late_at) IS NOT TRUE END
"""


class Lately(NamedTuple):
    """Jobs of the last hour, bounded: `started` with one attempt, those in time, and waiting late.

    For flows: those that finished (`started`), those in time, and late unfinished ones (`waiting`).
    """

    slo: Slo
    started: int
    met: int
    waiting: int

    @property
    def unit(self) -> str:
        """Word for what counts."""
        return "flow" if self.slo.kind == "flow" else "job"

    @property
    def share(self) -> float | None:
        """Percentage in time; None without jobs."""
        number = self.started + self.waiting
        return 100 * self.met / number if number else None

    @property
    def burn(self) -> float | None:
        """Burn rate; 1 is exactly as allowed. None without jobs."""
        share = self.share
        return None if share is None else (1 - share / 100) / self.slo.objective.budget

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        started, waiting = (
            ("finished", "unfinished_late") if self.slo.kind == "flow" else ("started", "waiting_late")
        )
        counted = {started: self.started, "met": self.met, waiting: self.waiting}
        return self.slo.as_json() | counted | {"share_percent": self.share, "burn_rate": self.burn}


def lately(connection: Connection, slos: Sequence[Slo]) -> list[Lately]:
    """Count each objective's jobs in one snapshot."""
    if not slos:
        return []
    with snapshot(connection):
        return [_count(connection, slo) for slo in slos]


def _count(connection: Connection, slo: Slo) -> Lately:
    if slo.kind == "flow":
        found = fetch_one(connection, _FLOWS, {"name": slo.name, "seconds": slo.objective.seconds})
        return Lately(slo, *map(int, found))
    parameters = {"queue": slo.queue, "job_name": slo.job_name, "seconds": slo.objective.seconds}
    started, met = fetch_one(connection, _FINISHED, parameters)
    (waiting,) = fetch_one(connection, _WAITING, parameters)
    return Lately(slo, int(started), int(met), int(waiting))
