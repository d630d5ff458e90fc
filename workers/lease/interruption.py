"""Interruption of a running job, when and why; and the stack of a slow one.

Four things interrupt a job: its time is over, its lease is lost, it was cancelled, or its worker has ordered it. How
that is done depends on where the job runs, so the runner passes a function along: in the main thread an alarm raises an
exception in the job; in the event loop its task is canceled; for an isolated job the parent reads `ordered` and signals
the child.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic
from types import CoroutineType
from typing import Any, Protocol

from drain.jobs.options import JobOptions
from drain.workers.errors import JobCancelledError, JobTimeoutError, LeaseLostError
from drain.workers.lease.frames import Stack, stack_in
from drain.workers.lease.lease import NEVER, Lease

# Pause between two interruptions of one job. One exception may not be enough: an event loop logs what is raised inside
# of its callbacks, and goes on.
AGAIN_SECONDS = 10.0


class Watcher(Protocol):
    """The thread that interrupts jobs when their time is over.

    Attributes:
        interrupting: Lock that is held while a job is being interrupted: a thread that holds it is not interrupted.
    """

    interrupting: threading.Lock

    def wake_by(self, at: float) -> None:
        """Look at all attempts again at this time of the monotonic clock, or earlier."""


class Interruption:
    """Time and cause of the interruption of one attempt.

    Args:
        lease: Lease of the attempt.
        options: Of the job's registration.
        watcher: The thread that interrupts.

    Attributes:
        began_at: When the job began, by the monotonic clock; until then, when its claim was asked for.
        due_at: When the job must be interrupted next.
        slow_at: When the stack of the job must be logged.
        ordered: Exception that the worker wants to be raised in the job, whose time may not be over.
        stopped: The worker stops: the attempt does not count if it ends by raising.
        coroutine: Coroutine of the job, if it is an `async def`.
        ask_child: Asks the process of an isolated job for its stack, while there is one.
    """

    __slots__ = (
        *("ask_child", "began_at", "coroutine", "due_at", "ordered", "slow_at", "stopped"),
        *("_interrupt", "_lease", "_slow_seconds", "_thread", "_watcher"),
    )

    def __init__(self, lease: Lease, options: JobOptions, watcher: Watcher) -> None:
        self.began_at = lease.extended_at
        self.due_at = self.slow_at = NEVER
        self.ordered: Exception | None = None
        self.stopped = False
        self.coroutine: CoroutineType[Any, Any, Any] | None = None
        self.ask_child: Callable[[], Stack] | None = None
        self._lease = lease
        self._slow_seconds = options.max_execute_seconds or lease.claim.timeout_seconds / 2
        self._watcher = watcher
        self._interrupt: Callable[[], None] | None = None
        self._thread = 0

    def start(self, interrupt: Callable[[], None] | None = None, after_seconds: float = NEVER) -> None:
        """Watch the job, which begins now, in this thread.

        Args:
            interrupt: Interrupts the job, from any thread; None if nothing can.
            after_seconds: Seconds until the first interruption, if the job is still running then.
        """
        lease = self._lease
        claim = lease.claim
        self.began_at = now = monotonic()
        self._thread = threading.get_ident()
        self._interrupt = interrupt
        lease.let_go_at = now + claim.timeout_seconds + claim.lease_seconds
        self.slow_at = now + self._slow_seconds
        self.due_at = now + after_seconds
        self._watcher.wake_by(min(lease.beat_at, self.slow_at, self.due_at))

    def stop(self) -> None:
        """Interrupt the job no more: it has ended. May be called again, or without `start`."""
        with self._watcher.interrupting:
            self.slow_at = self.due_at = NEVER
            self._interrupt = None

    def order(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise an exception in the job; `stopped` says that the worker stops."""
        # In this order: the parent of an isolated job's child passes both on as soon as it sees the cause.
        self.stopped = stopped
        self.ordered = cause
        self.interrupt()

    def interrupt(self) -> None:
        """Interrupt the job, if it is running and can be interrupted."""
        with self._watcher.interrupting:
            if self._interrupt is not None:
                self._interrupt()

    def cause(self) -> Exception | None:
        """Return the error to raise in the job; None if there is no reason to interrupt it."""
        if self._lease.cancelled:
            return JobCancelledError("the job was cancelled; this attempt can finish nothing")
        if self._lease.lost:
            return LeaseLostError("another worker has claimed the job; this attempt can finish nothing")
        seconds = self._lease.claim.timeout_seconds
        if self.ordered is None and monotonic() >= self.began_at + seconds:
            return JobTimeoutError(f"it ran for longer than its timeout of {seconds:g} s")
        return self.ordered

    def stack(self) -> str:
        """Return where the job is; of an `async def` where it waits, since its thread only shows the event loop."""
        frame = sys._current_frames().get(self._thread)
        stack = traceback.format_stack(frame) if frame else []
        coroutine: Any = self.coroutine
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            stack += traceback.format_stack(frame, limit=1)
            coroutine = coroutine.cr_await
        return "".join(stack)

    def frames(self) -> Stack | None:
        """Return where the job is, without source text; None if it has not begun."""
        if self.ask_child is not None:
            return self.ask_child()
        return stack_in(self._thread, self.coroutine) if self._thread else None
