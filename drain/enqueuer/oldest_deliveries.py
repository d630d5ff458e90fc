"""The oldest unclaimed delivery of each queue, found about once a second.

Each claim leaves a dead entry at the head of the index, and while some session holds an old snapshot no vacuum
removes it: measured, a look takes 0.15 s after a million of them. But the number that is looked for never
falls. Only the leader hands out numbers, each higher than the last, and a job that was claimed becomes
unclaimed again under a new one only. So each look begins where the last one ended, queue by queue, and the
leader knows the queues because it pushes to them.

A look at the whole index comes first, and every few minutes, in case somebody has written to the table by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.pacer import Pace
from drain.tables import waiting

_WHOLE_SECONDS = 300.0


class OldestDeliveries:
    """Looks on the leader's connection, for as long as it leads.

    Args:
        enqueuer: The leader's; it knows which queues there are, and the last number.
    """

    def __init__(self, enqueuer: Enqueuer) -> None:
        self._enqueuer = enqueuer
        self._whole = Pace(_WHOLE_SECONDS)
        self._bounds: dict[str, int] = {}
        self._next_number = 0

    @property
    def bounds(self) -> Mapping[str, int]:
        """A number of each queue that no unclaimed delivery of it is below."""
        return self._bounds

    def look(self) -> dict[str, int]:
        """The lowest number of each queue that has delivered jobs which nobody has claimed."""
        enqueuer = self._enqueuer
        for queue in enqueuer.queues - self._bounds.keys():
            self._bounds[queue] = self._next_number
        self._next_number = enqueuer.last_delivery + 1
        oldest = self._look_at_all() if self._whole.is_due() else self._look_behind_bounds()
        enqueuer.queues.update(oldest)
        self._bounds = dict.fromkeys(enqueuer.queues, self._next_number) | oldest
        return oldest

    def _look_at_all(self) -> dict[str, int]:
        began = monotonic()
        oldest = dict(waiting.oldest_deliveries(self._enqueuer.connection))
        self._whole.took(monotonic() - began)
        return oldest

    def _look_behind_bounds(self) -> dict[str, int]:
        return dict(waiting.oldest_deliveries_from(self._enqueuer.connection, self._bounds))
