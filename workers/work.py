"""`drain work`: RQ's own worker, with the job modules imported and the database connected once."""

from __future__ import annotations

import os
from collections.abc import Sequence

import redis
from rq import SimpleWorker

from drain import wire
from drain.config import VARIABLES, Settings
from workers import registry


def work(settings: Settings, queues: Sequence[str], *, burst: bool) -> None:
    """Work on the queues, the first of them first, until a signal comes.

    SIGTERM and SIGINT end it after the job in hand. A second one interrupts that job, which counts as a
    failed attempt.

    Args:
        settings: Where, and which job modules.
        queues: Names of the queues.
        burst: End when the queues are empty.

    Raises:
        JobModuleError: A job module does not import.
        UnavailableError: Redis cannot be reached at the start; later it is waited for.
    """
    registry.load(settings.jobs)
    url = settings.required_redis_url
    wire.Wire(url, settings.namespace).ping()
    # The fixed entry point reads the environment, as it must in a worker that RQ itself started.
    os.environ[VARIABLES["database_url"]] = settings.database_url
    os.environ[VARIABLES["jobs"]] = ",".join(settings.jobs)
    worker = SimpleWorker(list(queues), connection=redis.Redis.from_url(url))
    worker.work(burst=burst, with_scheduler=False, logging_level=None)
