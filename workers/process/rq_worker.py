"""The worker that RQ's tools show for tracked jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from rq import SimpleWorker, worker_registration
from rq.utils import import_attribute

from drain import wire
from drain.wire import NEEDS_NO_HASH
from drain.wire.stacks import STACK
from drain.workers.errors import Dead, WorkerStoppedError
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.rq_commands import CommandListener, replace_at_birth
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stacks import StackAnswers

# RQ regards the worker as dead this long, and a minute, after a heartbeat.
TTL_SECONDS = 60


class RQWorker(CommandListener, SimpleWorker):
    """RQ's worker without its loop and jobs; it obeys commands and answers questions for stacks.

    Args:
        namespace: Prefix of our RQ ids, for which this worker needs no hashes.
        exception_handlers: Dotted paths of functions for dead jobs.
    """

    commands = (*CommandListener.commands, STACK)

    def __init__(
        self,
        redis_url: str,
        queues: Sequence[str],
        inbox: Inbox,
        shutdown: Shutdown,
        name: str,
        namespace: str,
        exception_handlers: Sequence[str] = (),
    ) -> None:
        self._inbox = inbox
        self._namespace = namespace
        self._stacks = StackAnswers(inbox, namespace)
        # RQ's worker has a method `_shutdown`.
        self._process_shutdown = shutdown
        connection = wire.connect(redis_url)
        bounds = dict(connection.connection_pool.connection_kwargs)
        handlers = [import_attribute(path) for path in exception_handlers]
        super().__init__(
            [], name=name, connection=connection, worker_ttl=TTL_SECONDS, exception_handlers=handlers
        )
        # RQ's own timeouts would let a stalled Redis block for a minute.
        connection.connection_pool.connection_kwargs.update(bounds)
        self._names = list(queues)

    def queue_names(self) -> list[str]:
        """List the queues."""
        return self._names

    @property
    def horse_pid(self) -> int:
        """Process id while a tracked job runs, else 0, which kill-horse ignores."""
        running = self._inbox.running
        is_running = self.get_current_job_id() is not None or running.async_jobs or running.in_threads
        return int(self.pid or 0) if is_running else 0

    def register(self) -> None:
        """Enter RQ's lists, and listen for commands."""
        # The previous owner of this name is dead.
        replace_at_birth(self)
        self.register_birth()  # type: ignore[no-untyped-call]
        self.subscribe()  # type: ignore[no-untyped-call]

    def serialize(self) -> dict[Any, Any]:
        """Return the hash's fields."""
        return {**super().serialize(), NEEDS_NO_HASH: self._namespace}

    def leave(self) -> None:
        """Leave RQ's lists, and stop listening."""
        with suppress(redis.RedisError):
            self.register_death()  # type: ignore[no-untyped-call]
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()

    def beat(self) -> None:
        """Extend the entries in RQ's lists; restore them if Redis lost its data."""
        with self.connection.pipeline() as pipeline:
            self.heartbeat(pipeline=pipeline)
            pipeline.hset(self.key, mapping=self.serialize())
            worker_registration.register(self, pipeline)
            pipeline.execute()

    def procline(self, message: str) -> None:
        """Do nothing: RQ would set the process title for each job."""

    def obey(self, payload: dict[str, Any]) -> None:
        """Obey a command for tracked jobs, or answer a question."""
        if payload["command"] == STACK:
            # The caller sees that no answer comes.
            with suppress(redis.RedisError):
                self._stacks.answer(self.connection, payload)
            return
        # RQ would send itself SIGINT, which a worker process ignores.
        if payload["command"] == "shutdown":
            self.log.info("Worker %s: shut down by command", self.name)
            self._process_shutdown.resign()
        else:
            super().obey(payload)

    def get_current_job_id(self, pipeline: object = None) -> str | None:  # noqa: ARG002
        """Return the RQ id of the main thread's tracked job."""
        job = self._inbox.running.current
        if isinstance(job, ClaimedJob):
            return job.rq_id
        return job.popped.rq_id if job is not None and job.popped.job_id is not None else None

    def kill_horse(self, sig: object = None) -> None:  # noqa: ARG002
        """Interrupt all running jobs, which retry; or only the one named by stop-job, for good."""
        named, self._stopped_job_id = self._stopped_job_id, None
        running = self._inbox.running
        if named is None:
            running.interrupt(WorkerStoppedError("ended by RQ's kill-horse command"))
        # If it has just ended, interrupt no other.
        elif named == self.get_current_job_id():
            running.interrupt_current(Dead("stopped by RQ's stop-job command"))
