"""The RQ process: a child of a worker process with RQ's own worker.

It receives one popped plain RQ job at a time. RQ does the rest: registration, heartbeats, maintenance, abandoned jobs,
commands, timeouts, callbacks, exception handlers, the scheduler, and a fork per job.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import redis
from rq.exceptions import StopRequested
from rq.utils import import_attribute

from drain.contrib.plain.channel import BYE, READY, WAITS, Channel
from drain.contrib.plain.channel_worker import ChannelWorker, ForkingWorker, InlineWorker
from drain.wire import BYTES, forget_worker
from drain.workers.exits import DONE, FAILED, STOP_NOW, STOP_SIGNALS, describe_exit, exit_child
from drain.workers.options import Plain, PlainOptions, WorkOptions
from drain.workers.process.rq_commands import tracked_name
from drain.workers.stores import QuietWhileAway

log = logging.getLogger(__name__)

# Before RQ's worker restarts while Redis is unavailable or refuses.
_PAUSE_SECONDS = 1.0


class RQProcess:
    """The RQ process as its parent sees it; creating one forks.

    Attributes:
        pid: 0 once ended.
        first_pid: Kept after the end.
        name: Of RQ's worker, which may have changed it.
        was_shut_down: By a signal or command.
    """

    def __init__(self, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str) -> None:
        ours, theirs = socket.socketpair()
        # Until the child has its own handlers, a signal would run its parent's there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _run_child(Channel(theirs), redis_url, queues, options, name)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self.first_pid, self.name, self.channel = self.pid, name, Channel(ours)
        self.queues = queues
        self.is_ready = self.has_answered = self.was_shut_down = False

    def run_job(self, queue: str, rq_id: str) -> None:
        """Send a job to RQ's ready worker; EOFError if the process has ended."""
        self.is_ready = False
        self.channel.send(queue, rq_id)

    def receive(self, seconds: float) -> bool:
        """Receive a message; True if RQ's worker is ready, EOFError if the process has ended."""
        message = self.channel.receive(seconds)
        if message is None:
            return False
        self.has_answered = True
        if message[0] == READY:
            self.name = message[1]
            self.is_ready = True
        elif message[0] == BYE:
            self.was_shut_down = True
        return self.is_ready

    def signal(self, number: int) -> None:
        """Send a signal, unless ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def reap(self) -> str:
        """Wait for the process, whose channel is closed; describe its end."""
        pid, self.pid = self.pid, 0
        try:
            return describe_exit(os.waitpid(pid, 0)[1])
        # A job may have waited for all children.
        except ChildProcessError:
            return "has ended"


def _run_child(
    channel: Channel, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str
) -> NoReturn:
    code = FAILED
    parent = os.getppid()
    try:
        # RQ sets its handlers after registering; an earlier signal must not leave the registration behind.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.register_at_fork(after_in_child=_reset_stop_now)
        # The worker process logs Redis outages.
        logging.getLogger("rq.worker").addFilter(QuietWhileAway())
        random.seed()
        code = _work(channel, redis_url, queues, options, name)
    except SystemExit:
        # RQ's cold shutdown.
        code = _send_bye(channel)
    except EOFError:
        code = DONE
    except BaseException:
        log.exception("the process for plain RQ jobs failed", extra={"event": "failed"})
    finally:
        with suppress(Exception):
            if os.getppid() != parent:
                forget_worker(_connect(redis_url), tracked_name(name), parent, options.queues)
        exit_child(code, runs_exit_functions=True)


def _work(channel: Channel, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str) -> int:
    has_sent_waits = False
    while True:
        worker = None
        try:
            worker = _make(channel, redis_url, queues, options.plain, name)
            # RQ's signal handler may raise it even as the worker ends.
            with suppress(StopRequested):
                worker.work(burst=options.burst, with_scheduler=options.plain.with_scheduler)
        except redis.RedisError as error:
            if not has_sent_waits and not isinstance(error, redis.ConnectionError | redis.TimeoutError):
                log.warning(
                    "plain RQ jobs wait, RQ's worker cannot start: %s",
                    error,
                    extra={"event": "plain_jobs_wait"},
                )
            if not has_sent_waits:
                channel.send(WAITS)
            has_sent_waits = True
        if worker is not None:
            if worker.has_ended:
                return DONE
            if worker.is_shut_down:
                return _send_bye(channel)
            if worker.has_begun:
                return FAILED
            if worker.pubsub_thread is not None:
                worker.pubsub_thread.stop()
        channel.pause(_PAUSE_SECONDS)


def _make(
    channel: Channel, redis_url: str, queues: Sequence[str], options: PlainOptions, name: str
) -> ChannelWorker:
    kinds: dict[Plain, type[ChannelWorker]] = {Plain.FORK: ForkingWorker, Plain.INLINE: InlineWorker}
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
    worker.channel = channel
    return worker


def _connect(redis_url: str) -> redis.Redis:
    """Connect as RQ's command does; RQ's worker sets timeouts."""
    client = redis.Redis.from_url(redis_url)
    client.connection_pool.connection_kwargs.update(BYTES)
    return client


def _send_bye(channel: Channel) -> int:
    with suppress(EOFError):
        channel.send(BYE)
    return DONE


def _reset_stop_now() -> None:
    signal.signal(STOP_NOW, signal.SIG_DFL)
