"""Timeline of one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from drain.tables.columns import BLOCKED_UNTIL
from drain.tables.failures import earlier_errors, is_interruption, summary_of, time_of

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

    Failed attempts also have `attempt`, `worker` and `error`; steps have `step`, their name.

    Args:
        noted: Times recorded by processes (`wire.Traces`).
    """
    times = dict(noted)
    for column, hop in _OF_TABLES.items():
        at = job.get(column)
        # An unscheduled job is due when staged; a blocked one has no time.
        if at is not None and (column != "scheduled_at" or job["staged_at"] < at != BLOCKED_UNTIL):
            times[hop] = at
    attempts = list(_attempts(job))
    if attempts:
        # A death has its transaction's start time, before the failure that caused it.
        times |= {"died": max(times["died"], attempts[-1]["at"])} if "died" in times else {}
        times.pop("failed", None)
    steps = (
        {"hop": "step", "at": step["recorded_at"], "step": step["name"]} for step in job.get("steps", ())
    )
    ordered = sorted(
        [*attempts, *steps, *({"hop": hop, "at": at} for hop, at in times.items())], key=lambda hop: hop["at"]
    )
    before = [ordered[0]["at"], *(hop["at"] for hop in ordered)]
    return [
        {
            **hop,
            "seconds": (hop["at"] - before[0]).total_seconds(),
            "step_seconds": (hop["at"] - last).total_seconds(),
        }
        for hop, last in zip(ordered, before, strict=False)
    ]


def _attempts(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    newest = job.get("last_error")
    for error in (*reversed(earlier_errors(newest)), newest):
        if not isinstance(error, Mapping) or (at := time_of(error.get("at"))) is None:
            continue
        known = {name: error[name] for name in ("attempt", "worker") if error.get(name) is not None}
        claimed_at = time_of(error.get("claimed_at"))
        if claimed_at and claimed_at != job.get("claimed_at"):
            yield {"hop": "claimed", "at": claimed_at, **known}
        hop = "interrupted" if is_interruption(error) else "failed"
        yield {"hop": hop, "at": at, **known, "error": summary_of(error)}
