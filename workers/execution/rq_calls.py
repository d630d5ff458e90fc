"""Calls by RQ's own worker."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis
    from rq import Retry
    from rq.job import Job

log = logging.getLogger(__name__)

# After another database's id: a worker that finds only such ids takes them singly.
_FOREIGN_PAUSE_SECONDS = 2.0
_ANY_NUMBER = 2**31
# Of a delivery number.
_DIGITS = 18


def tell_of_end(client: Redis, job_id: int) -> None:
    """Announce the end of a job to waiting callers."""
    from redis import RedisError

    from drain.wire.ended import tell

    # Waiting callers also poll the table.
    with suppress(RedisError):
        tell(client, job_id)


def register_worker(job: Job) -> None:
    """Enter a job's stock worker into RQ's set for the queue, in case Redis lost it.

    RQ does so only at the worker's start; the leader reads the set to find queues that need no hashes.
    """
    from redis import RedisError
    from rq import Worker
    from rq.worker_registration import WORKERS_BY_QUEUE_KEY

    if job.worker_name and job.origin:
        # The job needs no Redis.
        with suppress(RedisError):
            worker = Worker.redis_worker_namespace_prefix + job.worker_name
            job.connection.sadd(WORKERS_BY_QUEUE_KEY % job.origin, worker)


def delivery_of(job_id: int, rq_id: str) -> int:
    """Return the delivery number in a tracked job's RQ id; 0 for any other id, such as a copy."""
    # As in `drain.wire.ids`, whose import would cost each forked child milliseconds.
    named, _, number = rq_id.rpartition("-")
    is_ours = (
        named.endswith(f"-{job_id}") and number.isdecimal() and number.isascii() and len(number) <= _DIGITS
    )
    return int(number) if is_ours else 0


def give_back(job_id: int, queue: str | None, installation: str | None) -> Retry:
    """Return RQ's order to requeue another database's job after a pause."""
    from rq import Retry

    log.error(
        "queue %s holds jobs of another database, such as job %d of installation %s: they are given back to its own "
        "workers; give the queues of the two databases different names",
        queue,
        job_id,
        installation,
        extra={"event": "foreign_job", "queue": queue},
    )
    sleep(_FOREIGN_PAUSE_SECONDS)
    return Retry(max=_ANY_NUMBER)
