"""Calls back: delivered, unclaimed jobs wait again when a pause or a new limit applies to them."""

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

# Upper bound of the jobs that are called back in one transaction.
_SLICE = 1000
# Shortest time between two deletions of pauses, and of leases of cancelled jobs, that are over.
_PRUNE_SECONDS = 60.0


class CallBack:
    """Calls back for one leader. The leader runs it once a second, before it redelivers anything.

    A job that is called back cannot be claimed, though its id stays in its list: a claim finds no waiting job. The
    leader delivers it again under a new number, once no pause applies to it.

    Args:
        connection: The leader's, in autocommit mode, at read committed.
        alive: Called after each slice.
        followed: Pauses in memory, those of the admission.

    Attributes:
        paused: Pauses that held at the last look.
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
        """Read the pauses, and call back what is delivered and paused; returns the number of jobs.

        Raises:
            psycopg.OperationalError: The database.
        """
        before, self.paused = self.paused, self._followed.look()
        if self._prunes.is_due():
            pauses.prune(self._connection)
            cancellations.prune(self._connection)
            self._prunes.ran_for(0.0)
        # A worker may give back the claim of a job that a pause applies to; so this goes on for as long as there are
        # pauses. With millions of deliveries and an old pause it takes long, and is done the more rarely.
        if not self.paused or (self.paused == before and not self._scans.is_due()):
            return 0
        began = monotonic()
        total = self._call_back()
        if self.paused == before and not total:
            self._scans.ran_for(monotonic() - began)
        return total

    def outdated(self, queues: Collection[str]) -> int:
        """Call back all delivered, unclaimed jobs of queues whose limits have changed; returns their number.

        They begin again as retries do, when the new limits let them.
        """
        return self._in_slices(
            lambda: redeliveries.call_back_all(self._connection, _SLICE, queues), "new limits"
        )

    def leases(self, within: float, ruled: Collection[str]) -> list[int]:
        """Call back jobs whose lease ran out within these last seconds: paused ones, and those of queues with rules.

        These begin again as retries do, once the rules of their queue let them.

        Returns:
            Ids of the jobs.
        """
        called_back: list[int] = []
        while self.paused or ruled:
            found = redeliveries.call_back_leases(self._connection, _SLICE, queues=ruled, within=within)
            called_back += found
            self._alive()
            if len(found) < _SLICE:
                break
        if called_back:
            log.info(
                "called back %s: lease over",
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
