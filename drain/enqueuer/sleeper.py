"""Sleep of an idle leader until work is due."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic

from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import waiting

_FIRST_NAP_SECONDS = 0.001
_LONGEST_NAP_SECONDS = 0.05
# Above this many jobs per second, transactions should not notify: commits would share a lock. At 2,000 jobs/s, naps
# improve commit to start from 7.4 to 6.8 ms at p50, and from 28 to 23 at p99.
_MOST_NOTIFIED = 1000
_COUNTED_SECONDS = 0.05
# Wait after a batch with rows. Otherwise the next row would wait for five round trips.
_BRIEF_SECONDS = 0.005
# Pause for a due scheduled row locked elsewhere.
_LOCKED_SECONDS = 0.1


class Sleeper:
    """Sleeps up to `poll_seconds`, notified of staged jobs; `stop` ends a nap."""

    def __init__(self, enqueuer: Enqueuer, stop: Event, poll_seconds: float) -> None:
        self._enqueuer = enqueuer
        self._stop = stop
        self._poll_seconds = poll_seconds
        self._nap = _FIRST_NAP_SECONDS
        self._busy = False
        self._counted_from, self._counted = monotonic(), enqueuer.delivered

    def begin_with_short_naps(self) -> None:
        """Make the next nap short."""
        self._nap = _FIRST_NAP_SECONDS

    def sleep(self, until: float) -> None:
        """Sleep until there is more than one batch's work, or until this time of `monotonic()`.

        While a staging transaction is open, others may not notify, so this naps for at most 50 ms instead; while jobs
        come fast, for 1 ms.
        """
        self._enqueuer.admission.expect_arrivals()
        if self._is_busy():
            self._stop.wait(_FIRST_NAP_SECONDS)
            return
        with leader.asleep(self._enqueuer.connection) as all_will_notify:
            if all_will_notify:
                self._drain_when_notified(until)
                self.begin_with_short_naps()
                return
        # Naps grow with the open transaction's age: one of a millisecond is found soon, one of an hour costs twenty
        # small scans a second.
        self._look_until(monotonic() + self._nap, self._stop.wait)
        self._nap = min(2 * self._nap, _LONGEST_NAP_SECONDS)

    def _drain_when_notified(self, until: float) -> None:
        """Run a batch now and per notification, while each takes all."""
        enqueuer = self._enqueuer
        enqueuer.matcher.expect_events()
        while not self._is_busy():
            # Rows committed between the last batch and the lock did not notify.
            moved = enqueuer.run_once()
            enqueuer.wait_for_push()
            if enqueuer.matcher.has_resumed or (moved and enqueuer.may_leave_some):
                return
            if moved:
                self._wait_briefly(until)
            elif not self._wait(until):
                return
            if monotonic() >= until or self._stop.is_set():
                return

    def _is_busy(self) -> bool:
        now = monotonic()
        if (seconds := now - self._counted_from) >= _COUNTED_SECONDS:
            count = self._enqueuer.delivered
            is_fast = count - self._counted > _MOST_NOTIFIED * seconds
            # Jobs that leave may be a backlog, which nothing adds to.
            self._busy = is_fast and (
                not self._enqueuer.admission.waits_for_room
                or self._enqueuer.transactions_per_second > _MOST_NOTIFIED
            )
            self._counted_from, self._counted = now, count
        return self._busy

    def _wait_briefly(self, until: float) -> None:
        enqueuer, until = self._enqueuer, min(until, monotonic() + _BRIEF_SECONDS)
        # Other notifications, perhaps forged, are not worth a batch.
        while not self._stop.is_set():
            seconds = min(until, enqueuer.next_look_at) - monotonic()
            if seconds <= 0 or self._is_notified_within(seconds):
                return

    def _is_notified_within(self, seconds: float) -> bool:
        enqueuer = self._enqueuer
        return enqueuer.notified(leader.wait_for_notify(enqueuer.connection, seconds))

    def _wait(self, until: float) -> bool:
        enqueuer = self._enqueuer
        enqueuer.flush()
        next_scheduled = waiting.seconds_to_next_scheduled(enqueuer.connection, if_due=_LOCKED_SECONDS)
        longest = self._poll_seconds if next_scheduled is None else min(self._poll_seconds, next_scheduled)
        return self._look_until(min(until, monotonic() + longest), self._is_notified_within)

    def _look_until(self, until: float, wait: Callable[[float], bool]) -> bool:
        """Look for room between calls of `wait`; return True if there may be work."""
        enqueuer = self._enqueuer
        while not self._stop.is_set():
            look_at = enqueuer.next_look_at
            if wait(max(0.0, min(until, look_at) - monotonic())):
                return True
            if monotonic() >= until:
                return False
            # A look costs one round trip; a batch, several.
            if monotonic() >= look_at and enqueuer.look():
                return True
        return False
