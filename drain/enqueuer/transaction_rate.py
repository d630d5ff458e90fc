"""Rate of transaction ids, which bounds that of commits that stage jobs."""

from __future__ import annotations

from math import inf
from time import monotonic

_SHORTEST_SECONDS = 0.05


class TransactionRate:
    """Follows the snapshots of the leader's looks.

    Attributes:
        per_second: Infinite until two snapshots are known.
    """

    def __init__(self) -> None:
        self.per_second = inf
        self._xmax, self._at = 0, -inf

    def note(self, xmax: str) -> None:
        """Note the next transaction id of a new snapshot."""
        now = monotonic()
        if (seconds := now - self._at) < _SHORTEST_SECONDS:
            return
        if self._at > -inf:
            self.per_second = (int(xmax) - self._xmax) / seconds
        self._xmax, self._at = int(xmax), now
