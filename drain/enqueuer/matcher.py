"""Ends the waits of jobs, by events or at their deadlines.

A look compares waits and events of transactions that the last look did not see with all of the other side, whichever
commits first. If a row is locked, the next look finds the same again. A new leader compares all waits.
"""

from __future__ import annotations

import logging
from math import inf
from time import monotonic

import psycopg

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import waits
from drain.tables.edge_looks import Snapshot

log = logging.getLogger(__name__)

# Between looks, of 0.2 ms; less after a notification, by events and waits among others.
_PAUSE_SECONDS = 0.05
_LONGEST_SHARE = 0.1
# While none waits.
_IDLE_SECONDS = 0.1
# After a failure, doubled each time.
_FAILED_SECONDS = 1.0
_LONGEST_FAILED_SECONDS = 30.0


class Matcher:
    """Looks on the leader's connection, between batches.

    Attributes:
        next_look_at: Time of `monotonic()` of the next look; infinity while none waits.
        has_resumed: Jobs are due since the last `redelivered`.
    """

    def __init__(self, connection: Connection) -> None:
        self.next_look_at = -inf
        self.has_resumed = False
        self._connection = connection
        self._last: Snapshot | None = None
        self._look_at = self._soonest = -inf
        self._failed_pause = _FAILED_SECONDS
        self._waits = True

    def expect_events(self) -> None:
        """Look soon: something may have been committed."""
        if self._waits:
            self._look_at = self._soonest
        self.next_look_at = self._look_at

    def redelivered(self) -> None:
        """Note that redelivery takes up the jobs that are due."""
        self.has_resumed = False

    def run_once(self) -> bool:
        """Look if due; return whether jobs are due."""
        began = monotonic()
        if began < self._look_at:
            return False
        try:
            found = waits.match(self._connection, self._last)
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            self._put_off(error)
            return False
        if found.ended:
            failpoint(FailurePoint.WAITS_ENDED)
        self._failed_pause = _FAILED_SECONDS
        if found.is_complete:
            self._last = found.snapshot
        self.has_resumed |= found.resumed > 0
        self._waits = found.waits
        now = monotonic()
        self._soonest = now + (now - began) / _LONGEST_SHARE
        pause = _PAUSE_SECONDS if found.waits else _IDLE_SECONDS
        self._look_at = now if found.ended == waits.MOST else max(self._soonest, now + pause)
        self.next_look_at = self._look_at if found.waits else inf
        return found.resumed > 0

    def run_all(self) -> None:
        """End all waits that may end now."""
        while waits.match(self._connection, None).ended:
            pass

    def _put_off(self, error: psycopg.Error) -> None:
        if self._failed_pause == _FAILED_SECONDS:
            reason = error.diag.message_primary or str(error).partition("\n")[0]
            log.warning("waiting jobs stay: %s", reason, extra={"event": "not_matched"})
        self._look_at = self._soonest = self.next_look_at = monotonic() + self._failed_pause
        self._failed_pause = min(2 * self._failed_pause, _LONGEST_FAILED_SECONDS)
