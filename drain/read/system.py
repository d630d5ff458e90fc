"""The whole system at one instant.

Times are read in binary: psycopg parses text only in DateStyle ISO.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from drain.database.postgres import Connection, fetch_one
from drain.read import claimed, queries, queues
from drain.read.queue import Queue
from drain.read.snapshots import snapshot
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow

# Sum of the smaller queues, if there are very many.
OTHERS = "(others)"
# Above this, use the planner's estimate: counting 100 million rows takes a minute.
FINISHED_UP_TO = 100_000
GROUPED_UP_TO = 1_000
_ESTIMATE = """
SELECT coalesce(sum(reltuples), 0)::bigint
FROM pg_partition_tree('finished_jobs'::regclass) JOIN pg_class ON oid = relid::oid WHERE isleaf AND reltuples > 0::real
"""
_DEAD_GROUPS = """
SELECT count(*) FROM (
    SELECT DISTINCT job_name, reason, last_error ->> 'type'::text AS type FROM (
        SELECT job_name, reason, last_error FROM dead_jobs LIMIT %s) AS some_of_them) AS found
"""
_SUMMED = ("ready", "scheduled", "blocked", "queued", "running", "retrying", "parked", "dead")


class Section(Protocol):
    """Extension's part of a status."""

    def as_json(self) -> Any:
        """Convert to JSON types."""

    def lines(self) -> Iterable[Any]:
        """Render as Rich texts."""


@dataclass(slots=True)
class System:
    """The whole system.

    Attributes:
        now: The database's clock.
        running: Longest-running jobs.
        dead_groups: Groups among the first `GROUPED_UP_TO`.
        finished: 0 if not counted.
        sections: From extensions, by name.
    """

    now: datetime
    leader: dict[str, str] | None = None
    queues: dict[str, Queue] = field(default_factory=dict)
    running: list[dict[str, Any]] = field(default_factory=list)
    dead_groups: int = 0
    finished: int = 0
    finished_is_estimate: bool = False
    sections: dict[str, Section] = field(default_factory=dict)

    def total(self, name: str) -> int:
        """Sum an attribute of all queues."""
        return sum(getattr(queue, name) for queue in self.queues.values())

    def is_estimate(self, name: str) -> bool:
        """Return True for an inexact total."""
        return any(queue.is_estimate(name) for queue in self.queues.values() if getattr(queue, name))

    @property
    def lag_seconds(self) -> float:
        """Longest wait for the leader."""
        return max((queue.lag_seconds for queue in self.queues.values()), default=0.0)

    @property
    def ready_seconds(self) -> float:
        """Age of the oldest due staged job."""
        return max((queue.ready_seconds for queue in self.queues.values()), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        names = (
            "staged",
            "scheduled",
            "blocked",
            "overdue",
            "inflight",
            "queued",
            "running",
            "retrying",
            "parked",
            "dead",
        )
        return {
            **{name: self.total(name) for name in names},
            "estimates": sorted({state for queue in self.queues.values() for state in queue.estimates}),
            "finished": self.finished,
            "finished_is_estimate": self.finished_is_estimate,
            "oldest_staged_age_seconds": self.ready_seconds,
            "leader": self.leader,
            "queues": {
                name: {each: getattr(queue, each) for each in names} | _queue_as_json(queue)
                for name, queue in self.queues.items()
            },
            **{name: section.as_json() for name, section in self.sections.items()},
        }


def read(connection: Connection, *, longest: int = 0, with_finished: bool = False) -> System:
    """Read the system, without Redis, in one snapshot with the `longest` running jobs.

    Args:
        connection: Outside a transaction.
    """
    with snapshot(connection):
        found = System(queries.now(connection), queries.leader(connection), queues.read(connection))
        if longest:
            found.running = claimed.longest(connection, longest)
        (found.dead_groups,) = fetch_one(connection, _DEAD_GROUPS, (GROUPED_UP_TO,))
        if with_finished:
            found.finished = _count("finished_jobs", connection, FINISHED_UP_TO)
            if found.finished == FINISHED_UP_TO:
                (estimate,) = fetch_one(connection, _ESTIMATE)
                found.finished, found.finished_is_estimate = max(found.finished, estimate), True
    return found


def with_others(found: dict[str, Queue]) -> dict[str, Queue]:
    """Keep held and largest queues; sum the others."""
    largest = sorted(found, key=lambda name: (found[name].held is None, -found[name].jobs))
    kept = {name: found[name] for name in largest[: queues.MOST_QUEUES]}
    for name in largest[queues.MOST_QUEUES :]:
        others = kept.setdefault(OTHERS, Queue())
        for each in _SUMMED:
            setattr(others, each, getattr(others, each) + getattr(found[name], each))
        others.estimates |= found[name].estimates
    return kept


def count_staged(connection: Connection, up_to: int) -> int:
    """Count staged jobs, up to a bound."""
    return _count("staged_jobs", connection, up_to)


def count_dead(connection: Connection, up_to: int) -> int:
    """Count dead jobs, up to a bound."""
    return _count("dead_jobs", connection, up_to)


def count_stale(connection: Connection) -> int:
    """Count the outcomes refused for stale tokens."""
    (count,) = fetch_one(connection, "SELECT coalesce(max(number), 0) FROM stale_finishes")
    return int(count)


def _count(table: str, connection: Connection, up_to: int) -> int:
    statement = f"SELECT count(*) FROM (SELECT FROM {table} LIMIT %s) AS rows"
    (count,) = fetch_one(connection, statement, (up_to,))
    return int(count)


def _queue_as_json(queue: Queue) -> dict[str, Any]:
    return {
        "estimates": sorted(queue.estimates),
        "waiting": queue.waiting,
        "oldest_unclaimed_id": queue.oldest_queued_id,
        "oldest_unclaimed_seconds": queue.queued_seconds if queue.oldest_queued_id is not None else None,
        "per_second": queue.per_second,
        "failing": queue.failing,
        "stalled_seconds": queue.stalled_seconds or None,
        "paused": _pause(queue.paused) if queue.paused else None,
        "rules": _rules(queue.rules) if queue.rules else {},
        "held": queue.held,
        "workers": queue.workers,
        "free": queue.free,
        "redis_depth": queue.redis_depth,
    }


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
