"""Lazily read facts about one job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from drain.admission.depths import SHORTEST
from drain.database.postgres import Connection
from drain.errors import OwnedByAnotherError, UnavailableError
from drain.read import capacity, causes, queries
from drain.read.capacity import Crew
from drain.read.causes import Running
from drain.read.explain.explanation import Explanation, Finding
from drain.read.explain.places import Place, place_of
from drain.tables import leader_progress, pauses, rules
from drain.tables.pauses import Pause
from drain.tables.rules import RulesRow
from drain.wire import Producer
from drain.wire.namespace_guard import Owner

_NO_REDIS = "Redis is not configured, so lists and workers are unknown: set DRAIN_REDIS_URL"


class Situation:
    """Facts about one job, in the open snapshot."""

    def __init__(self, connection: Connection, redis: Producer | None, job: Mapping[str, Any]) -> None:
        self.connection = connection
        self.job = job
        self.now: datetime = queries.now(connection)
        self._redis = redis

    def of(self, job: Mapping[str, Any]) -> Situation:
        """Return the situation of another job."""
        return Situation(self.connection, self._redis, job)

    @property
    def queue(self) -> str:
        """Job's queue."""
        return str(self.job["queue"])

    @property
    def key(self) -> str | None:
        """Job's key."""
        key: str | None = self.job["key"]
        return key

    @cached_property
    def due_at(self) -> datetime:
        """Earliest possible start."""
        columns = ("scheduled_at", "staged_at", "matured_at", "next_run_at")
        times: list[datetime | None] = [self.job.get(column) for column in columns]
        return max(time for time in times if time is not None)

    @cached_property
    def leader(self) -> dict[str, str] | None:
        """Leader's name and start."""
        return queries.leader(self.connection)

    @cached_property
    def rules(self) -> RulesRow:
        """Queue's rules, by default without limits."""
        return rules.read_of(self.connection, [self.queue]).get(self.queue, RulesRow(self.queue))

    @cached_property
    def pauses(self) -> list[Pause]:
        """Pauses of the job, longest first."""
        job = (self.queue, str(self.job["job_name"]), self.key)
        held = (pause for pause in pauses.read(self.connection) if pause.applies(*job))
        return pauses.longest_first(held)

    @cached_property
    def running(self) -> list[Running]:
        """Running jobs, oldest first."""
        return causes.read_running(self.connection, self.queue)

    @cached_property
    def place(self) -> Place:
        """Staged jobs ahead."""
        return place_of(self.connection, self.job, self.due_at, self.rules)

    def before(self, *, of_key: bool) -> int:
        """Count the staged jobs ahead; 0 for a retry, which precedes them."""
        if self.job["state"] != "staged":
            return 0
        return self.place.in_key if of_key else self.place.before

    @cached_property
    def redis_error(self) -> UnavailableError | OwnedByAnotherError | None:
        """Error from Redis."""
        try:
            self.remembers  # noqa: B018
        except (UnavailableError, OwnedByAnotherError) as error:
            return error
        return None

    @cached_property
    def remembers(self) -> bool:
        """True if Redis kept all pushed ids, as far as known.

        Raises:
            UnavailableError: Redis does not answer.
            OwnedByAnotherError: The namespace belongs to another database.
        """
        if self._redis is None:
            return True
        self._redis.identify(*leader_progress.identity(self.connection))
        return self._redis.remembers()

    @property
    def knows_redis(self) -> bool:
        """True if Redis is configured and answers."""
        return self._redis is not None and self.redis_error is None

    @cached_property
    def owner(self) -> Owner | None:
        """Queue's other owner, if any."""
        redis = self._redis
        return redis.fed_by_others([self.queue]).get(self.queue) if redis and self.knows_redis else None

    @cached_property
    def workers(self) -> int | None:
        """Live workers, if known."""
        return len(self.crew.workers) if self.crew else None

    @cached_property
    def crew(self) -> Crew | None:
        """Workers and their jobs, if known."""
        if self._redis is None or not self.knows_redis:
            return None
        return capacity.read_crew(self.connection, self._redis, self.queue)

    @cached_property
    def is_suspended(self) -> bool:
        """True during `rq suspend`."""
        return bool(self._redis and self.knows_redis and self._redis.is_suspended())

    def ids_before(self, within: int) -> int | None:
        """Count ids ahead in the list, if among the first `within`."""
        if self._redis is None:
            return None
        job_id, delivery = int(self.job["id"]), int(self.job["delivery"])
        return self._redis.ids_before(self.queue, job_id, delivery, within=within)

    @cached_property
    def listed(self) -> int:
        """Length of the list; without Redis, of the delivered jobs."""
        if self._redis and self.knows_redis:
            return self._redis.depth(self.queue)
        return sum(job.is_delivered for job in self.running)

    @cached_property
    def depth(self) -> int | None:
        """Bound of the list, if rows recently waited; without Redis, the lowest."""
        return self._redis.bound(self.queue) if self._redis and self.knows_redis else SHORTEST

    def explanation(self, state: str, finding: Finding) -> Explanation:
        """Build the explanation."""
        also = [] if self._redis or state in ("finished", "dead", "running") else [_NO_REDIS]
        name = str(self.job["job_name"])
        return Explanation(
            int(self.job["id"]), state, finding, self.now, name, self.queue, self.key, tuple(also)
        )
