"""Activity of all queues at one instant: for `drain top` and `drain check`, which ask again and again.

Each question is a few index look-ups for each queue, and each count ends at a bound, which means that number or more:
what `drain status` counts in whole tables is not asked here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from drain.database.postgres import Connection
from drain.read import stalls, system
from drain.read.queries import leader, now
from drain.read.wait_counts import count_waiting
from drain.tables import lanes, pauses, waiting
from drain.tables import rules as ruled
from drain.tables.columns import ATTEMPTS, DELIVERED, IS_CLAIMED, RUNNING
from drain.tables.waiting import NEXT_ATTEMPTS, WAITS_SINCE, retrying_queues

# Upper bound of the jobs of one kind that are counted.
UP_TO = 10_000
# Bound of the waiting jobs of one queue and cause where there are many queues, and of all that are counted in one look:
# measured, ten thousand jobs in each of 50 queues take five times as long as a thousand.
FEW = 1_000
_TOTAL = 40_000
# Dead jobs that are grouped.
GROUPED_UP_TO = 1_000
# Time over which rates are measured, in seconds.
RATE_SECONDS = 60
# Causes for which due jobs wait by a rule, a pause or a full list, and not for the leader.
_RULED = frozenset({"paused", "limited", "rate"})
HELD = _RULED | {"list_full"}
_DELIVERED_SINCE = f"""
SELECT heads.queue, greatest(0::float8, date_part('epoch', clock_timestamp() - oldest.since))
FROM unnest(%s::text[]) AS heads (queue), LATERAL (
    SELECT {WAITS_SINCE} AS since FROM inflight_jobs AS job
    WHERE {DELIVERED} AND job.queue = heads.queue
    ORDER BY job.delivery LIMIT 1) AS oldest
"""
_RETRYING_SINCE = f"""{NEXT_ATTEMPTS}
SELECT queue, date_part('epoch', clock_timestamp() - next_run_at) FROM heads WHERE next_run_at <= clock_timestamp()
"""
# The claimed jobs, of which there are no more than workers hold.
_CLAIMED = f"""
SELECT id, job_name, queue, claimed_at, claimed_by, attempts, batched, lease_expires_at FROM inflight_jobs
WHERE {IS_CLAIMED} LIMIT %(up_to)s::bigint
"""
_RUNNING = f"SELECT queue, count(*) FROM ({_CLAIMED}) AS claimed WHERE {RUNNING} GROUP BY queue"
_LONGEST = f"""
SELECT id, job_name, queue, greatest(0::float8, date_part('epoch', clock_timestamp() - claimed_at)), claimed_by,
    {ATTEMPTS}, lease_expires_at < clock_timestamp()
FROM ({_CLAIMED}) AS claimed WHERE claimed_at IS NOT NULL ORDER BY claimed_at, id LIMIT %(limit)s::bigint
"""
_YESTERDAY = """(date_trunc('day', now() AT TIME ZONE 'UTC') - interval '1 day') AT TIME ZONE 'UTC'"""
# The latest finish of each queue of today and the day before: the bound is that of a partition, so that no row of these
# partitions is passed over.
_FINISHED = f"""
WITH RECURSIVE heads AS (
    (SELECT queue, finished_at FROM finished_jobs
     WHERE finished_at >= {_YESTERDAY}
     ORDER BY queue DESC, finished_at DESC LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT queue, finished_at FROM finished_jobs
        WHERE queue < heads.queue
            AND finished_at >= {_YESTERDAY}
        ORDER BY queue DESC, finished_at DESC LIMIT 1) AS following
)
SELECT heads.queue, lately.number, lately.seconds FROM heads, LATERAL (
    SELECT count(*) AS number, date_part('epoch', clock_timestamp() - min(finished_at)) AS seconds FROM (
        SELECT finished_at FROM finished_jobs AS job
        WHERE job.queue = heads.queue AND job.finished_at > now() - make_interval(secs => %(seconds)s::float8)
        ORDER BY finished_at DESC LIMIT %(up_to)s::bigint) AS counted) AS lately
WHERE heads.finished_at > now() - make_interval(secs => %(seconds)s::float8)
"""
_DEAD_GROUPS = """
SELECT count(*) FROM (
    SELECT DISTINCT job_name, reason, last_error ->> 'type'::text AS type FROM (
        SELECT job_name, reason, last_error FROM dead_jobs LIMIT %s) AS some_of_them) AS found
"""


@dataclass(slots=True)
class QueueActivity:
    """Activity of one queue.

    Attributes:
        waiting: Number of waiting jobs by cause, as in `drain status`; each counted up to `Activity.up_to`.
        running: Claimed jobs, of the first `UP_TO` of all queues.
        per_second: Jobs that finish in a second, over the last minute.
        oldest_seconds: Time for which the oldest due job has waited for a worker; 0 if none waits.
        staged_seconds: Time for which the oldest due job has waited in `staged_jobs`; 0 if none waits there.
        failing: All of its latest attempts have failed.
        paused: The whole queue is paused.
        held: The leader holds the queue: it cannot follow its rules.
        queued_seconds: Wait of the oldest delivered job for a worker; 0 if none waits.
        stalled_seconds: The same for a queue that stalls (`drain.read.stalls`); 0 for any other.
        workers: Number of live workers that run its jobs; None while Redis has not been asked.
        free: Number of those that could begin a job at once; None as for `workers`.
    """

    waiting: dict[str, int] = field(default_factory=dict)
    running: int = 0
    per_second: float = 0.0
    oldest_seconds: float = 0.0
    staged_seconds: float = 0.0
    failing: bool = False
    paused: bool = False
    held: bool = False
    queued_seconds: float = 0.0
    stalled_seconds: float = 0.0
    workers: int | None = None
    free: int | None = None

    @property
    def waits(self) -> int:
        """Number of the jobs that wait and could start now, but for a rule, a pause or a worker."""
        return sum(number for cause, number in self.waiting.items() if cause not in ("scheduled", "retrying"))

    @property
    def lag_seconds(self) -> float:
        """Time for which the oldest due job has waited for the leader; 0 if rules, a pause or a full list hold some."""
        return 0.0 if HELD & self.waiting.keys() else self.staged_seconds

    @property
    def wait_seconds(self) -> float:
        """Wait of the oldest due job for a worker, not behind a rule or a pause; 0 if none waits."""
        return self.queued_seconds if _RULED & self.waiting.keys() else self.oldest_seconds

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait, or will be tried again, and no worker runs them."""
        return self.workers == 0 and self.waits + self.waiting.get("retrying", 0) > 0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A claimed job.

    Attributes:
        seconds: Time since the claim.
        has_lapsed: Its lease is over: its worker is gone or hangs.
    """

    id: int
    job_name: str
    queue: str
    seconds: float
    worker: str | None
    attempt: int
    has_lapsed: bool


@dataclass(slots=True)
class Activity:
    """Activity of the whole system.

    Attributes:
        now: Time by the database's clock.
        leader: Name of the leader, and since when it leads; None if there is none.
        queues: Activity by queue.
        running: The jobs that have run for longest, the longest first.
        dead: Number of dead jobs, counted up to `UP_TO`.
        up_to: Bound of the waiting jobs that were counted, of each queue and cause.
        dead_groups: Number of their groups by name, reason and type of error, of the first `GROUPED_UP_TO`.
    """

    now: datetime
    leader: dict[str, str] | None = None
    queues: dict[str, QueueActivity] = field(default_factory=dict)
    running: list[RunningJob] = field(default_factory=list)
    dead: int = 0
    dead_groups: int = 0
    up_to: int = UP_TO

    @property
    def lag_seconds(self) -> float:
        """Time for which the oldest due job has waited for the leader; 0 if none does."""
        return max((queue.lag_seconds for queue in self.queues.values()), default=0.0)


def bound_for(queues: int) -> int:
    """Bound of the waiting jobs to count in each queue where there are so many queues."""
    return max(FEW, min(UP_TO, _TOTAL // max(1, queues)))


def read(connection: Connection, *, longest: int = 0, up_to: int = FEW) -> Activity:
    """Read all of it in one snapshot. Redis is not asked; see `QueueActivity.workers`.

    Args:
        connection: Any, outside of a transaction.
        longest: Number of the running jobs to list.
        up_to: Bound of the waiting jobs to count, of each queue and cause.
    """
    with connection.transaction():
        # Each of these statements reads the head of an index, whatever the planner believes about the tables.
        connection.execute(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; "
            "SET LOCAL jit = off; SET LOCAL enable_seqscan = off"
        )
        found = Activity(now(connection), leader(connection), up_to=up_to)
        queues: defaultdict[str, QueueActivity] = defaultdict(QueueActivity)
        _read_waiting(connection, queues, up_to)
        bound = {"up_to": UP_TO, "limit": longest, "seconds": RATE_SECONDS}
        for queue, number in connection.execute(_RUNNING, bound):
            queues[queue].running = number
        for queue, number, seconds in connection.execute(_FINISHED, bound):
            # Above the bound the time in which so many have finished is known, and it is shorter.
            span = max(seconds, 0.001) if number >= UP_TO else RATE_SECONDS
            queues[queue].per_second = number / span
        if longest:
            found.running = [RunningJob(*row) for row in connection.execute(_LONGEST, bound)]
        found.dead = system.count_dead(connection, UP_TO)
        found.dead_groups = _dead_groups(connection)
    found.queues = dict(queues)
    return found


def _read_waiting(connection: Connection, queues: defaultdict[str, QueueActivity], up_to: int) -> None:
    for queue, by_cause in count_waiting(connection, up_to).items():
        queues[queue].waiting = by_cause
    staged = lanes.oldest_due_seconds(connection)
    for queue, seconds in staged.items():
        queues[queue].staged_seconds = max(0.0, seconds)
    delivered = [queue for queue, _ in waiting.oldest_deliveries(connection)]
    rows: list[tuple[Any, ...]] = connection.execute(_DELIVERED_SINCE, (delivered,)).fetchall()
    for queue, seconds in rows:
        queues[queue].queued_seconds = seconds
    for queue, seconds in stalls.stalled_queues(connection).items():
        queues[queue].stalled_seconds = seconds
    rows += connection.execute(_RETRYING_SINCE).fetchall()
    for queue, seconds in (*rows, *staged.items()):
        queues[queue].oldest_seconds = max(queues[queue].oldest_seconds, seconds)
    for retrying in retrying_queues(connection):
        queues[retrying.queue].failing = retrying.failing
    _read_what_stands(connection, queues)


def _read_what_stands(connection: Connection, queues: defaultdict[str, QueueActivity]) -> None:
    for rules in ruled.read(connection).values():
        if rules.error is not None:
            queues[rules.queue].held = True
    for pause in pauses.read(connection):
        if pause.queue is not None and pause.job_name is None and pause.key is None:
            queues[pause.queue].paused = True


def _dead_groups(connection: Connection) -> int:
    return int(connection.execute(_DEAD_GROUPS, (GROUPED_UP_TO,)).fetchall()[0][0])
