"""What RQ sees of a worker process: it is registered as one of RQ's, and executes RQ's own jobs by RQ's own code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
from rq import SimpleWorker, worker_registration
from rq.exceptions import NoSuchJobError
from rq.job import Job

from drain import wire
from drain.wire import Taken
from workers.errors import Dead, WorkerStoppedError
from workers.hand import Hand, Held

# RQ takes a worker for dead that has not been heard of for this and a minute.
TTL_SECONDS = 60


class RQWorker(SimpleWorker):
    """RQ's worker without its loop.

    Args:
        redis_url: Where.
        queues: Names of the queues.
        hand: What this process is running.
        only_tracked: Names of queues whose plain RQ jobs RQ's code must not touch: to read one is to unpickle it.
    """

    def __init__(
        self, redis_url: str, queues: Sequence[str], hand: Hand, only_tracked: Collection[str] = ()
    ) -> None:
        self._hand = hand
        connection = wire.connect(redis_url)
        bounds = dict(connection.connection_pool.connection_kwargs)
        super().__init__(list(queues), connection=connection, worker_ttl=TTL_SECONDS)
        # RQ would wait for a minute for a Redis that stands still.
        connection.connection_pool.connection_kwargs.update(bounds)
        self._names = list(queues)
        # RQ's maintenance reads the jobs of these.
        self.queues = [queue for queue in self.queues if queue.name not in only_tracked]

    def queue_names(self) -> list[str]:
        """Names of all queues, as RQ's tools show them."""
        return self._names

    @property
    def horse_pid(self) -> int:
        """Not 0 while a job is running: RQ asks before it says that one is to be killed."""
        return int(self.pid or 0) if self._hand.running is not None or self._hand.running_async else 0

    def register(self) -> None:
        """Appear in RQ's lists, and listen for RQ's commands."""
        with suppress(ValueError):
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

    def execute(self, taken: Taken) -> bool:
        """Run a plain RQ job as RQ would; False if RQ knows no such job.

        Raises:
            redis.RedisError: The job may or may not have run, and RQ does not know.
        """
        queue = next(queue for queue in self.queues if queue.name == taken.queue)
        try:
            job = Job.fetch(taken.rq_id, connection=self.connection, serializer=self.serializer)
        except (NoSuchJobError, ValueError):
            # It is gone, or this is no id of RQ's.
            return False
        self.execute_job(job, queue)
        return True

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002
        """As RQ does for a worker of one queue: all go by way of the intermediate list here."""
        super().prepare_job_execution(job, remove_from_intermediate_queue=True)

    def procline(self, message: str) -> None:
        """RQ would show each job as the process' title."""

    def handle_payload(self, message: Mapping[str, Any]) -> None:
        """Obey a command of RQ's: shutdown, kill-horse, stop-job."""
        # RQ sends itself a SIGINT; a worker process of ours leaves that to its supervisor.
        if b'"shutdown"' in message["data"]:
            self.log.info("Worker %s: shut down by command", self.name)
            self._hand.resign()
            return
        super().handle_payload(message)  # type: ignore[no-untyped-call]

    def get_current_job_id(self, pipeline: object = None) -> str | None:  # noqa: ARG002
        """What the main thread is running."""
        running = self._hand.running
        if running is None:
            return None
        return running.rq_id if isinstance(running, Held) else running.taken.rq_id

    def kill_horse(self, sig: object = None) -> None:  # noqa: ARG002
        """Interrupt what is running: it is tried again, unless it is this very job that is to be stopped."""
        stopped = self._stopped_job_id == self.get_current_job_id()
        self._hand.interrupt(
            Dead("stopped by RQ's stop-job command")
            if stopped
            else WorkerStoppedError("ended by RQ's kill-horse command")
        )
