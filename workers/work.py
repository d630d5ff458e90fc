"""`drain work`: RQ's own worker, with the job modules imported and the database connected once."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Sequence

import redis
from rq import SimpleWorker

from drain.config import VARIABLES, Settings
from drain.errors import UnavailableError
from drain.wire import Wire
from workers import registry

log = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 5.0


def work(settings: Settings, queues: Sequence[str], *, burst: bool) -> None:
    """Work on the queues, the first of them first, until a signal comes.

    SIGTERM and SIGINT end it after the job in hand. A second one interrupts that job, which counts as a
    failed attempt. A Redis that goes away is waited for.

    Args:
        settings: Where, and which job modules.
        queues: Names of the queues.
        burst: End when the queues are empty.

    Raises:
        JobModuleError: A job module does not import.
        UnavailableError: Redis cannot be reached at the start, or went away in a burst.
    """
    registry.load(settings.jobs)
    url = settings.required_redis_url
    wire = Wire(url, settings.namespace)
    wire.ping()
    # The fixed entry point reads the environment, as it must in a worker that RQ itself started.
    os.environ[VARIABLES["database_url"]] = settings.database_url
    os.environ[VARIABLES["jobs"]] = ",".join(settings.jobs)
    while not _worked_to_the_end(url, queues, burst=burst):
        if burst:
            wire.ping()
        if not _wait_for(wire):
            return


def _worked_to_the_end(url: str, queues: Sequence[str], *, burst: bool) -> bool:
    """Let RQ's worker run; False if it gave up because Redis went away under it."""
    worker = SimpleWorker(list(queues), connection=redis.Redis.from_url(url))
    try:
        worker.work(burst=burst, with_scheduler=False, logging_level=None)
    # RQ waits for Redis between two jobs by itself, but not while it keeps its books of one.
    except (redis.ConnectionError, redis.TimeoutError) as error:
        log.warning("%s; no job is lost, waiting for Redis", error, extra={"event": "down"})
        return False
    return True


def _wait_for(wire: Wire) -> bool:
    """Return True once Redis answers again, or False when a signal asks to end."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    pause = 0.1
    while not ended.wait(random.uniform(0.05, pause)):  # noqa: S311
        try:
            wire.ping()
        except UnavailableError:
            pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
        else:
            log.info("Redis answers again", extra={"event": "up"})
            return True
    return False
