"""Jobs of `benchmarks.exactness` and `benchmarks.depths`."""

from __future__ import annotations

import asyncio
import random

from drain import job

# Attempts of a hundred that fail, and wait for their retry.
_FAILURES = 2


@job(lease_seconds=5, max_attempts=20)
async def call(milliseconds: int) -> None:
    """Wait as for an answer of another service, and fail now and then."""
    await asyncio.sleep(milliseconds / 1000)
    if random.randrange(100) < _FAILURES:
        raise ConnectionError("the other service has failed")


@job
def nothing() -> None:
    """Do nothing."""
