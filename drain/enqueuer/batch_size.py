"""Batch size, adapted to the server."""

from __future__ import annotations

# A batch of twice the rows stays far from the statement timeout.
_QUICK_SECONDS = 5.0


class AdaptiveBatchSize:
    """Maximum rows of the next batch, kept across terms."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = most

    def shrink(self, failed_rows: int) -> None:
        """Halve it after a batch too large for the server."""
        self.rows = max(1, failed_rows // 2)

    def grow(self, batch_seconds: float) -> None:
        """Double it after a quick batch."""
        if batch_seconds < _QUICK_SECONDS:
            self.rows = min(self._most, 2 * self.rows)

    @property
    def is_reduced(self) -> bool:
        """True below the maximum."""
        return self.rows < self._most
