"""Every question that is asked of the tables, and changes nothing: counts, lists, one job whole.

Times are read in binary: psycopg reads the texts of no DateStyle but ISO, and the database may have another.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import sql
from psycopg.rows import dict_row
from psycopg.sql import Composed
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8BinaryLoader

from drain.database import locks, postgres
from drain.database.postgres import Connection
from drain.errors import UnknownJobError
from drain.tables.columns import DELIVERED, DUE
from drain.tables.staged import LAST_PRIORITY, START, Key

TABLES = {
    "staged": "staged_jobs",
    "inflight": "inflight_jobs",
    "finished": "finished_jobs",
    "dead": "dead_jobs",
}

# Tables with more rows than this are counted by the planner's estimate: an exact count of a hundred
# million finished jobs would take a minute.
EXACT_UP_TO = 1_000_000

# A queue in which so many jobs have failed since its last finish is failing: its target is down, or its code
# is broken.
FAILURES_IN_A_ROW = 5

# A due row that the enqueuer has not taken for longer than this is overdue; a leader takes it within a second.
OVERDUE_SECONDS = 5

# Point in time since which an unclaimed job in flight has waited for a worker. A first attempt has waited since it was
# due; a later one, and a job that was dead, since the last time that is known of it.
WAITS_SINCE = """CASE WHEN claimed_at IS NULL AND history IS NULL THEN greatest(scheduled_at, staged_at)
    ELSE greatest(moved_at, claimed_at, failed_at, lease_expires_at) END"""

_COUNT_STAGED = f"""
SELECT queue, count(*), count(*) FILTER (WHERE scheduled_at > now()), count(*) FILTER (
    WHERE greatest(scheduled_at, staged_at, matured_at) < now() - interval '{OVERDUE_SECONDS} seconds')
FROM staged_jobs GROUP BY queue
"""
# Time and id are compared as one array, so that the id of the oldest job needs neither a second scan nor a sort.
_COUNT_INFLIGHT = f"""
SELECT queue, count(*), count(*) FILTER (WHERE lease_expires_at > now()),
    count(*) FILTER (WHERE next_run_at IS NOT NULL AND lease_expires_at IS NULL),
    pg_catalog.min(ARRAY[(date_part('epoch', {WAITS_SINCE}) * 1000000)::bigint, id])
        FILTER (WHERE next_run_at IS NULL AND (lease_expires_at > now()) IS NOT TRUE),
    (date_part('epoch', clock_timestamp()) * 1000000)::bigint
FROM inflight_jobs GROUP BY queue
"""
_COUNT_DEAD = "SELECT queue, count(*) FROM dead_jobs GROUP BY queue"
_ESTIMATE = """
SELECT CASE WHEN sum(reltuples) > %s::real THEN sum(reltuples)::bigint END
FROM pg_partition_tree('finished_jobs'::regclass) JOIN pg_class ON oid = relid::oid WHERE isleaf AND reltuples > 0::real
"""
# One index look-up for each priority that is in use, however many rows wait behind it.
_OLDEST_DUE = f"""
WITH RECURSIVE heads AS (
    (SELECT priority, greatest(staged_at, matured_at) AS due_at FROM staged_jobs_ready
     WHERE {DUE}
         AND (priority, id) > (%(priority)s::integer, %(id)s::bigint) AND priority <= %(up_to)s
     ORDER BY priority, id LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT priority, greatest(staged_at, matured_at) FROM staged_jobs_ready
        WHERE {DUE} AND priority > heads.priority
            AND priority <= %(up_to)s
        ORDER BY priority, id LIMIT 1) AS following
)
SELECT greatest(0, extract(epoch FROM clock_timestamp() - min(due_at)))::float8 FROM heads
"""
# One index look-up for each queue that has unclaimed jobs.
_OLDEST_DELIVERIES = f"""
WITH RECURSIVE heads AS (
    (SELECT queue, delivery FROM inflight_jobs
     WHERE {DELIVERED} ORDER BY queue, delivery LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT queue, delivery FROM inflight_jobs
        WHERE {DELIVERED} AND queue > heads.queue
        ORDER BY queue, delivery LIMIT 1) AS following
)
SELECT queue, delivery FROM heads
"""
# The same of the queues that are given, each from a number on.
_OLDEST_DELIVERIES_FROM = f"""
SELECT known.queue, oldest.delivery
FROM unnest(%s::text[], %s::bigint[]) AS known (queue, delivery), LATERAL (
    SELECT delivery FROM inflight_jobs AS job
    WHERE {DELIVERED}
        AND job.queue = known.queue AND job.delivery >= known.delivery
    ORDER BY job.delivery LIMIT 1) AS oldest
"""
# The earliest next attempt of each queue: one index look-up for each queue that has one.
NEXT_ATTEMPTS = """
WITH RECURSIVE heads AS (
    (SELECT queue, next_run_at FROM inflight_jobs WHERE next_run_at IS NOT NULL
     ORDER BY queue, next_run_at LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT queue, next_run_at FROM inflight_jobs
        WHERE next_run_at IS NOT NULL AND queue > heads.queue
        ORDER BY queue, next_run_at LIMIT 1) AS following
)
"""
# A few index look-ups for each queue with jobs that wait for their next attempt.
_RETRYING_QUEUES = f"""{NEXT_ATTEMPTS}
SELECT queue, next_run_at <= now(), last_finish.at, clock_timestamp(), %(failures)s = (
    SELECT count(*) FROM (
        SELECT FROM inflight_jobs AS failed
        WHERE failed.queue = heads.queue AND failed.failed_at > coalesce(last_finish.at, '-infinity')
        ORDER BY failed.failed_at LIMIT %(failures)s) AS latest)
FROM heads, LATERAL (
    SELECT max(finished_at) AS at FROM finished_jobs WHERE queue = heads.queue) AS last_finish
"""
# The lock is the truth about who leads; the row only adds the name.
_LEADER = f"""
SELECT state.leader, state.leader_since FROM drain_state AS state
WHERE EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND classid = {locks.LEADER.first} AND objid = {locks.LEADER.second} AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
_QUEUES = """
SELECT queue FROM staged_jobs UNION SELECT queue FROM inflight_jobs UNION SELECT queue FROM dead_jobs
"""
_LATEST = {
    "staged": "SELECT * FROM staged_jobs WHERE true {} ORDER BY id DESC LIMIT %(limit)s",
    "inflight": """
SELECT * FROM inflight_jobs WHERE true {}
ORDER BY greatest(moved_at, claimed_at, failed_at) DESC, id DESC LIMIT %(limit)s
""",
    # From the index, by queue: the table may hold a hundred million rows.
    "finished": """
WITH RECURSIVE queues AS (
    (SELECT queue FROM finished_jobs ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT following.queue FROM queues, LATERAL (
        SELECT queue FROM finished_jobs WHERE queue > queues.queue ORDER BY queue LIMIT 1) AS following
)
SELECT latest.* FROM queues, LATERAL (
    SELECT * FROM finished_jobs WHERE finished_jobs.queue = queues.queue {}
    ORDER BY finished_at DESC LIMIT %(limit)s) AS latest
ORDER BY latest.finished_at DESC, latest.id DESC LIMIT %(limit)s
""",
    "dead": "SELECT * FROM dead_jobs WHERE true {} ORDER BY died_at DESC, id DESC LIMIT %(limit)s",
}
_NEXT_SCHEDULED = """
SELECT extract(epoch FROM min(scheduled_at) - clock_timestamp())::float8 FROM staged_jobs_scheduled
"""


@dataclass(slots=True)
class QueueCounts:
    """What one queue holds. `inflight` is the sum of `queued`, `running` and `retrying`.

    Attributes:
        staged: Rows in `staged_jobs`.
        scheduled: Those of them whose time has not come.
        overdue: Those of them that have been due for more than five seconds, and that nobody has taken.
        inflight: Drained, and not finished.
        queued: Wait for a worker, or are about to be delivered again since their worker died.
        running: Claimed, and the lease holds.
        retrying: Wait for the time of their next attempt, after a failure or a deferral.
        oldest_unclaimed_id: Job that has waited for a worker for longest; None if none is queued.
        oldest_unclaimed_seconds: For how long. A later attempt waits from the beginning or failure of the last one.
        dead: Given up.
        failing: Five of its jobs have failed since its last finish, and some of them wait to be tried again.
        workers: Live workers that take its jobs; None while Redis has not been asked.
        redis_depth: Ids in its Redis list, those of plain RQ jobs and of other databases among them; None likewise.
    """

    staged: int = 0
    scheduled: int = 0
    overdue: int = 0
    inflight: int = 0
    queued: int = 0
    running: int = 0
    retrying: int = 0
    oldest_unclaimed_id: int | None = None
    oldest_unclaimed_seconds: float | None = None
    dead: int = 0
    failing: bool = False
    workers: int | None = None
    redis_depth: int | None = None

    @property
    def is_unattended(self) -> bool:
        """Whether jobs wait, or will be tried again, and no worker takes them."""
        return self.workers == 0 and self.staged - self.scheduled + self.queued + self.retrying > 0


@dataclass(slots=True)
class Status:
    """The whole system at a glance.

    Attributes:
        staged: Rows in `staged_jobs`, the scheduled ones among them.
        scheduled: Those whose time has not come.
        overdue: Those that have been due for more than five seconds.
        inflight: Drained, and not finished: the sum of `queued`, `running` and `retrying`; see `QueueCounts`.
        queued: Wait for a worker.
        running: Are being worked on.
        retrying: Wait for the time of their next attempt.
        finished: Done; an estimate beyond a million, and then `finished_is_estimate`.
        dead: Given up.
        oldest_staged_age_seconds: How long the longest-waiting due row has been due; 0 if none waits.
        leader: Who drains, and since when; None if nobody does.
        queues: Counts by queue.
    """

    staged: int = 0
    scheduled: int = 0
    overdue: int = 0
    inflight: int = 0
    queued: int = 0
    running: int = 0
    retrying: int = 0
    finished: int = 0
    finished_is_estimate: bool = False
    dead: int = 0
    oldest_staged_age_seconds: float = 0.0
    leader: dict[str, str] | None = None
    queues: dict[str, QueueCounts] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON types."""
        return asdict(self)


_SUMMED = ("staged", "scheduled", "overdue", "inflight", "queued", "running", "retrying", "dead")


def status(connection: Connection) -> Status:
    """Count everything, in one snapshot. Redis is not asked; see `QueueCounts.workers` and `redis_depth`."""
    result = Status()
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET LOCAL jit = off")
        queues: defaultdict[str, QueueCounts] = defaultdict(QueueCounts)
        for queue, staged, scheduled, overdue in connection.execute(_COUNT_STAGED):
            counts = queues[queue]
            counts.staged, counts.scheduled, counts.overdue = staged, scheduled, overdue
        for row in connection.execute(_COUNT_INFLIGHT):
            _count_inflight(queues[row[0]], *row[1:])
        for queue, dead in connection.execute(_COUNT_DEAD):
            queues[queue].dead = dead
        for retrying in retrying_queues(connection):
            queues[retrying.queue].failing = retrying.failing
        result.finished, result.finished_is_estimate = _count_finished(connection)
        result.oldest_staged_age_seconds = oldest_due_seconds(connection)
        result.leader = leader(connection)
    result.queues = dict(queues)
    for name in _SUMMED:
        setattr(result, name, sum(getattr(counts, name) for counts in queues.values()))
    return result


def _count_inflight(
    counts: QueueCounts, inflight: int, running: int, retrying: int, oldest: list[int] | None, now: int
) -> None:
    """Fill in what one row of `_COUNT_INFLIGHT` says; times are in microseconds."""
    counts.inflight, counts.running, counts.retrying = inflight, running, retrying
    counts.queued = inflight - running - retrying
    if oldest is not None:
        since, counts.oldest_unclaimed_id = oldest
        counts.oldest_unclaimed_seconds = max(0, now - since) / 1_000_000


def oldest_due_seconds(connection: Connection, after: Key = START, up_to: int = LAST_PRIORITY) -> float:
    """How long the longest-waiting due row has been due, of those behind this key and up to this priority.

    Returns:
        Seconds; 0 if none waits.
    """
    parameters = {"priority": after[0], "id": after[1], "up_to": up_to}
    (age,) = postgres.fetch_one(connection, _OLDEST_DUE, parameters)
    return float(age or 0.0)


def seconds_to_next_scheduled(connection: Connection) -> float | None:
    """How long until the next scheduled row is due, by the database's clock; None if there is none."""
    (seconds,) = postgres.fetch_one(connection, _NEXT_SCHEDULED)
    return None if seconds is None else float(seconds)


def count_staged(connection: Connection, up_to: int) -> int:
    """Rows in `staged_jobs`; no more than `up_to` of them are looked at."""
    statement = "SELECT count(*) FROM (SELECT FROM staged_jobs LIMIT %s) AS rows"
    (count,) = postgres.fetch_one(connection, statement, (up_to,))
    return int(count)


def count_dead(connection: Connection, up_to: int) -> int:
    """Rows in `dead_jobs`; no more than `up_to` of them are looked at."""
    statement = "SELECT count(*) FROM (SELECT FROM dead_jobs LIMIT %s) AS rows"
    (count,) = postgres.fetch_one(connection, statement, (up_to,))
    return int(count)


def count_stale(connection: Connection) -> int:
    """How many outcomes have been refused so far because their token was stale."""
    (count,) = postgres.fetch_one(connection, "SELECT coalesce(max(number), 0) FROM stale_finishes")
    return int(count)


def oldest_deliveries(connection: Connection) -> list[tuple[str, int]]:
    """For each queue with delivered jobs that nobody has claimed: the lowest delivery number of them."""
    return [(queue, delivery) for queue, delivery in connection.execute(_OLDEST_DELIVERIES)]


def oldest_deliveries_from(connection: Connection, bounds: Mapping[str, int]) -> list[tuple[str, int]]:
    """The same for the queues that are given, of deliveries with the given number or a higher one."""
    rows = connection.execute(_OLDEST_DELIVERIES_FROM, (list(bounds), list(bounds.values())))
    return [(queue, delivery) for queue, delivery in rows]


class Retrying(NamedTuple):
    """A queue with jobs that wait for their next attempt.

    Attributes:
        due: The time of at least one of them has come.
        last_finish: When the queue last finished a job.
        now: The database's clock.
        failing: So many jobs in flight have failed since the last finish that its target seems to be down.
    """

    queue: str
    due: bool
    last_finish: datetime | None
    now: datetime
    failing: bool


def retrying_queues(connection: Connection) -> list[Retrying]:
    """Queues with jobs that wait for their next attempt."""
    rows = connection.execute(_RETRYING_QUEUES, {"failures": FAILURES_IN_A_ROW}, binary=True)
    return [Retrying._make(row) for row in rows]


def is_under_way(connection: Connection, job_id: int) -> bool:
    """Whether the job has been delivered or claimed, and is not finished."""
    statement = "SELECT EXISTS (SELECT FROM inflight_jobs WHERE id = %s AND next_run_at IS NULL)"
    (under_way,) = postgres.fetch_one(connection, statement, (job_id,))
    return bool(under_way)


def jobs(
    connection: Connection,
    state: str,
    *,
    limit: int,
    queue: str | None = None,
    job_name: str | None = None,
    tag: str | None = None,
) -> list[dict[str, Any]]:
    """Up to `limit` jobs of one table, the latest first: by the time of what happened to them last.

    Of staged jobs, of which many millions may wait, the one with the highest id is the latest.

    Args:
        connection: Any.
        state: One of `TABLES`.
        limit: The most jobs to return.
        queue: Only of this queue.
        job_name: Only of this name.
        tag: Only with this tag.
    """
    given = {"queue": queue, "job_name": job_name, "tag": tag}
    wanted = {column: text for column, text in given.items() if text is not None}
    conditions = [sql.SQL("AND {} = {}").format(sql.Identifier(c), sql.Placeholder(c)) for c in wanted]
    statement = sql.SQL(_LATEST[state]).format(sql.SQL(" ").join(conditions))
    return _objects(connection, statement, {**wanted, "limit": limit})


def job(connection: Connection, job_id: int) -> dict[str, Any]:
    """One job whole, with the name of its state as `state`.

    Raises:
        UnknownJobError: No table has this id.
    """
    for state, table in TABLES.items():
        statement = sql.SQL("SELECT * FROM {table} WHERE id = %(id)s").format(table=sql.Identifier(table))
        for row in _objects(connection, statement, {"id": job_id}):
            return {"state": state, **row}
    raise UnknownJobError(
        f"no job has the id {job_id}: it was never staged, its transaction rolled back, "
        "it left in forward mode, or it was discarded or archived"
    )


def now(connection: Connection) -> datetime:
    """The time by the database's clock."""
    (moment,) = connection.execute("SELECT clock_timestamp()", binary=True).fetchall()[0]
    return moment  # type: ignore[no-any-return]


def inflight_state(job: Mapping[str, Any], now: datetime) -> str:
    """What a job in flight is: queued, running, retrying, deferred (it asked to be run later), or stalled.

    A job is stalled when its lease has run out: its worker died or stands still, and it will be pushed again.
    """
    if job["next_run_at"] is not None:
        has_failed = job["failed_at"] and (not job["claimed_at"] or job["failed_at"] >= job["claimed_at"])
        return "retrying" if has_failed else "deferred"
    if job["lease_expires_at"] is None:
        return "queued"
    return "running" if job["lease_expires_at"] > now else "stalled"


def readable(connection: Connection) -> Connection:
    """Make the connection give JSON that Python cannot read as the text that it is."""
    set_json_loads(_json_or_text, connection)
    return connection


def queues(connection: Connection) -> set[str]:
    """Names of all queues that have a job anywhere but in `finished_jobs`."""
    return {queue for (queue,) in connection.execute(_QUEUES)}


def _objects(
    connection: Connection, statement: Composed, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row, binary=True) as cursor:
        cursor.adapters.register_loader("xid8", Int8BinaryLoader)
        return cursor.execute(statement, parameters).fetchall()


def _json_or_text(data: str | bytes) -> Any:
    try:
        return json.loads(data, parse_float=_finite)
    except (ValueError, RecursionError):
        return data if isinstance(data, str) else bytes(data).decode()


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("no float, and JSON has no infinity")
    return number


def _count_finished(connection: Connection) -> tuple[int, bool]:
    (estimate,) = postgres.fetch_one(connection, _ESTIMATE, (EXACT_UP_TO,))
    if estimate is not None:
        return int(estimate), True
    (count,) = postgres.fetch_one(connection, "SELECT count(*) FROM finished_jobs")
    return int(count), False


def leader(connection: Connection) -> dict[str, str] | None:
    """Who drains, and since when; None if nobody does."""
    # A leader that has its lock and not yet written its name is about to.
    row: tuple[str | None, datetime | None] | None = connection.execute(_LEADER, binary=True).fetchone()
    if row is None or row[0] is None or row[1] is None:
        return None
    return {"name": row[0], "since": row[1].isoformat()}
