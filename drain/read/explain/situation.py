"""Situation of one job: its row, its queue, who runs, and what Redis says; each is read at its first use."""

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

_NO_REDIS = "no Redis is named, so lists and workers are unknown: set DRAIN_REDIS_URL"


class Situation:
    """Facts about one job, as of the snapshot of the open transaction.

    Args:
        connection: In a transaction with one snapshot.
        redis: Redis that the leader pushes into; None if none is named.
        job: Row of the job.

    Attributes:
        connection: The same.
        job: The same.
        now: Time by the database's clock.
    """

    def __init__(self, connection: Connection, redis: Producer | None, job: Mapping[str, Any]) -> None:
        self.connection = connection
        self.job = job
        self.now: datetime = queries.now(connection)
        self._redis = redis

    @property
    def queue(self) -> str:
        """Queue of the job."""
        return str(self.job["queue"])

    @property
    def key(self) -> str | None:
        """Key of the job; None if it has none."""
        key: str | None = self.job["key"]
        return key

    @cached_property
    def due_at(self) -> datetime:
        """Time since which the job could have started: that of a retry, or the one at which it was staged or due."""
        columns = ("scheduled_at", "staged_at", "matured_at", "next_run_at")
        times: list[datetime | None] = [self.job.get(column) for column in columns]
        return max(time for time in times if time is not None)

    @cached_property
    def leader(self) -> dict[str, str] | None:
        """Name of the leader, and since when; None if none leads."""
        return queries.leader(self.connection)

    @cached_property
    def rules(self) -> RulesRow:
        """Rules of the queue; those of a queue without a row limit nothing."""
        return rules.read_of(self.connection, [self.queue]).get(self.queue, RulesRow(self.queue))

    @cached_property
    def pauses(self) -> list[Pause]:
        """Pauses that hold the job, the longest first."""
        job = (self.queue, str(self.job["job_name"]), self.key)
        held = (pause for pause in pauses.read(self.connection) if pause.applies(*job))
        return pauses.longest_first(held)

    @cached_property
    def running(self) -> list[Running]:
        """Jobs of the queue that count as running, the oldest first."""
        return causes.read_running(self.connection, self.queue)

    @cached_property
    def place(self) -> Place:
        """Number of jobs before the staged job."""
        return place_of(self.connection, self.job, self.due_at, self.rules)

    def before(self, *, of_key: bool) -> int:
        """Count the staged jobs before this one, in its queue or in its key; a retry comes before all of them."""
        if self.job["state"] != "staged":
            return 0
        return self.place.in_key if of_key else self.place.before

    @cached_property
    def redis_error(self) -> UnavailableError | OwnedByAnotherError | None:
        """Error with which Redis refuses this database; None if there is none, or no Redis is named."""
        try:
            self.remembers  # noqa: B018
        except (UnavailableError, OwnedByAnotherError) as error:
            return error
        return None

    @cached_property
    def remembers(self) -> bool:
        """True if Redis has what was pushed to it, as far as is known.

        Raises:
            UnavailableError: Redis does not answer.
            OwnedByAnotherError: Another database feeds the namespace.
        """
        if self._redis is None:
            return True
        self._redis.identify(*leader_progress.identity(self.connection))
        return self._redis.remembers()

    @property
    def knows_redis(self) -> bool:
        """True if Redis is named and answers."""
        return self._redis is not None and self.redis_error is None

    @cached_property
    def owner(self) -> Owner | None:
        """Other database that feeds the queue; None without one, or if Redis is not known."""
        redis = self._redis
        return redis.fed_by_others([self.queue]).get(self.queue) if redis and self.knows_redis else None

    @cached_property
    def workers(self) -> int | None:
        """Number of live workers of the queue; None if Redis is not known."""
        return len(self.crew.workers) if self.crew else None

    @cached_property
    def crew(self) -> Crew | None:
        """Workers of the queue, and the jobs of the busy ones; None if Redis is not known."""
        if self._redis is None or not self.knows_redis:
            return None
        return capacity.read_crew(self.connection, self._redis, self.queue)

    @cached_property
    def is_suspended(self) -> bool:
        """True if `rq suspend` holds all workers of this Redis."""
        return bool(self._redis and self.knows_redis and self._redis.is_suspended())

    def ids_before(self, within: int) -> int | None:
        """Count the ids before the delivered job in its list; None if it is not among the first `within`."""
        if self._redis is None:
            return None
        job_id, delivery = int(self.job["id"]), int(self.job["delivery"])
        return self._redis.ids_before(self.queue, job_id, delivery, within=within)

    @cached_property
    def listed(self) -> int:
        """Length of the queue's list; the number of its delivered jobs if Redis is not known."""
        if self._redis and self.knows_redis:
            return self._redis.depth(self.queue)
        return sum(job.is_delivered for job in self.running)

    @cached_property
    def depth(self) -> int | None:
        """Upper bound of the queue's list; None if no row has lately waited for room in it.

        If Redis is not known, the lowest bound that the leader gives a list by itself.
        """
        return self._redis.bound(self.queue) if self._redis and self.knows_redis else SHORTEST

    def explanation(self, state: str, finding: Finding) -> Explanation:
        """Build the explanation from a finding."""
        also = [] if self._redis or state in ("finished", "dead", "running") else [_NO_REDIS]
        name = str(self.job["job_name"])
        return Explanation(
            int(self.job["id"]), state, finding, self.now, name, self.queue, self.key, tuple(also)
        )
