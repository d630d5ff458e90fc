"""Free and busy workers.

free     a live worker that could start a job at once (`drain.wire.workers`)
busy     any other: full, with no job ended for a second, or suspended
stalled  a queue whose jobs have waited a minute while none finished (`Queue.stalled_seconds`)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Protocol

from drain.database.postgres import Connection
from drain.formatting import duration, visible
from drain.read import claimed
from drain.read.claimed import Held
from drain.wire import Producer
from drain.wire.workers import Worker

_MOST_NAMED = 3
# In this many jobs' time, a worker should have started one.
_LATE = 5


@dataclass(frozen=True)
class Crew:
    """Workers, and the oldest job of each busy one, except plain RQ jobs."""

    workers: Sequence[Worker]
    held: Sequence[Held]

    @property
    def is_busy(self) -> bool:
        """True if there are workers and none is free."""
        return bool(self.workers) and not any(each.is_free for each in self.workers)

    @property
    def plain(self) -> list[Worker]:
        """Busy workers with a plain RQ job."""
        known = {claimed.host_and_pid(each.process) for each in self.held}
        return [each for each in self.workers if not each.is_free and (each.host, each.pid) not in known]

    @property
    def began_at(self) -> datetime | None:
        """Latest claim, if known."""
        return max((each.latest_at for each in self.held), default=None)

    def stuck_seconds(self, now: datetime) -> float:
        """Return seconds since the last claim if all are busy, infinite for plain RQ jobs, else 0."""
        if not self.is_busy:
            return 0.0
        return (now - self.began_at).total_seconds() if self.began_at else math.inf

    def is_stuck(self, now: datetime, per_second: float) -> bool:
        """Return True if no job has started for too long."""
        return self.stuck_seconds(now) > 1 + (_LATE / per_second if per_second else 0.0)

    def busy_with(self, now: datetime) -> str:
        """Describe the running jobs."""

        def kind(job: Held) -> tuple[str, str]:
            return job.job_name, job.queue

        kinds = [list(jobs) for _, jobs in groupby(sorted(self.held, key=kind), key=kind)]
        kinds.sort(key=len, reverse=True)
        named = [
            f"{len(jobs):,} with {visible(jobs[0].job_name)} of queue {visible(jobs[0].queue)} "
            f"(for {duration((now - min(job.claimed_at for job in jobs)).total_seconds())})"
            for jobs in kinds[:_MOST_NAMED]
        ]
        others = sum(map(len, kinds[_MOST_NAMED:]))
        named += [f"{others:,} with other jobs"] if others else []
        named += [f"{len(self.plain):,} with plain RQ jobs"] if self.plain else []
        return ", ".join(named)


class Staffed(Protocol):
    """Queue with worker counts."""

    workers: int | None
    free: int | None


def add_workers(queues: Mapping[str, Staffed], crews: Mapping[str, Sequence[Worker]]) -> None:
    """Fill in each queue's total and free workers."""
    for name, crew in crews.items():
        queues[name].workers = len(crew)
        queues[name].free = sum(each.is_free for each in crew)


def read_crew(connection: Connection, redis: Producer, queue: str) -> Crew:
    """Read a queue's workers and jobs.

    Raises:
        UnavailableError: Redis does not answer.
    """
    workers = redis.crews([queue])[queue]
    busy = {(each.host, each.pid) for each in workers if not each.is_free}
    held = claimed.held(connection) if busy else []
    return Crew(workers, [each for each in held if claimed.host_and_pid(each.process) in busy])
