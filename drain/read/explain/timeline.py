"""Times at which one job passed its tables and processes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

_OF_TABLES = {
    "staged_at": "staged",
    "scheduled_at": "due",
    "moved_at": "moved",
    "claimed_at": "claimed",
    "failed_at": "failed",
    "finished_at": "finished",
    "died_at": "died",
}


def hops_of(job: Mapping[str, Any], noted: Mapping[str, datetime]) -> list[dict[str, Any]]:
    """List the hops of a job in time order, with `seconds` since the first and `step_seconds` since the previous.

    Args:
        noted: Times noted by processes (`wire.Traces`).
    """
    times = dict(noted)
    for column, hop in _OF_TABLES.items():
        at = job.get(column)
        # An unscheduled job is due when staged.
        if at is not None and (column != "scheduled_at" or at > job["staged_at"]):
            times[hop] = at
    ordered = sorted(times.items(), key=lambda pair: pair[1])
    before = [ordered[0][1], *(at for _, at in ordered)]
    return [
        {
            "hop": hop,
            "at": at,
            "seconds": (at - before[0]).total_seconds(),
            "step_seconds": (at - last).total_seconds(),
        }
        for (hop, at), last in zip(ordered, before, strict=False)
    ]
