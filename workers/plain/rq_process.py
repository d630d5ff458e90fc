"""The RQ process: a worker of RQ's own, in whose loop one thing differs: where its jobs come from.

A worker process forks it before it does anything else, and tells it, one by one, the plain RQ jobs that it has taken
from RQ's lists. All else is RQ's: registration, heartbeats, maintenance, abandoned jobs, commands, timeouts,
callbacks, exception handlers, the scheduler, and the process that is forked for each job.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import redis
from rq import Queue, SimpleWorker, Worker
from rq.exceptions import StopRequested
from rq.job import Job, JobStatus
from rq.serializers import resolve_serializer
from rq.utils import import_attribute, import_job_class
from rq.worker import WorkerStatus

from drain.errors import ConfigError
from drain.wire import BYTES, forget_worker
from workers.exits import STOP_NOW
from workers.options import Plain, PlainOptions, WorkOptions
from workers.plain.channel import BYE, READY, WAITS, Line
from workers.plain.rq_commands import Obedient
from workers.stores import QuietWhileAway

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def check(options: PlainOptions) -> None:
    """Import what the options name.

    Raises:
        ConfigError: It cannot be imported, or is no such thing.
    """
    paths: list[tuple[str, str | None, Callable[[str], Any]]] = [
        ("--serializer", options.serializer, resolve_serializer),
        ("--job-class", options.job_class, import_job_class),
        *[("--exception-handler", path, _callable) for path in options.exception_handlers],
    ]
    for option, path, load in paths:
        if path:
            try:
                load(path)
            # A module may raise anything as it is imported.
            except Exception as error:
                raise ConfigError(f"{option} {path!r}: {_line(error)}") from error


def _callable(path: str) -> Any:
    handler = import_attribute(path)
    if not callable(handler):
        raise TypeError("it cannot be called")
    return handler


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class ToldWorker(Obedient):
    """The part of RQ's worker that differs.

    Attributes:
        line: Where the jobs come from.
        has_begun: It has waited for a job.
        has_ended: The worker process has nothing more to say.
    """

    line: Line
    has_begun = False
    has_ended = False

    @property
    def is_shut_down(self) -> bool:
        """Whether a signal or a command has ended the loop."""
        return self._shutdown_requested_date is not None

    def register_birth(self) -> None:
        """As RQ does; a name that a dead process of this machine has left is taken over, another's is not."""
        if self._is_taken_by_the_dead():
            self.connection.delete(self.key)
        try:
            super().register_birth()  # type: ignore[no-untyped-call]
        except ValueError:
            name = f"{self.name}.{os.getpid()}"
            self.log.warning("a worker named %s works already, this one is %s", self.name, name)
            self.name = name
            super().register_birth()  # type: ignore[no-untyped-call]

    def _is_taken_by_the_dead(self) -> bool:
        found: list[Any] = self.connection.hmget(self.key, ["pid", "hostname"])
        pid, host = found
        if not pid or not host or host.decode(errors="replace") != self.hostname:
            return False
        return int(pid) == os.getpid() or not _is_alive(int(pid))

    def check_for_suspension(self, burst: bool) -> None:  # noqa: FBT001
        """Nothing: while RQ is suspended, the worker process takes no job."""

    def dequeue_job_and_maintain_ttl(
        self,
        timeout: int | None,
        max_idle_time: int | None = None,  # noqa: ARG002
    ) -> tuple[Job, Queue] | None:
        """Wait for a job of the worker process, with RQ's heartbeats; None once it has no more."""
        told: Sequence[str] | None = None
        pause = _PAUSE_SECONDS
        try:
            self._say_ready()
            while True:
                try:
                    self._be_idle()
                    told = told or self.line.hear(timeout or self.dequeue_timeout)
                    found = self._found(*told) if told else None
                    if found:
                        self.heartbeat()
                        return found
                    if told:
                        self._say_ready()
                    told = None
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    self.log.error("Worker %s: Redis cannot be reached, trying again: %s", self.name, error)
                    self.line.pause(pause)
                    pause = min(2 * pause, self.max_connection_wait_time)
        except EOFError:
            self.has_ended = True
            return None

    def run_maintenance_tasks(self) -> None:
        """As RQ does; but a key that somebody has spoilt is no reason to end."""
        try:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        # A signal raises StopRequested in whatever is done.
        except (redis.ConnectionError, redis.TimeoutError, StopRequested):
            raise
        except Exception as error:  # noqa: BLE001
            self.last_cleaned_at = datetime.now(UTC)  # type: ignore[assignment]
            self.log.warning("RQ could not clean up its registries: %s", error)

    def _say_ready(self) -> None:
        self.has_begun = True
        self.line.say(READY, self.name)

    def _be_idle(self) -> None:
        self.set_state(WorkerStatus.IDLE)
        self.procline("Listening on " + ",".join(self.queue_names()))  # type: ignore[no-untyped-call]
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()

    def _found(self, queue_name: str, rq_id: str) -> tuple[Job, Queue] | None:
        """The job; None if RQ knows none of this id, or cannot read it."""
        queue = next(queue for queue in self.queues if queue.name == queue_name)
        job = self.job_class(connection=self.connection, serializer=self.serializer)
        try:
            job = self.job_class(rq_id, connection=self.connection, serializer=self.serializer)
            job.refresh()  # type: ignore[no-untyped-call]
        except (redis.ConnectionError, redis.TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001
            self._do_without(job, rq_id, queue, error)
            return None
        # Some programs leave it out; it says in which registries and lists RQ looks for the job.
        job.origin = queue.name
        job.redis_server_version = self.get_redis_server_version()  # type: ignore[no-untyped-call]
        self.log.info("Worker %s: %s: %s (%s)", self.name, queue.name, job.description, job.id)
        return job, queue

    def _do_without(self, job: Job, rq_id: str, queue: Queue, error: Exception) -> None:
        """Keep what could be read of a job, at which RQ's worker would end, as a failed one; or forget its id."""
        # Set by the first of the fields that are read; without it there is nothing that RQ could show.
        is_job = isinstance(job._data, bytes)
        with self.connection.pipeline() as pipeline:
            if is_job:
                job.origin, job._status = queue.name, JobStatus.FAILED
                # The field that cannot be read would stop RQ's tools as well.
                pipeline.delete(job.key)
                text = f"RQ cannot read this job: {error!r:.300}"
                job._handle_failure(text, pipeline, worker_name=self.name)
            pipeline.lrem(queue.intermediate_queue_key, 1, rq_id.encode(errors="surrogateescape"))  # type: ignore[arg-type]
            pipeline.execute()
        if is_job:
            self.log.error("RQ's job %s cannot be read, and has failed: %.300r", job.id, error)
        else:
            log.warning("RQ knows no job %.100r, queue %s forgets it", rq_id, queue.name)

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002
        """As RQ does for a worker of one queue: all jobs go by way of the intermediate list here."""
        super().prepare_job_execution(job, remove_from_intermediate_queue=True)

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        signal.signal(STOP_NOW, self._stop_now)

    def _stop_now(self, number: int, frame: FrameType | None) -> None:
        """RQ's cold shutdown; RQ itself waits for a second signal, a second after the first."""
        self._shutdown_requested_date = _LONG_AGO
        self.request_force_stop(number, frame)


class ForkingWorker(ToldWorker, Worker):
    """RQ's worker, which forks for each job."""


class InlineWorker(ToldWorker, SimpleWorker):
    """RQ's worker that runs all jobs in its own process."""


def be_the_rq_process(
    line: Line, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str
) -> NoReturn:
    """Work until the worker process has no more to say, is gone, or RQ's worker is shut down; never returns.

    Args:
        line: To the worker process.
        redis_url: Where.
        queues: Names of the queues whose plain jobs may be read.
        options: How.
        name: Of RQ's worker.
    """
    code = 1
    parent = os.getppid()
    try:
        # RQ's own handlers come once its worker is in RQ's list, which it must not be left in.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.register_at_fork(after_in_child=_let_go_of_signals)
        # That Redis is away is said by the worker process.
        logging.getLogger("rq.worker").addFilter(QuietWhileAway())
        random.seed()
        code = _work(line, redis_url, queues, options, name)
    except SystemExit:
        # RQ's cold shutdown.
        code = _say_bye(line)
    except EOFError:
        code = 0
    except BaseException:
        log.exception("the process of plain RQ jobs cannot go on", extra={"event": "failed"})
    finally:
        with suppress(Exception):
            if os.getppid() != parent:
                forget_worker(_connect(redis_url), tracked_name(name), parent, options.queues)
        with suppress(Exception):
            # What the job modules have registered is to be called; the parent's frames are not to be unwound.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def tracked_name(name: str) -> str:
    """Name by which RQ's tools know the other worker of the same process, that of tracked jobs."""
    return f"{name}.tracked"


def _work(line: Line, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str) -> int:
    waits = False
    while True:
        worker = None
        try:
            worker = _made(line, redis_url, queues, options.plain, name)
            worker.work(burst=options.burst, with_scheduler=options.plain.with_scheduler)
        except redis.RedisError as error:
            if not waits and not isinstance(error, redis.ConnectionError | redis.TimeoutError):
                log.warning("plain RQ jobs wait, RQ's worker cannot start: %s", error)
            if not waits:
                line.say(WAITS)
            waits = True
        if worker is not None:
            if worker.has_ended:
                return 0
            if worker.is_shut_down:
                return _say_bye(line)
            if worker.has_begun:
                return 1
            if worker.pubsub_thread is not None:
                worker.pubsub_thread.stop()
        line.pause(_PAUSE_SECONDS)


def _made(line: Line, redis_url: str, queues: Sequence[str], options: PlainOptions, name: str) -> ToldWorker:
    kinds: dict[Plain, type[ToldWorker]] = {Plain.FORK: ForkingWorker, Plain.INLINE: InlineWorker}
    given: dict[str, Any] = {
        "worker_ttl": options.worker_ttl,
        "default_result_ttl": options.results_ttl,
        "maintenance_interval": options.maintenance_interval,
        "job_monitoring_interval": options.job_monitoring_interval,
    }
    worker = kinds[options.mode](
        list(queues),
        name=name,
        connection=_connect(redis_url),
        serializer=options.serializer,
        job_class=options.job_class,
        exception_handlers=[import_attribute(path) for path in options.exception_handlers],
        disable_default_exception_handler=options.disable_default_exception_handler,
        **{option: value for option, value in given.items() if value is not None},
    )
    worker.line = line
    return worker


def _connect(redis_url: str) -> redis.Redis:
    """A connection as RQ's own command makes it; RQ's worker sets its bounds."""
    client = redis.Redis.from_url(redis_url)
    client.connection_pool.connection_kwargs.update(BYTES)
    return client


def _say_bye(line: Line) -> int:
    with suppress(EOFError):
        line.say(BYE)
    return 0


def _let_go_of_signals() -> None:
    signal.signal(STOP_NOW, signal.SIG_DFL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # In a container, nobody may wait for what has lost its parent.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:
        return True
