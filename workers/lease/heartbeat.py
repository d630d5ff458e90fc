"""Thread that extends leases, and interrupts jobs whose lease is lost.

The first extension comes a third of a lease after the claim. Thread and connection start only then, so short jobs cost
nothing.

After an outage longer than a lease, the first worker to ask has the job: an expired lease is extended unless claimed
elsewhere.

One lease after its time limit, a job that cannot be interrupted is only watched. One that catches an interruption gets
the next every ten seconds.
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

_RETRY_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.01
_PATIENCE_SECONDS = 0.25
_JOIN_SECONDS = 1.0


class Heartbeat:
    """Extends leases and interrupts jobs, from the first `wake_by` to `stop`.

    Args:
        held: Returns the attempts with leases; called in the heartbeat's thread.
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
        # Functions that cancel pending starts.
        self._starts: list[Callable[[], object]] = []
        self._has_failed = False

    def wake_by(self, at: float) -> None:
        """See `Watcher`."""
        if at < self._wakes_at:
            # Earlier starts are kept: another thread may be here too, and an extra start is harmless.
            if self._thread is None:
                self._starts.append(call_at(at, self._start))
            # Either way, as the thread may just have started.
            self._wakeup.notify()
            # Last: a thread that sees this time relies on start and notice; an interrupted job may leave anywhere.
            self._wakes_at = at

    def stop(self) -> None:
        """Stop extending; repeatable. Never raises."""
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
        # One start is enough; otherwise each failure would continue.
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
        # From here on, wake_by() with an earlier time wakes this thread.
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
    # The stack may change while read.
    with suppress(Exception):
        log.warning(
            "job %d (%s) has been running for %.0f s; its stack:\n%s",
            claim.id,
            claim.job_name,
            monotonic() - running.began_at,
            running.stack(),
            extra={"event": "job_slow", "job_id": claim.id},
        )
