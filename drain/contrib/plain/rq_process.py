"""The RQ process: a child of a worker process, with a worker of RQ's own for plain RQ jobs.

A worker process forks the RQ process before anything else, and sends it, one by one, the plain RQ jobs that it has
popped from RQ's lists. Everything else is RQ's: registration, heartbeats, maintenance, abandoned jobs, commands,
timeouts, callbacks, exception handlers, the scheduler, and the process that is forked for each job.
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

# Pause before RQ's worker is started again, while Redis is away or refuses.
_PAUSE_SECONDS = 1.0


class RQProcess:
    """The RQ process, as its parent sees it; making one forks.

    Args:
        redis_url: URL of Redis.
        queues: Names of the queues whose plain jobs RQ's worker may read.
        options: Options of RQ's worker.
        name: Name of RQ's worker.

    Attributes:
        pid: Id of the process; 0 once it has ended.
        first_pid: Id of the process, also once it has ended.
        name: Name of RQ's worker, which it may have changed.
        channel: Channel to the process.
        queues: Names of the queues.
        is_ready: RQ's worker is ready for a job.
        has_answered: Any message has come.
        was_shut_down: RQ's worker was shut down by a signal or a command.
    """

    def __init__(self, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str) -> None:
        ours, theirs = socket.socketpair()
        # Until the child has handlers of its own, a signal would run those of this process there.
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
        """Send a job to RQ's worker, which is ready for it.

        Raises:
            EOFError: The process has ended.
        """
        self.is_ready = False
        self.channel.send(queue, rq_id)

    def receive(self, seconds: float) -> bool:
        """Receive one message, if one comes in time; return whether RQ's worker is ready for the next job.

        Raises:
            EOFError: The process has ended.
        """
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
        """Send a signal, unless the process has ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def reap(self) -> str:
        """Wait for the process, whose end of the channel is closed; return how it has ended, in words."""
        pid, self.pid = self.pid, 0
        try:
            return describe_exit(os.waitpid(pid, 0)[1])
        # A job may have waited for all children.
        except ChildProcessError:
            return "has ended"


def _run_child(
    channel: Channel, redis_url: str, queues: Sequence[str], options: WorkOptions, name: str
) -> NoReturn:
    """Work until the worker process ends the channel or is gone, or RQ's worker is shut down; never return."""
    code = FAILED
    parent = os.getppid()
    try:
        # RQ installs its own handlers once its worker is in RQ's list; an earlier signal must not leave it there.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.register_at_fork(after_in_child=_reset_stop_now)
        # The worker process logs that Redis is away.
        logging.getLogger("rq.worker").addFilter(QuietWhileAway())
        random.seed()
        code = _work(channel, redis_url, queues, options, name)
    except SystemExit:
        # RQ's cold shutdown.
        code = _send_bye(channel)
    except EOFError:
        code = DONE
    except BaseException:
        log.exception("the process of plain RQ jobs cannot go on", extra={"event": "failed"})
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
            # RQ's signal handler raises it anywhere, also while the worker is ending by itself.
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
    """Connect as RQ's own command does; RQ's worker sets the timeouts."""
    client = redis.Redis.from_url(redis_url)
    client.connection_pool.connection_kwargs.update(BYTES)
    return client


def _send_bye(channel: Channel) -> int:
    with suppress(EOFError):
        channel.send(BYE)
    return DONE


def _reset_stop_now() -> None:
    signal.signal(STOP_NOW, signal.SIG_DFL)
