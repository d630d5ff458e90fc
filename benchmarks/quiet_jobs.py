"""Jobs of an ordinary day, for `benchmarks.quiet_alarms`."""

from __future__ import annotations

import time

from drain.workers import current_job, job


@job(queue="mail")
def send(_number: int) -> None:
    """Return immediately."""


@job(queue="reports", timeout_seconds=60)
def report(_number: int) -> None:
    time.sleep(0.2)


@job(queue="mail", max_attempts=5, retry_base_seconds=1, retry_cap_seconds=2)
def fail_once(_number: int) -> None:
    """Fail on the first attempt, like a call over a network."""
    if current_job().attempt == 1:
        raise ConnectionError("try again")
