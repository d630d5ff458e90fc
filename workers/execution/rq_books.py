"""RQ's records of tracked jobs: dead ones fail there too, and dependents of finished ones are released.

RQ's code writes them in the thread that serves RQ's tools, so a job that just finishes pays nothing; `drain work` only
deletes a delivery's hash.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import redis
from rq import Queue, SimpleWorker, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.worker import BaseWorker

from drain import wire
from drain.wire import FAILED_TTL_SECONDS, read_call
from drain.workers.execution.death import Death

log = logging.getLogger(__name__)
_nothing = logging.getLogger(f"{__name__}.nothing")
_nothing.disabled = True

# More are dropped while RQ is slow or Redis unavailable.
_MOST_WAITING = 1000
# Per turn, about a second's worth: the thread has a heartbeat to keep.
_AT_ONCE = 100
# Of a set of dependents after its job's end.
_KEPT_SECONDS = 60


class _Unread(bytes):
    """Pickled data of unknown origin."""


class _Sealed:
    """Serializer that never unpickles, as anyone may have written the data."""

    @staticmethod
    def loads(data: bytes) -> object:
        return read_call(data) or _Unread(data)

    @staticmethod
    def dumps(value: object) -> bytes:
        return bytes(value) if isinstance(value, _Unread) else pickle.dumps(value)


class RQBooks:
    """Entries for RQ's records; any thread adds, one writes.

    Args:
        ring: Wakes the writing thread.
    """

    def __init__(self, ring: Callable[[], None] = lambda: None) -> None:
        self._ring = ring
        self._deaths: deque[tuple[str, Death]] = deque()
        self._finished: deque[tuple[str, str]] = deque(maxlen=_MOST_WAITING)

    @property
    def waits(self) -> bool:
        """True if entries are left."""
        return bool(self._deaths or self._finished)

    def died(self, rq_id: str, death: Death) -> bool:
        """Add a dead job's delivery; if False, the caller must delete its hash."""
        if len(self._deaths) >= _MOST_WAITING:
            return False
        self._deaths.append((rq_id, death))
        self._ring()
        return True

    def finished(self, rq_id: str, queue: str) -> None:
        """Add a finished delivery with RQ dependents."""
        self._finished.append((rq_id, queue))
        self._ring()

    def write(self, worker: BaseWorker) -> None:
        """Write some entries, and call exception handlers.

        Raises:
            redis.RedisError: Redis is unavailable; the rest waits.
        """
        for _ in range(_AT_ONCE):
            if self._finished:
                _write(_release, worker, *self._finished[0])
                self._finished.popleft()
            elif self._deaths:
                _write(_fail, worker, *self._deaths[0])
                self._deaths.popleft()
            else:
                return
        self._ring()

    def write_alone(self, redis_url: str) -> None:
        """Write all entries, without exception handlers."""
        with suppress(redis.RedisError), wire.connect(redis_url) as connection:
            while self.waits:
                self.write(SimpleWorker([], connection=connection))


def _write(act: Callable[..., None], worker: BaseWorker, rq_id: str, about: object) -> None:
    try:
        act(worker, rq_id, about)
    # Any Redis client may have written these values.
    except Exception as error:
        if isinstance(error, redis.RedisError) and not isinstance(error, redis.ResponseError):
            raise
        log.warning(
            "the end of RQ job %s could not be written to RQ's records: %r",
            rq_id,
            error,
            extra={"event": "rq_books_not_written"},
        )


def _release(worker: BaseWorker, rq_id: str, queue: str) -> None:
    job = Job(rq_id, connection=worker.connection)
    job.origin, job._status = queue, JobStatus.FINISHED
    _enqueue_dependents(job)
    # RQ leaves dependents that await other jobs too, and lets the set expire with the parent.
    worker.connection.expire(job.dependents_key, _KEPT_SECONDS)


def _enqueue_dependents(job: Job) -> None:
    queue = Queue(job.origin, connection=job.connection, serializer=_Sealed)
    queue.enqueue_dependents(job, refresh_job_status=False)


def _fail(worker: BaseWorker, rq_id: str, death: Death) -> None:
    error, is_known = death.exception(), True
    try:
        job = _fetch(worker, rq_id, death)
    except NoSuchJobError:
        # It could not be claimed, so its name is unknown; a new RQ job would have no call.
        job, is_known = Job(rq_id, connection=worker.connection), False
        job.func_name, job.args, job.kwargs, job.description = "", (), {}, f"#{death.job_id}"
    job.origin, job._status = job.origin or death.queue, JobStatus.FAILED
    job.failure_ttl, job.ended_at = FAILED_TTL_SECONDS, datetime.now(UTC)
    if is_known:
        with worker.connection.pipeline() as pipeline:
            job.set_status(JobStatus.FAILED, pipeline=pipeline)
            job._handle_failure(_text(error), pipeline, worker_name=worker.name)
            pipeline.execute()
    _enqueue_dependents(job)
    _call_handlers(worker, job, error)


def _fetch(worker: BaseWorker, rq_id: str, death: Death) -> Job:
    if death.job_name and not worker.connection.exists(wire.job_key(rq_id)):
        wire.write_hash(
            worker.connection, rq_id, death.queue, death.job_name, None, seconds=FAILED_TTL_SECONDS
        )
    return Job.fetch(rq_id, connection=worker.connection, serializer=_Sealed)


def _call_handlers(worker: BaseWorker, job: Job, error: Exception) -> None:
    unlogged: Any = _Unlogged(worker)
    try:
        # Replaced by Sentry's integration.
        Worker.handle_exception(unlogged, job, type(error), error, error.__traceback__)
    # A handler may raise anything.
    except BaseException as failed:  # noqa: BLE001
        log.warning(
            "an exception handler failed for RQ job %s: %r",
            job.id,
            failed,
            extra={"event": "rq_handler_failed"},
        )


class _Unlogged:
    """RQ worker that does not log the death again."""

    log = _nothing

    def __init__(self, worker: BaseWorker) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> object:
        return getattr(self._worker, name)


def _text(error: Exception) -> str:
    with suppress(Exception):
        return "".join(traceback.format_exception(error))
    return type(error).__name__
