"""Jobs of `benchmarks.forecasts`."""

from __future__ import annotations

import time

from drain import job


@job(max_attempts=1)
def nap(milliseconds: float) -> None:
    """Sleep, as a job does that waits for another service."""
    time.sleep(milliseconds / 1000)
