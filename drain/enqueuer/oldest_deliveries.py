"""Oldest unclaimed delivery of each queue, found about once a second.

Claims leave dead entries at the head of the index, which vacuum must keep while a session holds an old snapshot:
measured, 0.15 s per scan after a million. Numbers only grow, so each scan begins where its queue's last one ended.

A released claim makes a lower number unclaimed again. So the whole index is scanned too, a thousand queues at a time:
within a second while it is small, every 7.5 s with a million dead entries.

A queue without unclaimed deliveries is forgotten until a push, whose numbers are higher than all scanned, or a scan of
the whole index finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from time import monotonic

from drain.database.postgres import Connection
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.pacer import Pacer
from drain.tables import waiting

# Beyond this, queues take turns.
_MOST_QUEUES = 1000
_FORGET_SECONDS = 600.0


class OldestDeliveries:
    """Finds oldest deliveries for a term."""

    def __init__(self, connection: Connection, deliveries: Deliveries) -> None:
        self._connection = connection
        self._deliveries = deliveries
        self._whole_scans = Pacer()
        self._lower_bounds: dict[str, int] = {}
        self._idle_since: dict[str, float] = {}
        self._next_number = 0
        self._looked_at: Set[str] = frozenset()
        # Queues first in turn; and start of the next slice.
        self._waiting: list[str] = []
        self._sliced_up_to = ""

    @property
    def lower_bounds(self) -> Mapping[str, int]:
        """Lower bounds of unclaimed numbers, as of the last scan."""
        return self._lower_bounds

    @property
    def looked_at(self) -> Set[str]:
        """Queues of the last scan: all, unless very many."""
        return self._looked_at

    def find(self) -> dict[str, int]:
        """Return the lowest unclaimed numbers of `looked_at`."""
        deliveries = self._deliveries
        for queue in deliveries.queues - self._lower_bounds.keys():
            self._lower_bounds[queue] = self._next_number
        self._next_number = deliveries.last_delivery + 1
        if self._whole_scans.is_due():
            oldest, self._looked_at = self._scan_slice()
        else:
            self._looked_at = self._next_turn()
            oldest = self._scan_from_lower_bounds(self._looked_at)
        self._forget_idle(self._looked_at - oldest.keys(), oldest.keys())
        self._lower_bounds |= dict.fromkeys(self._looked_at & deliveries.queues, self._next_number) | oldest
        return oldest

    def _next_turn(self) -> Set[str]:
        known = self._deliveries.queues
        if len(known) <= _MOST_QUEUES:
            return set(known)
        if not self._waiting:
            self._waiting = list(known)
        turn, self._waiting = self._waiting[:_MOST_QUEUES], self._waiting[_MOST_QUEUES:]
        return known & set(turn)

    def _forget_idle(self, idle: Set[str], busy: Set[str]) -> None:
        now = monotonic()
        for queue in busy:
            self._idle_since.pop(queue, None)
        gone = [queue for queue in idle if now - self._idle_since.setdefault(queue, now) >= _FORGET_SECONDS]
        for queue in gone:
            del self._idle_since[queue]
            self._lower_bounds.pop(queue, None)
        self._deliveries.forget_queues(gone)

    def _scan_slice(self) -> tuple[dict[str, int], Set[str]]:
        """Return the numbers of the index's next queues, and the names covered."""
        began, after = monotonic(), self._sliced_up_to
        oldest = dict(waiting.oldest_deliveries(self._connection, after, _MOST_QUEUES))
        is_last = len(oldest) < _MOST_QUEUES
        self._sliced_up_to = "" if is_last else list(oldest)[-1]
        self._deliveries.remember_queues(oldest)
        self._whole_scans.ran_for(monotonic() - began)
        return oldest, set(self._deliveries.queues) if is_last and not after else oldest.keys()

    def _scan_from_lower_bounds(self, queues: Set[str]) -> dict[str, int]:
        bounds = {queue: self._lower_bounds[queue] for queue in queues}
        return dict(waiting.oldest_deliveries_from(self._connection, bounds))
