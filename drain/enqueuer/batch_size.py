"""Number of rows in a batch: halved after a batch that was too much for the server, then doubled step by step."""

from __future__ import annotations

# Longest batch after which the size is doubled: one of twice the rows is still far from the statement timeout.
_QUICK_SECONDS = 5.0


class AdaptiveBatchSize:
    """Size of the next batch. It lives as long as the process: a term as leader begins with what the last one learnt.

    Args:
        most: Upper bound of the rows in a batch.

    Attributes:
        rows: Rows that the next batch reads at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = most

    def shrink(self, failed_rows: int) -> None:
        """Reduce the size to half of a batch that has failed; at least one row."""
        self.rows = max(1, failed_rows // 2)

    def grow(self, batch_seconds: float) -> None:
        """Double the size after a batch that was committed, unless that batch took long; up to the upper bound."""
        if batch_seconds < _QUICK_SECONDS:
            self.rows = min(self._most, 2 * self.rows)

    @property
    def is_reduced(self) -> bool:
        """True if the size is below its upper bound."""
        return self.rows < self._most
