"""The lease of one claim: how long it holds, and how its job learns that it does not any more.

It is written by the claim, counted by the database's clock, and extended by the worker's keeper, from the claim on
until the outcome is recorded. If an extension is refused, somebody else has claimed the job: the job gets a
LeaseLostError where one can be raised, and `lost` says so everywhere.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from drain.jobs.options import JobOptions
from drain.tables.claims import Claim
from workers.errors import JobTimeoutError, LeaseLostError

if TYPE_CHECKING:
    from workers.lease.heartbeat import Heartbeat

# One exception may not be enough: an event loop logs what is raised inside of its callbacks, and goes on.
AGAIN_SECONDS = 10.0
NEVER = float("inf")


class Interrupt(NamedTuple):
    """How a running job can be interrupted.

    Attributes:
        act: The handler of SIGALRM that raises in it; or, in a thread of its own, what cancels its task.
        after_seconds: When that is to be done for the first time, if it is still running.
    """

    act: Callable[[int, FrameType | None], None] | Callable[[], None]
    after_seconds: float


class Lease:
    """The lease of one claim, which a keeper extends.

    Args:
        claim: What has been claimed.
        options: Of the job's registration.
        asked_at: When the claim was asked for, by the monotonic clock: the lease began no earlier.
        keeper: Who extends it.

    Attributes:
        lost: Somebody else has claimed the job.
        expires_at: Until when the lease holds, by the database's clock, as far as is known.
        settling: The job's outcome is being committed, or is: there is nothing to extend.
        ordered: What is to be raised in the job, whose time may not be over.
        stopped: That is because the worker stops: the attempt does not count if it ends by raising.
        coroutine: What is running, if the job is an `async def`.
        beat_at, tell_at, interrupt_at: When the keeper has something to do next.
    """

    __slots__ = (
        *("claim", "heartbeat", "lost", "expires_at", "settling", "ordered", "stopped", "coroutine"),
        *("beat_at", "tell_at", "interrupt_at", "let_go_at", "began", "extended", "job_thread"),
        *("_heartbeat", "_interrupt", "_slow_seconds"),
    )

    def __init__(self, claim: Claim, options: JobOptions, asked_at: float, heartbeat: Heartbeat) -> None:
        self.claim = claim
        self.lost = self.settling = self.stopped = False
        self.ordered: Exception | None = None
        self.expires_at = claim.lease_expires_at
        self.coroutine: CoroutineType[Any, Any, Any] | None = None
        self.heartbeat = min(options.heartbeat, claim.lease_seconds / 2)
        self.extended = asked_at
        self.beat_at = asked_at + self.heartbeat
        self.tell_at = self.interrupt_at = self.let_go_at = NEVER
        self.began = asked_at
        self.job_thread = 0
        self._heartbeat = heartbeat
        self._interrupt: Any = None
        self._slow_seconds = options.max_execute_seconds or claim.timeout_seconds / 2

    def start(self, interrupt: Interrupt | None = None) -> None:
        """The job begins, in this thread; None if nothing can interrupt it."""
        seconds = self.claim.timeout_seconds
        self.began = now = monotonic()
        self.job_thread = threading.get_ident()
        self._interrupt = interrupt and interrupt.act
        self.let_go_at = now + seconds + self.claim.lease_seconds
        self.tell_at = now + self._slow_seconds
        self.interrupt_at = now + interrupt.after_seconds if interrupt else NEVER
        self._heartbeat.watch(self)

    def stop(self) -> None:
        """The job has ended: nobody interrupts it from now on. May be called again, or without `start`."""
        with self._heartbeat.interrupting:
            self.tell_at = self.interrupt_at = NEVER
            self._interrupt = None

    def seconds_left(self) -> float:
        """How long the lease still holds, as far as is known; by this machine's monotonic clock."""
        return 0.0 if self.lost else max(0.0, self.extended + self.claim.lease_seconds - monotonic())

    def cause(self) -> Exception | None:
        """Why the job is to be interrupted, if it is."""
        if self.lost:
            return LeaseLostError("somebody else has claimed the job; this attempt can finish nothing")
        if self.ordered is None and monotonic() >= self.began + self.claim.timeout_seconds:
            return JobTimeoutError(f"it ran for longer than its timeout of {self.claim.timeout_seconds:g} s")
        return self.ordered

    def interrupt(self) -> None:
        """Raise in the job, or cancel its task, if it is running and can be interrupted."""
        with self._heartbeat.interrupting:
            interrupt = self._interrupt
            if interrupt is None:
                return
            if self.job_thread != threading.main_thread().ident:
                interrupt()
            # A job may use the alarm for itself; by default the signal would end the process.
            elif signal.getsignal(signal.SIGALRM) is interrupt:
                signal.pthread_kill(self.job_thread, signal.SIGALRM)

    def stack(self) -> str:
        """Where the job is; of an `async def` where it waits, since its thread only shows the event loop."""
        frame = sys._current_frames().get(self.job_thread)
        stack = traceback.format_stack(frame) if frame else []
        coroutine: Any = self.coroutine
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            stack += traceback.format_stack(frame, limit=1)
            coroutine = coroutine.cr_await
        return "".join(stack)
