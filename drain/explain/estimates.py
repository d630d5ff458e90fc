"""Estimates from measured speeds: how many jobs of a queue, or of a key, have ended in the last minutes."""

from __future__ import annotations

from drain.database.postgres import fetch_one
from drain.explain.explanation import Estimate
from drain.explain.places import number
from drain.explain.situation import Situation
from drain.tables.obstacles import MOST

# Time in which finished jobs count, in minutes.
_MINUTES = 10
_FINISHED = f"""
SELECT count(*), date_part('epoch', clock_timestamp() - min(finished_at)) FROM (
    SELECT finished_at, key, superseded_by FROM finished_jobs
    WHERE queue = %(queue)s AND finished_at > now() - interval '{_MINUTES} minutes'
    ORDER BY finished_at DESC LIMIT 1000) AS latest
WHERE superseded_by IS NULL AND (%(key)s::text IS NULL OR key = %(key)s::text)
"""


def per_second(situation: Situation, key: str | None = None) -> float | None:
    """Measure how many jobs of the queue, or of one of its keys, finish in a second; None if none has lately."""
    (finished, seconds) = fetch_one(situation.connection, _FINISHED, {"queue": situation.queue, "key": key})
    return finished / max(seconds, 1.0) if finished else None


def by_speed(situation: Situation, before: int, key: str | None = None) -> Estimate:
    """Estimate the start of a job from the number of jobs before it and the speed of its queue, or of its key."""
    whose = f"queue {situation.queue}" if key is None else f"key {key}"
    speed = per_second(situation, key)
    if speed is None:
        return none(f"no job of {whose} has finished in the last {_MINUTES} minutes")
    if before > MOST:
        return none(f"more than {MOST:,} jobs are before it, and {speed:.3g} of {whose} end in a second")
    reason = f"{number(before)} before it, and {speed:.3g} of {whose} have ended in a second lately"
    return Estimate((before + 1) / speed, reason)


def none(reason: str) -> Estimate:
    """Say why there is no estimate."""
    return Estimate(None, reason)


def at_once(reason: str) -> Estimate:
    """Estimate a start within about a second."""
    return Estimate(1.0, reason)


def in_(seconds: float, reason: str) -> Estimate:
    """Estimate a start after this time; a negative one counts as now."""
    return Estimate(max(0.0, seconds), reason)
