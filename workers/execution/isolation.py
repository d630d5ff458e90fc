"""A job in a child process of its own, as RQ's forking worker runs each."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import random
import signal
import sys
from contextlib import suppress
from time import monotonic, sleep
from types import FrameType

from drain.jobs import registry
from workers.context.current import CurrentJob
from workers.errors import Dead, WorkerDiedError, WorkerStoppedError
from workers.execution import attempt
from workers.execution.outcome import (
    FINISHED,
    Deferred,
    Failed,
    Interrupted,
    Outcome,
    Recorded,
    Settled,
    describe,
)
from workers.execution.recorder import Recorder
from workers.exits import KILL_AFTER_SECONDS, STOP_NOW, describe_exit
from workers.lease.database import Database
from workers.lease.heartbeat import Heartbeat
from workers.lease.lease import Lease

log = logging.getLogger(__name__)

# What a child says through a pipe once it has written down what became of its job; the job itself may choose the
# exit code. Behind the word for a dead one stands why; a pipe takes so many bytes at once.
_FINISHED, _NOT_FINISHED, _DEAD = b"f", b"n", b"d"
_LONGEST_MESSAGE = 4096
_PAUSE_SECONDS = 1.0
_DIES_WITH_ITS_PARENT = 1
_LOOK_SECONDS = 0.02
_STOP_SECONDS = 5.0
# First byte of an order, which the text of the error follows: the worker stops, the job is to be given up, or the
# attempt is to end.
_STOP, _GIVE_UP, _END = b"sge"
_ORDER_BYTES = 256


def run(current: CurrentJob) -> Outcome:
    """Fork, and run the job in the child, which also writes down what became of it.

    Returns:
        `Settled` if the job is finished, `Recorded` if it is not, `Failed` if the child died, and `Interrupted` if it
        was killed since the worker stops.
    """
    lease = current._lease
    # Extended by the child from now on.
    lease.settling = True
    # A stream may be closed, or a job's own.
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    reading, writing = os.pipe()
    order = mmap.mmap(-1, _ORDER_BYTES)
    parent = os.getpid()
    try:
        try:
            pid = os.fork()
        except OSError as error:
            lease.settling = False
            log.warning("no process for job %d, it waits a moment: %s", lease.claim.id, error)
            return Deferred(_PAUSE_SECONDS)
        if pid == 0:
            _be_the_child(current, parent, writing, order)
        status, is_interrupted = _wait_for(pid, lease, order)
        os.set_blocking(reading, False)
        with suppress(BlockingIOError):
            said = os.read(reading, _LONGEST_MESSAGE)
            if said.startswith(_DEAD):
                return Recorded(said.removeprefix(_DEAD).decode(errors="replace"))
            if said:
                return Settled(FINISHED) if said == _FINISHED else Recorded()
    finally:
        os.close(reading)
        os.close(writing)
        order.close()
    options = registry.options(lease.claim.job_name)
    if is_interrupted:
        return Interrupted(describe(lease.ordered or WorkerStoppedError()), options)
    return Failed(describe(WorkerDiedError(f"its process {describe_exit(status)}")), options)


def _wait_for(pid: int, lease: Lease, order: mmap.mmap) -> tuple[int, bool]:
    """Status of the child, and whether it was killed since the worker stops."""
    kill_at = monotonic() + lease.claim.timeout_seconds + KILL_AFTER_SECONDS
    told = killed = False
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status, killed and lease.stopped
        now = monotonic()
        if now > kill_at:
            killed = told
            os.kill(pid, signal.SIGKILL)
        elif lease.ordered is not None and not told:
            told, kill_at = True, min(kill_at, now + _STOP_SECONDS)
            _give(order, lease)
            os.kill(pid, STOP_NOW)
        # A pidfd would tell at once, but not everywhere; beside a fork the pause is short.
        sleep(_LOOK_SECONDS)


def _give(order: mmap.mmap, lease: Lease) -> None:
    kind = _STOP if lease.stopped else _GIVE_UP if isinstance(lease.ordered, Dead) else _END
    text = str(lease.ordered).encode()[: _ORDER_BYTES - 1]
    order[: len(text) + 1] = bytes([kind]) + text


def _obey(order: mmap.mmap, lease: Lease) -> None:
    text = order[1:].rstrip(b"\0").decode(errors="replace")
    lease.stopped = order[0] == _STOP
    lease.ordered = Dead(text) if order[0] == _GIVE_UP else WorkerStoppedError(text)


def _be_the_child(current: CurrentJob, parent: int, writing: int, order: mmap.mmap) -> None:
    code = 1
    try:
        _die_with(parent)
        random.seed()
        os.write(writing, _run_and_record(current, order))
        code = 0
    except BaseException:
        log.exception("the process of an isolated job cannot go on", extra={"event": "failed"})
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Nothing of the parent's is to be tidied up here.
        os._exit(code)


def _die_with(parent: int) -> None:
    """Let the system kill this process when its parent dies: somebody else will run the job."""
    # There is no such thing but on Linux, where there is no other way to ask for it.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run_and_record(theirs: CurrentJob, order: mmap.mmap) -> bytes:
    claim = theirs._lease.claim
    database = Database(theirs._database_url)
    heartbeat = Heartbeat(database.url, lambda: [lease])
    lease = Lease(claim, registry.options(claim.job_name), theirs._lease.extended, heartbeat)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        _obey(order, lease)
        if callable(signal.getsignal(signal.SIGALRM)):
            signal.raise_signal(signal.SIGALRM)

    signal.signal(STOP_NOW, stop)
    # A service manager sends it to all; whether there is time to end is for the supervisor to say.
    signal.signal(signal.SIGTERM, lambda *_: None)
    result = attempt.run(CurrentJob(claim, lease, database.url))
    heartbeat.stop()
    recorder = Recorder(database)
    word = recorder.record(claim, result)
    database.close()
    death = recorder.last_death()
    if death is not None:
        return (_DEAD + death.explanation.encode())[:_LONGEST_MESSAGE]
    return _FINISHED if word == "finished" else _NOT_FINISHED
