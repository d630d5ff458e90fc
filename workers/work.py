"""`drain work`: RQ's own worker, with the job modules imported and the database connected once."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import redis
from rq import SimpleWorker
from rq.exceptions import StopRequested

from drain.config import VARIABLES, Settings
from drain.errors import UnavailableError
from drain.wire import BYTES, Wire
from workers import registry

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
# RQ lets Redis wait for the next job 15 seconds shorter than this, and gives it up 10 seconds after that.
_WORKER_TTL_SECONDS = 60


def work(settings: Settings, queues: Sequence[str], *, burst: bool) -> None:
    """Work on the queues, the first of them first, until a signal comes.

    SIGTERM and SIGINT end it after the job in hand. A second one interrupts that job, which counts as a
    failed attempt. A Redis that goes away, or refuses, is waited for.

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
    ended = threading.Event()
    with suppress(StopRequested):
        while not _worked_to_the_end(url, queues, ended, burst=burst):
            if burst:
                wire.ping()
            if not _wait_for(wire, ended):
                return


class _Worker(SimpleWorker):
    """RQ's own, which does not forget that it was told to end when Redis goes away meanwhile."""

    ended: threading.Event

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.ended.set()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def set_shutdown_requested_date(self) -> None:
        # RQ does this in the signal's handler: what it raises would come out of the job in hand.
        with suppress(redis.RedisError):
            super().set_shutdown_requested_date()  # type: ignore[no-untyped-call]

    def stop_listening(self) -> None:
        """Let the thread that listens for RQ's commands end, if RQ itself did not get to it."""
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        # The signal may have come before, while Redis was being waited for.
        self._stop_requested = self.ended.is_set()


def _worked_to_the_end(url: str, queues: Sequence[str], ended: threading.Event, *, burst: bool) -> bool:
    """Let RQ's worker run; False if it gave up because Redis went away under it, or refused."""
    connection = redis.Redis.from_url(url)
    connection.connection_pool.connection_kwargs.update(BYTES)
    worker: _Worker | None = None
    try:
        worker = _Worker(list(queues), connection=connection, worker_ttl=_WORKER_TTL_SECONDS)
        worker.ended = ended
        worker.work(burst=burst, with_scheduler=False, logging_level=None)
    # RQ waits for Redis between two jobs by itself, but not while it keeps its books of one.
    except (redis.ConnectionError, redis.TimeoutError) as error:
        log.warning("%s; no job is lost, waiting for Redis", error, extra={"event": "down"})
        if worker is not None:
            worker.stop_listening()
        return ended.is_set()
    if not burst and not ended.is_set():
        # At an answer that it does not expect, RQ logs an error and returns as if all were well.
        log.warning("RQ's worker has given up; no job is lost, starting it again", extra={"event": "down"})
        return False
    return True


def _wait_for(wire: Wire, ended: threading.Event) -> bool:
    """Return True once Redis answers again, or False when a signal asks to end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    pause = _FIRST_PAUSE_SECONDS
    while not ended.wait(random.uniform(pause / 2, pause)):  # noqa: S311
        try:
            wire.ping()
        except UnavailableError:
            pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
        else:
            log.info("Redis answers again", extra={"event": "up"})
            return True
    return False
