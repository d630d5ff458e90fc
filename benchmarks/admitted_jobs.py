"""Jobs of `benchmarks.exactness` and `benchmarks.depths`."""

from __future__ import annotations

import asyncio
import random

from drain import job

# Percentage of attempts that fail and are retried.
_FAILURES = 2


@job(lease_seconds=5, max_attempts=20)
async def call(milliseconds: int) -> None:
    """Simulate a call to another service, which sometimes fails."""
    await asyncio.sleep(milliseconds / 1000)
    if random.randrange(100) < _FAILURES:
        raise ConnectionError("the other service has failed")


@job
def nothing() -> None:
    """Do nothing."""
