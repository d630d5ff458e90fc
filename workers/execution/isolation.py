"""Isolated jobs, each in a child process.

The child extends the lease, runs the job and records its outcome, on its own connections, then writes one word into a
pipe. After an empty pipe nothing is recorded: the attempt failed or was interrupted. Orders to end go through shared
memory, followed by a signal.
"""

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

from drain.workers.context import django_connections, reporter
from drain.workers.context.current import Attempt
from drain.workers.errors import Dead, WorkerDiedError, WorkerStoppedError
from drain.workers.execution.attempt import run as run_here
from drain.workers.execution.child_stack import ChildStack
from drain.workers.execution.decision import CANCELLED, STALE, error_of
from drain.workers.execution.outcome import (
    FINISHED,
    AlreadyFinished,
    Deferred,
    Failed,
    Interrupted,
    Outcome,
    Recorded,
    describe,
)
from drain.workers.execution.recorder import Recorder
from drain.workers.exits import KILL_AFTER_SECONDS, STOP_NOW, describe_exit
from drain.workers.lease.database import Database
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.lease.interruption import Interruption

log = logging.getLogger(__name__)

# Written once the outcome is recorded; the job may choose the exit code. The exception type follows a failure, the
# reason a death; a pipe takes this many bytes at once.
_FINISHED, _NOT_FINISHED, _DEAD, _CANCELLED, _STALE = b"f", b"n", b"d", b"c", b"s"
_LONGEST_MESSAGE = 4096
_LONGEST_ERROR = 1024
# After a failed fork.
_PAUSE_SECONDS = 1.0
_DIES_WITH_ITS_PARENT = 1
# Between looks at the child.
_LOOK_SECONDS = 0.02
# From an order to SIGKILL.
_STOP_SECONDS = 5.0
# First byte of an order, before its text: the worker stops, the job gives up, or the attempt ends.
_STOP, _GIVE_UP, _END = b"sge"
_ORDER_BYTES = 256


def run(attempt: Attempt) -> Outcome:
    """Run the job in a forked child, which also records the outcome.

    Returns:
        `AlreadyFinished`, `Recorded`, `Failed` if the child died, or `Interrupted` if the stopping worker killed it.
    """
    # The child extends it.
    attempt.lease.ending = True
    # A stream may be closed, or the job's own.
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    reading, writing = os.pipe()
    order = mmap.mmap(-1, _ORDER_BYTES)
    stack = ChildStack()
    parent = os.getpid()
    try:
        try:
            pid = os.fork()
        except OSError as error:
            attempt.lease.ending = False
            log.warning(
                "no process can be started for job %d, which will run later: %s",
                attempt.claim.id,
                error,
                extra={"event": "no_process", "job_id": attempt.claim.id},
            )
            return Deferred(_PAUSE_SECONDS)
        if pid == 0:
            _be_the_child(attempt, parent, writing, order, stack)
        stack.follow(pid)
        attempt.interruption.ask_child = stack.ask
        status, is_interrupted = _wait_for(pid, attempt, order)
        recorded = _recorded(reading)
    finally:
        attempt.interruption.ask_child = None
        stack.close()
        os.close(reading)
        os.close(writing)
        order.close()
    if recorded is not None:
        return recorded
    if is_interrupted:
        return Interrupted(describe(attempt.interruption.ordered or WorkerStoppedError()), attempt.options)
    return Failed(describe(WorkerDiedError(f"its process {describe_exit(status)}")), attempt.options)


def _recorded(reading: int) -> Outcome | None:
    os.set_blocking(reading, False)
    try:
        word = os.read(reading, _LONGEST_MESSAGE)
    except BlockingIOError:
        return None
    if word == _FINISHED:
        return AlreadyFinished(FINISHED)
    if word in (_CANCELLED, _STALE):
        return Recorded(word=CANCELLED if word == _CANCELLED else STALE)
    error, _, explanation = word[1:].decode(errors="replace").partition("\0")
    return Recorded(explanation if word.startswith(_DEAD) else None, error=error or None)


def _wait_for(pid: int, attempt: Attempt, order: mmap.mmap) -> tuple[int, bool]:
    """Return the child's status, and whether the stopping worker killed it."""
    interruption = attempt.interruption
    kill_at = monotonic() + attempt.claim.timeout_seconds + KILL_AFTER_SECONDS
    is_ordered = is_killed = False
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status, is_killed and interruption.stopped
        now = monotonic()
        if now > kill_at:
            is_killed = is_ordered
            os.kill(pid, signal.SIGKILL)
        elif interruption.ordered is not None and not is_ordered:
            is_ordered, kill_at = True, min(kill_at, now + _STOP_SECONDS)
            _give(order, interruption)
            os.kill(pid, STOP_NOW)
        # Pidfds are not everywhere, and a fork is slower than this pause.
        sleep(_LOOK_SECONDS)


def _give(order: mmap.mmap, interruption: Interruption) -> None:
    kind = _STOP if interruption.stopped else _GIVE_UP if isinstance(interruption.ordered, Dead) else _END
    text = str(interruption.ordered).encode()[: _ORDER_BYTES - 1]
    order[: len(text) + 1] = bytes([kind]) + text


def _obey(order: mmap.mmap, interruption: Interruption) -> None:
    text = order[1:].rstrip(b"\0").decode(errors="replace")
    interruption.stopped = order[0] == _STOP
    interruption.ordered = Dead(text) if order[0] == _GIVE_UP else WorkerStoppedError(text)


def _be_the_child(attempt: Attempt, parent: int, writing: int, order: mmap.mmap, stack: ChildStack) -> None:
    code = 1
    try:
        _die_with(parent)
        random.seed()
        os.write(writing, _run_and_record(attempt, order, stack))
        code = 0
    except BaseException:
        log.exception("the process of an isolated job failed", extra={"event": "failed"})
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # The parent's clean-up must not run in the child.
        os._exit(code)


def _die_with(parent: int) -> None:
    """Let Linux kill this process with its parent: another worker will run the job."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run_and_record(parents: Attempt, order: mmap.mmap, stack: ChildStack) -> bytes:
    database = Database(parents.database_url)
    heartbeat = Heartbeat(database.url, lambda: [attempt])
    attempt = Attempt(parents.claim, parents.lease.extended_at, heartbeat, database.url)
    stack.answer_for(attempt.interruption)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        _obey(order, attempt.interruption)
        if callable(signal.getsignal(signal.SIGALRM)):
            signal.raise_signal(signal.SIGALRM)

    signal.signal(STOP_NOW, stop)
    # systemd signals the whole cgroup; the supervisor decides about the time.
    signal.signal(signal.SIGTERM, lambda *_: None)
    reporter.report_as_parent()
    django_connections.forget_inherited()
    result = run_here(attempt)
    heartbeat.stop()
    recorder = Recorder(database)
    word = recorder.record(attempt.claim, result)
    reporter.flush()
    database.close()
    death = recorder.last_death()
    error = (error_of(word, result) or "").encode(errors="replace")[:_LONGEST_ERROR]
    if death is not None:
        return (_DEAD + error + b"\0" + death.explanation.encode())[:_LONGEST_MESSAGE]
    return {"finished": _FINISHED, CANCELLED: _CANCELLED, STALE: _STALE}.get(word, _NOT_FINISHED + error)
