"""Clean-up of ended deliveries."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from drain.wire import scripts
from drain.wire.connection import reachable
from drain.wire.keys import dependents_key, ended_channel

# Lua takes only some thousand arguments.
_JOBS_PER_CALL = 1000


class EndedDeliveries:
    """Ended deliveries' hashes."""

    def __init__(self, client: redis.Redis, where: str) -> None:
        self._redis = client
        self._where = where
        self._tell_jobs = client.register_script(scripts.load("tell"))
        self._delete_jobs = client.register_script(scripts.load("delete_jobs"))

    def clear(self, rq_ids: Sequence[str]) -> list[str]:
        """Delete hashes; returns ids that RQ jobs depend on."""
        awaited: list[bytes] = []
        for first in range(0, len(rq_ids), _JOBS_PER_CALL):
            with reachable(self._where):
                awaited += self._delete_jobs(args=rq_ids[first : first + _JOBS_PER_CALL])
        return [rq_id.decode() for rq_id in awaited]

    def tell(self, job_ids: Sequence[int]) -> None:
        """Notify those waiting for these jobs' results."""
        # Measured: a PUBLISH per job costs as much as the job.
        for first in range(0, len(job_ids), _JOBS_PER_CALL):
            with reachable(self._where):
                self._tell_jobs(args=job_ids[first : first + _JOBS_PER_CALL])

    def clear_unless_awaited(self, rq_ids: Sequence[str]) -> list[str]:
        """Delete hashes unless awaited; returns those kept."""
        with reachable(self._where), self._redis.pipeline(transaction=False) as pipeline:
            for rq_id in rq_ids:
                pipeline.exists(dependents_key(rq_id))
            answers = pipeline.execute()
        has_dependents = dict(zip(rq_ids, answers, strict=True))
        self.clear([rq_id for rq_id in rq_ids if not has_dependents[rq_id]])
        return [rq_id for rq_id in rq_ids if has_dependents[rq_id]]


def tell(client: redis.Redis, job_id: int) -> None:
    """Notify of a job's end, on an RQ worker's connection."""
    client.publish(ended_channel(job_id), b"")
