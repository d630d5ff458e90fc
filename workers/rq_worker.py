"""What RQ sees of a worker process: it is registered as one of RQ's, and executes RQ's own jobs by RQ's own code."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
from rq import Queue, SimpleWorker, worker_registration
from rq.command import handle_command
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus

from drain import wire
from drain.wire import Taken
from workers.errors import Dead, WorkerStoppedError
from workers.hand import Hand, Held

# RQ takes a worker for dead that has not been heard of for this and a minute.
TTL_SECONDS = 60
_COMMANDS = ("shutdown", "kill-horse", "stop-job")
_LISTEN_AGAIN_SECONDS = 2.0


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

        One that RQ cannot read, at which its own worker would end, goes to its registry of failed jobs.

        Raises:
            redis.RedisError: The job may or may not have run, and RQ does not know.
        """
        queue = next(queue for queue in self.queues if queue.name == taken.queue)
        job = Job(connection=self.connection, serializer=self.serializer)
        try:
            job = Job(taken.rq_id, connection=self.connection, serializer=self.serializer)
            job.refresh()  # type: ignore[no-untyped-call]
        except redis.RedisError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return False
        except NoSuchJobError:
            return False
        except Exception as error:  # noqa: BLE001
            return self._fail_unreadable(job, queue, error)
        # Some programs leave it out; it says in which registries and lists RQ looks for the job.
        job.origin = queue.name
        try:
            self.execute_job(job, queue)
        except redis.RedisError:
            raise
        except Exception as error:  # noqa: BLE001
            self.log.error("RQ's job %s cannot be run: %.300r", job.id, error)
            self.handle_job_failure(job, queue, exc_string=repr(error))
        return True

    def _fail_unreadable(self, job: Job, queue: Queue, error: Exception) -> bool:
        """Keep what could be read of a job as a failed one; False if nothing of it could be."""
        # Set by the first of the fields that are read; without it there is nothing that RQ could show.
        if not isinstance(job._data, bytes):
            return False
        self.log.error("RQ's job %s cannot be read, and has failed: %.300r", job.id, error)
        job.origin, job._status = queue.name, JobStatus.FAILED
        with self.connection.pipeline() as pipeline:
            # The field that cannot be read would stop RQ's tools as well.
            pipeline.delete(job.key)
            job._handle_failure(f"RQ cannot read this job: {error!r:.300}", pipeline, worker_name=self.name)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            pipeline.execute()
        return True

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002
        """As RQ does for a worker of one queue: all go by way of the intermediate list here."""
        super().prepare_job_execution(job, remove_from_intermediate_queue=True)

    def procline(self, message: str) -> None:
        """RQ would show each job as the process' title."""

    def handle_payload(self, message: Mapping[str, Any]) -> None:
        """Obey a command of RQ's: shutdown, kill-horse, stop-job. Anything else is ignored, with a line."""
        try:
            payload = json.loads(message["data"])
            command = payload["command"]
            if command not in _COMMANDS:
                raise ValueError(f"the command is none of {', '.join(_COMMANDS)}")
        # Anybody may publish anything, and the thread that listens would end.
        except Exception as error:  # noqa: BLE001
            self.log.warning("Worker %s: a command of RQ's cannot be read: %.300r", self.name, error)
            return
        # RQ sends itself a SIGINT; a worker process of ours leaves that to its supervisor.
        if command == "shutdown":
            self.log.info("Worker %s: shut down by command", self.name)
            self._hand.resign()
        else:
            handle_command(self, payload)

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Listen again, whatever happened; RQ would do so only where the connection was lost."""
        if isinstance(exc, redis.ConnectionError):
            super()._pubsub_exception_handler(exc, pubsub, pubsub_thread)
            return
        self.log.warning("Worker %s: RQ's commands cannot be heard, trying again: %r", self.name, exc)
        with suppress(Exception):
            pubsub.connection.disconnect()
        time.sleep(_LISTEN_AGAIN_SECONDS)

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
