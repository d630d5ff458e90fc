"""Interruption of a running job, and the stack of a slow one."""

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

# Event loops log exceptions of callbacks and go on.
AGAIN_SECONDS = 10.0


class Watcher(Protocol):
    """Thread that interrupts jobs.

    Attributes:
        interrupting: Held during an interruption; a thread that holds it is not interrupted.
    """

    interrupting: threading.Lock

    def wake_by(self, at: float) -> None:
        """Look at all attempts at this `monotonic()` time at the latest."""


class Interruption:
    """Time and cause of an attempt's interruption; times by `monotonic()`.

    Attributes:
        began_at: Start of the job; before, of its claim.
        due_at: Next interruption.
        slow_at: When to log the stack.
        ordered: Exception that the worker wants raised.
        stopped: The worker stops: an attempt that raises does not count.
        ask_child: Asks an isolated job's process for its stack.
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
        """Watch the job, which begins now in this thread.

        Args:
            interrupt: Usable in any thread; None if the job cannot be interrupted.
            after_seconds: Until the first interruption.
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
        """Stop interrupting; repeatable, also without `start`."""
        with self._watcher.interrupting:
            self.slow_at = self.due_at = NEVER
            self._interrupt = None

    def order(self, cause: Exception, *, stopped: bool = False) -> None:
        """Raise an exception in the job; `stopped` if the worker stops."""
        # In this order: an isolated job's parent passes both on once it sees the cause.
        self.stopped = stopped
        self.ordered = cause
        self.interrupt()

    def interrupt(self) -> None:
        """Interrupt the job, if possible."""
        with self._watcher.interrupting:
            if self._interrupt is not None:
                self._interrupt()

    def cause(self) -> Exception | None:
        """Return the error to raise, if any."""
        if self._lease.cancelled:
            return JobCancelledError("the job was cancelled; this attempt cannot finish it")
        if self._lease.lost:
            return LeaseLostError("another worker has claimed the job; this attempt cannot finish it")
        seconds = self._lease.claim.timeout_seconds
        if self.ordered is None and monotonic() >= self.began_at + seconds:
            return JobTimeoutError(f"it ran for longer than its timeout of {seconds:g} s")
        return self.ordered

    def stack(self) -> str:
        """Return the job's stack; for an `async def`, where it waits."""
        frame = sys._current_frames().get(self._thread)
        stack = traceback.format_stack(frame) if frame else []
        coroutine: Any = self.coroutine
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            stack += traceback.format_stack(frame, limit=1)
            coroutine = coroutine.cr_await
        return "".join(stack)

    def frames(self) -> Stack | None:
        """Return the job's frames; None before it begins."""
        if self.ask_child is not None:
            return self.ask_child()
        return stack_in(self._thread, self.coroutine) if self._thread else None
