"""Calls back delivered, unclaimed jobs held back by a pause or new limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from time import monotonic

from drain.database.postgres import Connection
from drain.enqueuer.pacer import Pacer
from drain.failpoints import FailurePoint, failpoint
from drain.formatting import count
from drain.tables import cancellations, pauses, redeliveries
from drain.tables.pauses import FollowedPauses, Pauses

log = logging.getLogger(__name__)

_SLICE = 1000
# Between deletions of ended pauses and cancelled claims.
_PRUNE_SECONDS = 60.0


class CallBack:
    """Calls back once a second, before redelivery.

    The id of a job called back stays in its list, but no claim finds it. Once no pause applies, the leader delivers it
    under a new number.
    """

    def __init__(
        self,
        connection: Connection,
        alive: Callable[[], None] = lambda: None,
        followed: FollowedPauses | None = None,
    ) -> None:
        self._connection = connection
        self._alive = alive
        self._scans = Pacer()
        self._prunes = Pacer(_PRUNE_SECONDS)
        self._followed = followed or FollowedPauses(connection)
        self.paused = Pauses()

    def run_once(self) -> int:
        """Call back paused jobs; return how many."""
        before, self.paused = self.paused, self._followed.look()
        if self._prunes.is_due():
            pauses.prune(self._connection)
            cancellations.prune(self._connection)
            self._prunes.ran_for(0.0)
        # Repeated, since workers may release claims of paused jobs; paced, being slow with millions.
        if not self.paused or (self.paused == before and not self._scans.is_due()):
            return 0
        began = monotonic()
        total = self._call_back()
        if self.paused == before and not total:
            self._scans.ran_for(monotonic() - began)
        return total

    def outdated(self, queues: Collection[str], up_to: int) -> set[str]:
        """Call back jobs delivered under earlier limits, as retries; return queues with locked ones.

        Those start if the lock is a claim's. Otherwise, another call must find them.
        """
        self._in_slices(
            lambda: redeliveries.call_back_all(self._connection, _SLICE, queues, up_to), "new limits"
        )
        return redeliveries.still_delivered(self._connection, queues, up_to)

    def leases(self, within: float, ruled: Collection[str]) -> list[int]:
        """Call back jobs with recently expired leases, paused or under rules, as retries; return their ids."""
        called_back: list[int] = []
        while self.paused or ruled:
            found = redeliveries.call_back_leases(self._connection, _SLICE, queues=ruled, within=within)
            called_back += found
            self._alive()
            if len(found) < _SLICE:
                break
        if called_back:
            log.info(
                "called back %s: lease expired",
                count(len(called_back), "job"),
                extra={"event": "called_back", "jobs": len(called_back)},
            )
        return called_back

    def _call_back(self) -> int:
        queues = self.paused.queues
        return self._in_slices(lambda: redeliveries.call_back(self._connection, _SLICE, queues), "paused")

    def _in_slices(self, call_back: Callable[[], int], reason: str) -> int:
        total = 0
        while True:
            number = call_back()
            total += number
            if number:
                failpoint(FailurePoint.CALLED_BACK)
            self._alive()
            if number < _SLICE:
                break
        if total:
            log.info(
                "called back %s: %s",
                count(total, "job"),
                reason,
                extra={"event": "called_back", "jobs": total},
            )
        return total
