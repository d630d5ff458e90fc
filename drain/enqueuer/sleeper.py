"""Sleep of a leader that has nothing to do: until a job is staged, a scheduled row is due, or other work is."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic

from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import waiting

# Bounds of a nap: it doubles from the first to the longest.
_FIRST_NAP_SECONDS = 0.001
_LONGEST_NAP_SECONDS = 0.05
# Jobs a second above which transactions shall not notify: as they commit they hold a lock that all of them share. At
# 2,000 single jobs a second naps instead take p50 from commit to start from 7.4 to 6.8 ms, and p99 from 28 to 23.
_MOST_NOTIFIED = 1000
# Shortest time for which jobs are counted.
_COUNTED_SECONDS = 0.05
# Wait for a notification after a batch with rows. Behind it come a batch that finds nothing, the record of the
# watermark and the question for scheduled rows: five exchanges, for which the next row would wait.
_BRIEF_SECONDS = 0.005
# Pause before a due scheduled row is looked at again that the last batch has left: another session has locked it.
_LOCKED_SECONDS = 0.1


class Sleeper:
    """Sleeps on the leader's connection, which is notified of staged jobs.

    Args:
        enqueuer: The leader's.
        stop: Ends a nap.
        poll_seconds: Upper bound of a sleep.
    """

    def __init__(self, enqueuer: Enqueuer, stop: Event, poll_seconds: float) -> None:
        self._enqueuer = enqueuer
        self._stop = stop
        self._poll_seconds = poll_seconds
        self._nap = _FIRST_NAP_SECONDS
        self._busy = False
        self._counted_from, self._counted = monotonic(), enqueuer.delivered

    def begin_with_short_naps(self) -> None:
        """Let the next nap be a short one: there was something to do."""
        self._nap = _FIRST_NAP_SECONDS

    def sleep(self, until: float) -> None:
        """Sleep until there is more to do than a batch takes, or until this time of `monotonic()`.

        Each notification is answered by one batch. While a transaction that stages is open as the sleep begins, this is
        a nap of at most 50 ms instead: others may not notify. While jobs come fast it is a nap of 1 ms.
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
        # A transaction has staged and is still open, and others that commit meanwhile may not notify. The
        # longer it takes, the longer the naps: a transaction of a millisecond is found after another one,
        # and one of an hour costs twenty small scans a second.
        self._look_until(monotonic() + self._nap, self._stop.wait)
        self._nap = min(2 * self._nap, _LONGEST_NAP_SECONDS)

    def _drain_when_notified(self, until: float) -> None:
        """Run a batch now and after each notification, while each takes all, and jobs do not come fast."""
        enqueuer = self._enqueuer
        while not self._is_busy():
            # The first one too: rows that were committed between the last batch and the lock have not notified.
            moved = enqueuer.run_once()
            enqueuer.wait_for_push()
            if moved and enqueuer.may_leave_some:
                return
            if moved:
                self._wait_briefly(until)
            elif not self._wait(until):
                return
            if monotonic() >= until or self._stop.is_set():
                return

    def _is_busy(self) -> bool:
        """Return whether jobs have come too fast of late for each transaction to notify."""
        now = monotonic()
        if (seconds := now - self._counted_from) >= _COUNTED_SECONDS:
            count = self._enqueuer.delivered
            self._busy = count - self._counted > _MOST_NOTIFIED * seconds
            self._counted_from, self._counted = now, count
        return self._busy

    def _wait_briefly(self, until: float) -> None:
        """Wait for a notification that comes soon, and so spare the statements before a longer wait."""
        now = monotonic()
        until = min(until, self._enqueuer.next_look_at, now + _BRIEF_SECONDS)
        self._is_notified_within(max(0.0, until - now))

    def _is_notified_within(self, seconds: float) -> bool:
        notified = leader.wait_for_notify(self._enqueuer.connection, seconds)
        if notified:
            self._enqueuer.admission.expect_arrivals()
        return notified

    def _wait(self, until: float) -> bool:
        """Wait for a notification, for a scheduled row, or until rows that wait for room may have some.

        Returns:
            True if there may be something to drain.
        """
        enqueuer = self._enqueuer
        enqueuer.flush()
        next_scheduled = waiting.seconds_to_next_scheduled(enqueuer.connection, if_due=_LOCKED_SECONDS)
        longest = self._poll_seconds if next_scheduled is None else min(self._poll_seconds, next_scheduled)
        return self._look_until(min(until, monotonic() + longest), self._is_notified_within)

    def _look_until(self, until: float, wait: Callable[[float], bool]) -> bool:
        """Look whether rows that wait for room may have some, whenever it is time, and wait in between.

        Args:
            until: End of the wait.
            wait: Waits for so many seconds; returns True if the wait is over.

        Returns:
            True if there may be something to drain.
        """
        enqueuer = self._enqueuer
        while not self._stop.is_set():
            look_at = enqueuer.next_look_at
            if wait(max(0.0, min(until, look_at) - monotonic())):
                return True
            if monotonic() >= until:
                return False
            # A look that finds no room costs one exchange, and a batch would cost several with PostgreSQL.
            if monotonic() >= look_at and enqueuer.look():
                return True
        return False
