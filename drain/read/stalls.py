"""Stalled queues: jobs have waited for a worker for a minute, and no job of the queue has finished meanwhile."""

from __future__ import annotations

from drain.database.postgres import Connection
from drain.tables import pauses
from drain.tables.columns import DELIVERED
from drain.tables.heads import heads
from drain.tables.waiting import WAITS_SINCE

# A queue stalls once a job has waited, and none has finished, for so many seconds.
STALLED_SECONDS = 60
# A few index look-ups for each queue with jobs that wait for a worker.
STALLED = f"""{heads("inflight_jobs", DELIVERED, "delivery")}
SELECT heads.queue, date_part('epoch', clock_timestamp() - oldest.since) FROM heads, LATERAL (
    SELECT {WAITS_SINCE} AS since FROM inflight_jobs AS job WHERE {DELIVERED} AND job.queue = heads.queue
    ORDER BY job.delivery LIMIT 1) AS oldest
WHERE oldest.since < now() - make_interval(secs => %(seconds)s::float8) AND NOT EXISTS (
    SELECT FROM finished_jobs AS job
    WHERE job.queue = heads.queue AND job.finished_at > now() - make_interval(secs => %(seconds)s::float8))
"""


def stalled_queues(connection: Connection) -> dict[str, float]:
    """Find the queues that stall, and for how long the oldest job of each has waited, in seconds; no paused queue."""
    held = {each.queue for each in pauses.read(connection) if each.job_name is None and each.key is None}
    rows = connection.execute(STALLED, {"seconds": STALLED_SECONDS}, binary=True)
    return {queue: seconds for queue, seconds in rows if not held & {queue, None}}
