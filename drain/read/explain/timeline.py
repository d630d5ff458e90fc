"""Hops of one job: the times at which it passed its tables and processes, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

# Columns of the tables, and the hop whose time each is.
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
    """List the hops of a job, at least that of its staging, in the order of their times.

    Args:
        job: Row of its table.
        noted: Hops that the processes have noted, as `wire.Traces` reads them.

    Returns:
        For each hop: `hop`, `at`, `seconds` since the first one, and `step_seconds` since the one before.
    """
    times = dict(noted)
    for column, hop in _OF_TABLES.items():
        at = job.get(column)
        # A job that nobody has scheduled is due when it is staged.
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
