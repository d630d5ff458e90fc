"""Sleep of a leader that has nothing to do: until a job is staged, a scheduled row is due, or other work is."""

from __future__ import annotations

from threading import Event
from time import monotonic

from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import waiting

# Bounds of a nap: it doubles from the first to the longest.
_FIRST_NAP_SECONDS = 0.001
_LONGEST_NAP_SECONDS = 0.05


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

    def begin_with_short_naps(self) -> None:
        """Let the next nap be a short one: there was something to do."""
        self._nap = _FIRST_NAP_SECONDS

    def sleep(self, until: float) -> None:
        """Drain once more, and sleep if there was nothing to do; at most until this time of `monotonic()`.

        While a transaction that stages is open, this is a nap of at most 50 ms instead: others may not notify.
        """
        connection = self._enqueuer.connection
        with leader.asleep(connection) as all_will_notify:
            if all_will_notify:
                # Once more: rows that were committed between the last batch and the lock have not notified.
                if not self._enqueuer.run_once():
                    self._wait(until)
                self.begin_with_short_naps()
                return
        # A transaction has staged and is still open, and others that commit meanwhile may not notify. The
        # longer it takes, the longer the naps: a transaction of a millisecond is found after another one,
        # and one of an hour costs twenty small scans a second.
        self._stop.wait(self._nap)
        self._nap = min(2 * self._nap, _LONGEST_NAP_SECONDS)

    def _wait(self, until: float) -> None:
        """Wait for a notification, for a scheduled row, or until rows that wait for room may have some."""
        enqueuer = self._enqueuer
        next_scheduled = waiting.seconds_to_next_scheduled(enqueuer.connection)
        longest = self._poll_seconds if next_scheduled is None else min(self._poll_seconds, next_scheduled)
        until = min(until, monotonic() + longest)
        while not self._stop.is_set():
            look_at = enqueuer.next_look_at
            seconds = max(0.0, min(until, look_at) - monotonic())
            if leader.wait_for_notify(enqueuer.connection, seconds) or monotonic() >= until:
                return
            # A look that finds no room costs one exchange with Redis, and a batch would cost several with PostgreSQL.
            if monotonic() >= look_at and enqueuer.look():
                return
