"""Oldest unclaimed delivery of each queue, found about once a second.

Each claim leaves a dead entry at the head of the index, and while some session holds an old snapshot no vacuum
removes it: measured, a scan takes 0.15 s after a million of them. But only the leader hands out numbers, each higher
than the last. So each scan begins where the last one ended, queue by queue, and the leader knows the queues because
it pushes to them.

The lowest unclaimed number falls when a worker gives back a claim of a job that has not begun: the job is unclaimed
again under the number that it had. So the whole index is scanned as well, as often as that costs a fiftieth of the
time: within a second while the index is small, and every 7.5 s with a million dead entries.

A queue in which nothing has been unclaimed for a while is forgotten, until a push or a scan of the whole index finds it
again. A push has a higher number than all that the last scan could see, so the queue's scan begins there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from time import monotonic

from drain.database.postgres import Connection
from drain.enqueuer.deliveries import Deliveries
from drain.enqueuer.pacer import Pacer
from drain.tables import waiting

# Time after which a queue without unclaimed deliveries is forgotten.
_FORGET_SECONDS = 600.0


class OldestDeliveries:
    """Finds the oldest deliveries on the leader's connection, for as long as it leads.

    Args:
        connection: The leader's.
        deliveries: Its delivery numbers and known queues.
    """

    def __init__(self, connection: Connection, deliveries: Deliveries) -> None:
        self._connection = connection
        self._deliveries = deliveries
        self._whole_scans = Pacer()
        self._lower_bounds: dict[str, int] = {}
        self._idle_since: dict[str, float] = {}
        self._next_number = 0

    @property
    def lower_bounds(self) -> Mapping[str, int]:
        """Lower bound of the unclaimed delivery numbers of each queue, as of the last scan."""
        return self._lower_bounds

    def find(self) -> dict[str, int]:
        """Find the lowest number of each queue that has delivered jobs which no worker has claimed."""
        deliveries = self._deliveries
        for queue in deliveries.queues - self._lower_bounds.keys():
            self._lower_bounds[queue] = self._next_number
        self._next_number = deliveries.last_delivery + 1
        oldest = self._scan_all() if self._whole_scans.is_due() else self._scan_from_lower_bounds()
        deliveries.remember_queues(oldest)
        self._forget_idle(oldest.keys())
        self._lower_bounds = dict.fromkeys(deliveries.queues, self._next_number) | oldest
        return oldest

    def _forget_idle(self, busy: Set[str]) -> None:
        now, before = monotonic(), self._idle_since
        self._idle_since = {queue: before.get(queue, now) for queue in self._deliveries.queues - busy}
        gone = [queue for queue, since in self._idle_since.items() if now - since >= _FORGET_SECONDS]
        self._deliveries.forget_queues(gone)

    def _scan_all(self) -> dict[str, int]:
        began = monotonic()
        oldest = dict(waiting.oldest_deliveries(self._connection))
        self._whole_scans.ran_for(monotonic() - began)
        return oldest

    def _scan_from_lower_bounds(self) -> dict[str, int]:
        return dict(waiting.oldest_deliveries_from(self._connection, self._lower_bounds))
