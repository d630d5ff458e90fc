"""Calls by RQ's own worker: the delivery that one names, what RQ is answered, and the worker's entry for its queue."""

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

# Pause after the id of a job of another database: a worker that finds only such ids takes one of them at a time.
_FOREIGN_PAUSE_SECONDS = 2.0
_ANY_NUMBER = 2**31
# No delivery number will ever have more digits, and PostgreSQL could not read them.
_DIGITS = 18


def tell_of_end(client: Redis, job_id: int) -> None:
    """Tell those who wait for the result of a job that an attempt has ended."""
    from redis import RedisError

    from drain.wire.ended import tell

    # Whoever waits looks at the table once a second in any case.
    with suppress(RedisError):
        tell(client, job_id)


def register_worker(job: Job) -> None:
    """Enter the stock worker that runs a job into RQ's set for the queue: after a loss of data Redis lacks it there.

    RQ enters a worker only when it starts. The leader reads this set to find queues that need no hashes.
    """
    from redis import RedisError
    from rq import Worker
    from rq.worker_registration import WORKERS_BY_QUEUE_KEY

    if job.worker_name and job.origin:
        # The job needs no Redis to run.
        with suppress(RedisError):
            worker = Worker.redis_worker_namespace_prefix + job.worker_name
            job.connection.sadd(WORKERS_BY_QUEUE_KEY % job.origin, worker)


def delivery_of(job_id: int, rq_id: str) -> int:
    """Read the delivery number in the RQ id of a tracked job, of whatever namespace.

    Returns:
        The number; 0, which no delivery has, if the id does not name a delivery of this job: RQ's tools have made a
        copy, or the call was enqueued by hand.
    """
    # The form of `drain.wire.ids`, which is not imported: that would cost each forked child some milliseconds.
    named, _, number = rq_id.rpartition("-")
    is_ours = (
        named.endswith(f"-{job_id}") and number.isdecimal() and number.isascii() and len(number) <= _DIGITS
    )
    return int(number) if is_ours else 0


def give_back(job_id: int, queue: str | None, installation: str | None) -> Retry:
    """Return RQ's order to put a job of another database back into its queue, after a pause."""
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
