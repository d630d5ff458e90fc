"""What RQ sees of a worker process and its tracked jobs: it is registered as a worker of RQ's, and takes commands."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from rq import SimpleWorker, worker_registration
from rq.utils import import_attribute

from drain import wire
from workers.errors import Dead, WorkerStoppedError
from workers.plain.rq_commands import Obedient
from workers.process.inbox import ClaimedJob, Inbox

# RQ takes a worker for dead that has not been heard of for this and a minute.
TTL_SECONDS = 60


class RQWorker(Obedient, SimpleWorker):
    """RQ's worker without its loop, and without jobs of RQ's own.

    Args:
        redis_url: Where.
        queues: Names of the queues.
        hand: What this process is running.
        name: By which RQ's tools know it.
        exception_handlers: Dotted paths of functions that RQ calls for a job that is dead.
    """

    def __init__(
        self,
        redis_url: str,
        queues: Sequence[str],
        inbox: Inbox,
        name: str,
        exception_handlers: Sequence[str] = (),
    ) -> None:
        self._inbox = inbox
        connection = wire.connect(redis_url)
        bounds = dict(connection.connection_pool.connection_kwargs)
        handlers = [import_attribute(path) for path in exception_handlers]
        super().__init__(
            [], name=name, connection=connection, worker_ttl=TTL_SECONDS, exception_handlers=handlers
        )
        # RQ would wait for a minute for a Redis that stands still.
        connection.connection_pool.connection_kwargs.update(bounds)
        self._names = list(queues)

    def queue_names(self) -> list[str]:
        """Names of all queues, as RQ's tools show them."""
        return self._names

    @property
    def horse_pid(self) -> int:
        """Not 0 while a tracked job is running: RQ asks before it says that one is to be killed."""
        is_running = self.get_current_job_id() is not None or self._inbox.running_async
        return int(self.pid or 0) if is_running else 0

    def register(self) -> None:
        """Appear in RQ's lists, and listen for RQ's commands.

        The last process that had this name is dead.
        """
        self.connection.delete(self.key)
        self.register_birth()  # type: ignore[no-untyped-call]
        self.subscribe()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """Disappear from RQ's lists."""
        with suppress(redis.RedisError):
            self.register_death()  # type: ignore[no-untyped-call]
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()

    def beat(self) -> None:
        """Be known for another while, also to a Redis that has lost its memory."""
        with self.connection.pipeline() as pipeline:
            self.heartbeat(pipeline=pipeline)
            pipeline.hset(self.key, mapping=self.serialize())
            worker_registration.register(self, pipeline)
            pipeline.execute()

    def procline(self, message: str) -> None:
        """RQ would show each job as the process' title."""

    def obey(self, payload: dict[str, Any]) -> None:
        """Obey a command of RQ's for tracked jobs."""
        # RQ sends itself a SIGINT; a worker process of ours leaves that to its supervisor.
        if payload["command"] == "shutdown":
            self.log.info("Worker %s: shut down by command", self.name)
            self._inbox.resign()
        else:
            super().obey(payload)

    def get_current_job_id(self, pipeline: object = None) -> str | None:  # noqa: ARG002
        """The tracked job that the main thread is running."""
        running = self._inbox.running
        if isinstance(running, ClaimedJob):
            return running.rq_id
        return running.taken.rq_id if running is not None and running.taken.job_id is not None else None

    def kill_horse(self, sig: object = None) -> None:  # noqa: ARG002
        """Interrupt what is running: it is tried again, unless it is this very job that is to be stopped."""
        stopped = self._stopped_job_id == self.get_current_job_id()
        self._inbox.interrupt(
            Dead("stopped by RQ's stop-job command")
            if stopped
            else WorkerStoppedError("ended by RQ's kill-horse command")
        )
