"""Status of the whole system: counts of each queue and each table, as of one instant.

Times are read in binary: psycopg reads the texts of no DateStyle but ISO, and the database may have another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from drain.database.postgres import Connection, fetch_one
from drain.read import stalls
from drain.read.queries import leader
from drain.read.wait_counts import count_waiting
from drain.tables import lanes, pauses
from drain.tables import rules as ruled
from drain.tables.columns import QUEUED, RETRYING, RUNNING
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow
from drain.tables.waiting import WAITS_SINCE, retrying_queues

# Upper bound of the finished jobs that are counted exactly. Beyond it the planner's estimate serves, since an exact
# count of a hundred million takes a minute.
EXACT_UP_TO = 1_000_000
# Upper bound of the waiting jobs of one cause that are counted.
WAITING_UP_TO = 100_000
# Upper bound of the queues with counts of their own, the ones with most jobs; all others are counted together.
MOST_QUEUES = 1000
OTHERS = "(others)"
# Age from which a due row is overdue; a leader moves it within a second.
OVERDUE_SECONDS = 5
_COUNT_STAGED = f"""
SELECT queue, count(*), count(*) FILTER (WHERE scheduled_at > now()), count(*) FILTER (
    WHERE greatest(scheduled_at, staged_at, matured_at) < now() - interval '{OVERDUE_SECONDS} seconds')
FROM staged_jobs GROUP BY queue
"""
# Time and id are compared as one array, so that the id of the oldest job needs neither a second scan nor a sort.
_COUNT_INFLIGHT = f"""
SELECT queue, count(*), count(*) FILTER (WHERE {RUNNING}),
    count(*) FILTER (WHERE {RETRYING}),
    pg_catalog.min(ARRAY[(date_part('epoch', {WAITS_SINCE}) * 1000000)::bigint, id])
        FILTER (WHERE {QUEUED}),
    (date_part('epoch', clock_timestamp()) * 1000000)::bigint
FROM inflight_jobs GROUP BY queue
"""
_COUNT_DEAD = "SELECT queue, count(*) FROM dead_jobs GROUP BY queue"
_ESTIMATE = """
SELECT CASE WHEN sum(reltuples) > %s::real THEN sum(reltuples)::bigint END
FROM pg_partition_tree('finished_jobs'::regclass) JOIN pg_class ON oid = relid::oid WHERE isleaf AND reltuples > 0::real
"""


@dataclass(slots=True)
class QueueCounts:
    """Counts of one queue. `inflight` is the sum of `queued`, `running` and `retrying`.

    Attributes:
        staged: Rows in `staged_jobs`.
        scheduled: Staged jobs whose time has not come.
        overdue: Staged jobs that have been due for more than five seconds.
        inflight: Jobs that were drained, and are not finished.
        queued: Jobs in flight that wait for a worker, or are about to be delivered again since their worker died.
        running: Claimed jobs whose lease holds.
        retrying: Jobs that wait for the time of their next attempt, after a failure or a deferral.
        oldest_unclaimed_id: Id of the queued job that has waited for longest; None if none is queued.
        oldest_unclaimed_seconds: Age of that wait. A later attempt waits since the last one began or failed.
        dead: Jobs that were given up.
        failing: Five of its jobs have failed since its last finish, and some of them wait to be tried again.
        stalled_seconds: Wait of its jobs, if the queue stalls (`drain.read.stalls`); None if not.
        workers: Number of live workers that run its jobs; None while Redis has not been asked.
        free: Number of those that could begin a job at once; None as for `workers`.
        waiting: Number of jobs that wait, staged or in flight, by cause, one of `obstacles.CAUSES`; counted up to
            100,000, which means that or more.
        paused: Pause of the whole queue: until when, by whom, why; None if the queue is not paused.
        rules: Rules of the queue, by the names of the columns of `queues`; empty if it has none.
        held: Reason why the leader cannot follow its rules, and holds the queue; None if it does not.
        redis_depth: Number of ids in its Redis list, with those of plain RQ jobs and of other databases; None while
            Redis has not been asked.
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
    waiting: dict[str, int] = field(default_factory=dict)
    paused: dict[str, str | None] | None = None
    rules: dict[str, Any] = field(default_factory=dict)
    held: str | None = None
    stalled_seconds: float | None = None
    workers: int | None = None
    free: int | None = None
    redis_depth: int | None = None

    @property
    def is_unattended(self) -> bool:
        """True if jobs wait, or will be tried again, and no worker runs them."""
        return self.workers == 0 and self.staged - self.scheduled + self.queued + self.retrying > 0


class Section(Protocol):
    """Part that an extension adds to a status."""

    def as_json(self) -> Any:
        """As JSON types."""

    def lines(self) -> Iterable[Any]:
        """Lines for people, as texts of Rich."""


@dataclass(slots=True)
class Status:
    """Status of the whole system.

    Attributes:
        staged: Rows in `staged_jobs`, the scheduled ones among them.
        scheduled: Staged jobs whose time has not come.
        overdue: Staged jobs that have been due for more than five seconds.
        inflight: Jobs that were drained, and are not finished: `queued`, `running` and `retrying`; see `QueueCounts`.
        queued: Jobs that wait for a worker.
        running: Jobs that a worker has claimed.
        retrying: Jobs that wait for the time of their next attempt.
        finished: Finished jobs; an estimate beyond a million, and then `finished_is_estimate`.
        dead: Jobs that were given up.
        oldest_staged_age_seconds: Time for which the oldest due row has been due; 0 if none waits.
        leader: Name of the leader, and since when it leads; None if there is none.
        queues: Counts by queue.
        sections: What extensions of `drain status` add, by name.
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
    sections: dict[str, Section] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON types."""
        whole = asdict(self)
        return whole | {name: section.as_json() for name, section in whole.pop("sections").items()}


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
        for queue, seconds in stalls.stalled_queues(connection).items():
            queues[queue].stalled_seconds = seconds
        result.finished, result.finished_is_estimate = _count_finished(connection)
        result.oldest_staged_age_seconds = max(lanes.oldest_due_seconds(connection).values(), default=0.0)
        result.leader = leader(connection)
        queues = _with_others(queues)
        _read_admission(connection, queues)
    result.queues = dict(queues)
    for name in _SUMMED:
        setattr(result, name, sum(getattr(counts, name) for counts in queues.values()))
    return result


def _with_others(queues: defaultdict[str, QueueCounts]) -> defaultdict[str, QueueCounts]:
    """Keep the queues with most jobs, and count the jobs of all others together."""
    if len(queues) <= MOST_QUEUES:
        return queues
    largest = sorted(queues, key=lambda queue: -_jobs_of(queues[queue]))
    kept = defaultdict(QueueCounts, ((queue, queues[queue]) for queue in largest[:MOST_QUEUES]))
    others = kept[OTHERS]
    for queue in largest[MOST_QUEUES:]:
        for name in _SUMMED:
            setattr(others, name, getattr(others, name) + getattr(queues[queue], name))
    return kept


def _jobs_of(counts: QueueCounts) -> int:
    return counts.staged + counts.inflight + counts.dead


def _count_inflight(
    counts: QueueCounts, inflight: int, running: int, retrying: int, oldest: list[int] | None, now: int
) -> None:
    """Fill in what one row of `_COUNT_INFLIGHT` says; times are in microseconds."""
    counts.inflight, counts.running, counts.retrying = inflight, running, retrying
    counts.queued = inflight - running - retrying
    if oldest is not None:
        since, counts.oldest_unclaimed_id = oldest
        counts.oldest_unclaimed_seconds = max(0, now - since) / 1_000_000


def _read_admission(connection: Connection, queues: dict[str, QueueCounts]) -> None:
    """Fill in rules and pauses, and the causes for which jobs wait."""
    # Each of these statements reads the head of an index, whatever the planner believes about the tables.
    connection.execute("SET LOCAL enable_seqscan = off")
    many = list(queues) if OTHERS in queues else None
    for queue, waiting in count_waiting(connection, WAITING_UP_TO, named=many).items():
        if queue in queues or many is None:
            queues[queue].waiting = waiting
    # Rules and pauses of queues without any job are shown too: these queues may be misspelt.
    found = ruled.read(connection, most=MOST_QUEUES + 1) | ruled.read_of(connection, list(queues))
    for rules in found.values():
        counts = queues[rules.queue] if rules.error else _counts_of(rules.queue, queues)
        counts.rules, counts.held = _rules(rules), rules.error
    for pause in reversed(pauses.longest_first(pauses.read(connection))):
        if pause.queue is not None and pause.job_name is None and pause.key is None:
            _counts_of(pause.queue, queues).paused = _pause(pause)
    if OTHERS in queues:
        queues[OTHERS].rules, queues[OTHERS].paused = {}, None


def _counts_of(queue: str, queues: dict[str, QueueCounts]) -> QueueCounts:
    return queues[queue if queue in queues or len(queues) < MOST_QUEUES else OTHERS]


def _rules(rules: RulesRow) -> dict[str, Any]:
    names = ("running", "running_per_key", "rate", "rate_per_key", "fair", "ordered")
    given = {name: value for name in names if (value := getattr(rules, name))}
    return given | ({"on_dead": rules.on_dead} if rules.ordered else {})


def _pause(pause: Pause) -> dict[str, str | None]:
    return {
        "until": pause.until.isoformat() if pause.until else None,
        "by": pause.paused_by,
        "reason": pause.reason,
        "since": pause.paused_at.isoformat(),
    }


def _count_finished(connection: Connection) -> tuple[int, bool]:
    (estimate,) = fetch_one(connection, _ESTIMATE, (EXACT_UP_TO,))
    if estimate is not None:
        return int(estimate), True
    (count,) = fetch_one(connection, "SELECT count(*) FROM finished_jobs")
    return int(count), False


def count_staged(connection: Connection, up_to: int) -> int:
    """Count the rows of `staged_jobs`, up to `up_to`, so that no more of them are read."""
    statement = "SELECT count(*) FROM (SELECT FROM staged_jobs LIMIT %s) AS rows"
    (count,) = fetch_one(connection, statement, (up_to,))
    return int(count)


def count_dead(connection: Connection, up_to: int) -> int:
    """Count the rows of `dead_jobs`, up to `up_to`, so that no more of them are read."""
    statement = "SELECT count(*) FROM (SELECT FROM dead_jobs LIMIT %s) AS rows"
    (count,) = fetch_one(connection, statement, (up_to,))
    return int(count)


def count_stale(connection: Connection) -> int:
    """Return the number of outcomes that have been refused so far because their token was stale."""
    (count,) = fetch_one(connection, "SELECT coalesce(max(number), 0) FROM stale_finishes")
    return int(count)
