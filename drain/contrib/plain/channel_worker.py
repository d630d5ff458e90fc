"""RQ's worker, with jobs from the channel."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import redis
from rq import Queue, SimpleWorker, Worker
from rq.exceptions import StopRequested
from rq.job import Job, JobStatus
from rq.worker import WorkerStatus

from drain.contrib.plain.channel import READY, Channel
from drain.workers.exits import STOP_NOW
from drain.workers.process.rq_commands import CommandListener, replace_at_birth

log = logging.getLogger(__name__)

# While Redis is unavailable; doubles.
_PAUSE_SECONDS = 1.0
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class ChannelWorker(CommandListener):
    """Differences from RQ's worker; `has_begun` once it waits for a job, `has_ended` with the channel."""

    channel: Channel
    has_begun = False
    has_ended = False

    @property
    def is_shut_down(self) -> bool:
        """True once a signal or command has ended the loop."""
        return self._shutdown_requested_date is not None

    def register_birth(self) -> None:
        """Register, taking over a dead local process' name, or changing a name in use."""
        if self._is_name_of_dead_process():
            replace_at_birth(self)
        try:
            super().register_birth()  # type: ignore[no-untyped-call]
        except ValueError:
            name = f"{self.name}.{os.getpid()}"
            self.log.warning("a worker named %s works already, this one is %s", self.name, name)
            self.name = name
            super().register_birth()  # type: ignore[no-untyped-call]

    def _is_name_of_dead_process(self) -> bool:
        found: list[Any] = self.connection.hmget(self.key, ["pid", "hostname"])
        pid, host = found
        if not pid or not host or host.decode(errors="replace") != self.hostname:
            return False
        return int(pid) == os.getpid() or not _is_alive(int(pid))

    def check_for_suspension(self, burst: bool) -> None:  # noqa: FBT001
        """Do nothing: no jobs are fetched during suspension."""

    def dequeue_job_and_maintain_ttl(
        self,
        timeout: int | None,
        max_idle_time: int | None = None,  # noqa: ARG002
    ) -> tuple[Job, Queue] | None:
        """Wait for a job, with RQ's heartbeats; None once the channel has ended."""
        message: Sequence[str] | None = None
        pause = _PAUSE_SECONDS
        try:
            self._send_ready()
            while True:
                try:
                    self._be_idle()
                    message = message or self.channel.receive(timeout or self.dequeue_timeout)
                    found = self._load(*message) if message else None
                    if found:
                        self.heartbeat()
                        return found
                    if message:
                        self._send_ready()
                    message = None
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    self.log.error("Worker %s: Redis cannot be reached, trying again: %s", self.name, error)
                    self.channel.pause(pause)
                    pause = min(2 * pause, self.max_connection_wait_time)
        except EOFError:
            self.has_ended = True
            return None

    def run_maintenance_tasks(self) -> None:
        """Clean up as RQ does; a key of the wrong type is only logged."""
        try:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        # A signal raises StopRequested anywhere.
        except (redis.ConnectionError, redis.TimeoutError, StopRequested):
            raise
        except Exception as error:  # noqa: BLE001
            self.last_cleaned_at = datetime.now(UTC)  # type: ignore[assignment]
            self.log.warning("RQ could not clean up its registries: %s", error)

    def _send_ready(self) -> None:
        self.has_begun = True
        self.channel.send(READY, self.name)

    def _be_idle(self) -> None:
        self.set_state(WorkerStatus.IDLE)
        self.procline("Listening on " + ",".join(self.queue_names()))  # type: ignore[no-untyped-call]
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()
        self._end_if_shut_down()

    def _end_if_shut_down(self) -> None:
        """Raise StopRequested where RQ's signal handler did not, or was swallowed."""
        if self.is_shut_down:
            raise StopRequested
        # RQ listens for commands just before it handles signals.
        if self.is_shutdown_commanded:
            self.request_stop(signal.SIGINT, None)  # type: ignore[no-untyped-call]

    def _load(self, queue_name: str, rq_id: str) -> tuple[Job, Queue] | None:
        """Load a job; None if missing or unreadable."""
        queue = next(queue for queue in self.queues if queue.name == queue_name)
        job = self.job_class(connection=self.connection, serializer=self.serializer)
        try:
            job = self.job_class(rq_id, connection=self.connection, serializer=self.serializer)
            job.refresh()  # type: ignore[no-untyped-call]
        except (redis.ConnectionError, redis.TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001
            self._discard(job, rq_id, queue, error)
            return None
        # Some programs leave out the origin, which RQ needs.
        job.origin = queue.name
        job.redis_server_version = self.get_redis_server_version()  # type: ignore[no-untyped-call]
        self.log.info("Worker %s: %s: %s (%s)", self.name, queue.name, job.description, job.id)
        return job, queue

    def _discard(self, job: Job, rq_id: str, queue: Queue, error: Exception) -> None:
        """Keep the readable part as a failed job, or forget the id; RQ's worker would end."""
        # The first field read; RQ shows nothing without it.
        is_job = isinstance(job._data, bytes)
        with self.connection.pipeline() as pipeline:
            if is_job:
                job.origin, job._status = queue.name, JobStatus.FAILED
                # The unreadable field would stop RQ's tools too.
                pipeline.delete(job.key)
                text = f"RQ cannot read this job: {error!r:.300}"
                job._handle_failure(text, pipeline, worker_name=self.name)
            pipeline.lrem(queue.intermediate_queue_key, 1, rq_id.encode(errors="surrogateescape"))  # type: ignore[arg-type]
            pipeline.execute()
        if is_job:
            self.log.error("RQ's job %s cannot be read, and has failed: %.300r", job.id, error)
        else:
            extra = {"event": "plain_job_unknown"}
            log.warning("RQ knows no job %.100r, queue %s forgets it", rq_id, queue.name, extra=extra)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002
        """Prepare as RQ does for a worker of one queue: all jobs pass the intermediate list."""
        super().prepare_job_execution(job, remove_from_intermediate_queue=True)

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        signal.signal(STOP_NOW, self._stop_now)

    def _stop_now(self, number: int, frame: FrameType | None) -> None:
        """Begin RQ's cold shutdown at once; RQ would wait for a second signal."""
        self._shutdown_requested_date = _LONG_AGO
        self.request_force_stop(number, frame)


class ForkingWorker(ChannelWorker, Worker):
    """Forks for each job."""


class InlineWorker(ChannelWorker, SimpleWorker):
    """Runs jobs in its own process."""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # In a container, an orphaned zombie may never be reaped.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:
        return True
