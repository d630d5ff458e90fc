"""How many rows a batch takes: as many as it may, and fewer after one that was too much for the server."""

from __future__ import annotations

# A batch of twice the rows should still be far from the longest time that a statement may take.
_QUICK_SECONDS = 5.0


class AdaptiveBatchSize:
    """Kept for as long as the process lives: what is learnt in one term as leader holds in the next.

    Args:
        most: The most rows of a batch.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = most

    def halve(self, rows: int) -> None:
        """Take half of these from now on; at least one."""
        self.rows = max(1, rows // 2)

    def went_well(self, seconds: float) -> None:
        """Take twice as many from now on, unless a batch took so long."""
        if seconds < _QUICK_SECONDS:
            self.rows = min(self._most, 2 * self.rows)

    @property
    def is_reduced(self) -> bool:
        """Whether a batch takes fewer than it may."""
        return self.rows < self._most
