"""Jobs that finished in the last hours, in steps of five minutes."""

from __future__ import annotations


class History:
    """Numbers of finished jobs of each queue."""
