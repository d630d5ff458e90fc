"""A thread beside the jobs: it extends the leases that a worker holds, and interrupts a job whose lease is lost.

Every third of a lease after the claim, the thread extends all leases that are held, in one statement, on a connection
of its own. The thread starts and the connection is opened only then: a job of milliseconds costs nothing. If an
extension is refused, another worker has claimed the job.

PostgreSQL may be away for longer than the lease. Then no other worker can claim either, and once PostgreSQL is back the
first worker that asks has the job: a lease that ran out is extended as long as no other worker has claimed the job.

A job that hangs where no exception reaches it does not keep its lease for ever: one lease after its time limit the
thread extends it no more, and only looks whether another worker has claimed the job. A job that catches its
LeaseLostError or its JobTimeoutError, and goes on, gets the next one every ten seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from drain.database.deadline import call_at
from drain.database.wakeup import Wakeup
from drain.workers.lease import interruption
from drain.workers.lease.extension import Extender, Watched
from drain.workers.lease.lease import NEVER
from drain.workers.stores import Stores

log = logging.getLogger(__name__)

# Pause after a start of the thread that failed.
_RETRY_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.01
# Patience with a heartbeat that is under way when the worker ends; then the heartbeat is broken off.
_PATIENCE_SECONDS = 0.25
_JOIN_SECONDS = 1.0


class Heartbeat:
    """Extends leases and interrupts jobs, from the first `wake_by` to `stop`.

    Args:
        database_url: URL of the database of the jobs.
        held: Returns the attempts whose leases are held now; called in the heartbeat's thread.
        stores: State of PostgreSQL, to which failures are reported; by default a state of its own.
        lost: Called for each lease that another worker has; None for nothing.

    Attributes:
        interrupting: Lock that is held while a job is being interrupted: a thread that holds it is not interrupted.
    """

    def __init__(
        self,
        database_url: str,
        held: Callable[[], Sequence[Watched]],
        stores: Stores | None = None,
        lost: Callable[[], object] | None = None,
    ) -> None:
        self.interrupting = threading.Lock()
        self._held = held
        self._extender = Extender(database_url, stores or Stores(), lost)
        self._wakes_at = NEVER
        self._wakeup = Wakeup()
        self._ended = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        # For each call of _start to come, the function that cancels it.
        self._starts: list[Callable[[], object]] = []
        self._has_failed = False

    def wake_by(self, at: float) -> None:
        """Look at all attempts again at this time of the monotonic clock, or earlier."""
        if at < self._wakes_at:
            # An earlier start is not forgotten: another thread may be here too, and a start too many does nothing.
            if self._thread is None:
                self._starts.append(call_at(at, self._start))
            # In both cases, since the thread may have been started in between.
            self._wakeup.notify()
            # Only now, for a thread that finds this time relies on the start and the notice: an interrupted job may
            # leave at any line.
            self._wakes_at = at

    def stop(self) -> None:
        """Extend no more; may be called again, or without `wake_by`. Raises nothing."""
        self._ended = self._extender.ended = True
        with self._starting:
            self._forget_starts()
            thread = self._thread
        if thread is None:
            return
        self._wakeup.notify()
        thread.join(_PATIENCE_SECONDS)
        if thread.is_alive():
            self._extender.break_off()
        thread.join(_JOIN_SECONDS)

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._ended:
                return
            thread = threading.Thread(target=self._keep, name="leases", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._start_later(error)
            else:
                self._thread = thread

    def _start_later(self, error: RuntimeError) -> None:
        if not self._has_failed:
            log.warning(
                "no lease is extended until a thread can be started: %s", error, extra={"event": "no_thread"}
            )
        self._has_failed = True
        # One further start is enough, or each that fails would go on for itself.
        self._forget_starts()
        self._starts.append(call_at(monotonic() + _RETRY_SECONDS, self._start))

    def _forget_starts(self) -> None:
        while self._starts:
            self._starts.pop()()

    def _keep(self) -> None:
        while not self._ended:
            now = monotonic()
            held = self._held()
            for each in held:
                if now >= each.interruption.slow_at:
                    _log_slow(each)
            if any(now >= each.lease.beat_at for each in held):
                self._extender.extend(held, now)
            for each in held:
                if now >= each.interruption.due_at:
                    each.interruption.due_at = now + interruption.AGAIN_SECONDS
                    each.interruption.interrupt()
            self._sleep()
        self._extender.close()

    def _sleep(self) -> None:
        # From here on a thread that calls wake_by() with an earlier time wakes this one.
        self._wakes_at = NEVER
        next_at = min((_next_at(each) for each in self._held()), default=NEVER)
        self._wakes_at = min(self._wakes_at, next_at)
        if not self._ended:
            pause = max(_SHORTEST_PAUSE_SECONDS, next_at - monotonic())
            self._wakeup.wait(None if pause == NEVER else min(pause, threading.TIMEOUT_MAX))


def _next_at(watched: Watched) -> float:
    return min(watched.lease.beat_at, watched.interruption.slow_at, watched.interruption.due_at)


def _log_slow(watched: Watched) -> None:
    claim, running = watched.lease.claim, watched.interruption
    running.slow_at = NEVER
    # The stack is of another thread, and may change while it is being read.
    with suppress(Exception):
        log.warning(
            "job %d (%s) has been running for %.0f s; its stack:\n%s",
            claim.id,
            claim.job_name,
            monotonic() - running.began_at,
            running.stack(),
            extra={"event": "job_slow", "job_id": claim.id},
        )
