"""Estimates from the recent speed of a queue or key, idle time excluded."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from drain.formatting import duration, visible
from drain.read.causes import MOST
from drain.read.explain.explanation import Estimate
from drain.read.explain.places import number
from drain.read.explain.situation import Situation
from drain.tables.columns import HAS_RUN

_MINUTES = 10
_MOST_FINISHED = 1000
# Finished jobs that suffice to measure the speed.
_ENOUGH = 10
_FINISHED = f"""
SELECT begun_at, finished_at, has_run AND (%(key)s::text IS NULL OR key = %(key)s::text) FROM (
    SELECT CASE WHEN attempts > 1 THEN claimed_at ELSE moved_at END AS begun_at, finished_at, key,
        {HAS_RUN} AS has_run
    FROM finished_jobs WHERE queue = %(queue)s AND finished_at > now() - interval '{_MINUTES} minutes'
    ORDER BY finished_at DESC LIMIT {_MOST_FINISHED}) AS latest
ORDER BY begun_at
"""


class _Span(NamedTuple):
    begun_at: datetime
    ended_at: datetime
    counts: bool = True


def per_second(situation: Situation, key: str | None = None) -> float | None:
    """Measure jobs finished per second."""
    parameters = {"queue": situation.queue, "key": key}
    read = [_Span(*row) for row in situation.connection.execute(_FINISHED, parameters, binary=True)]
    ended = [span for span in read if span.counts]
    if not ended:
        return None
    is_whole = len(read) < _MOST_FINISHED
    begin = situation.now - timedelta(minutes=_MINUTES) if is_whole else min(span.ended_at for span in read)
    # The queue is busy while the job waits, so these measure best.
    lately = [span for span in ended if span.ended_at > situation.due_at]
    if len(lately) >= _ENOUGH:
        ended, begin = lately, max(begin, situation.due_at)
    running = [job.since for job in situation.running if key is None or job.key == key]
    spans = [*ended, *([_Span(min(running), situation.now)] if running else [])]
    speed = len(ended) / max(_busy_seconds(spans, begin), 1.0)
    return min(speed, *_rates(situation, key))


def _busy_seconds(spans: Iterable[_Span], begin: datetime) -> float:
    covered, end = 0.0, begin
    for span in sorted(spans):
        first = max(span.begun_at, end)
        if span.ended_at > first:
            covered += (span.ended_at - first).total_seconds()
            end = span.ended_at
    return covered


def _rates(situation: Situation, key: str | None) -> list[float]:
    rules = situation.rules
    buckets = (rules.bucket, rules.bucket_of_key if key is not None else None)
    return [float("inf"), *(bucket.per_second for bucket in buckets if bucket is not None)]


def by_speed(situation: Situation, before: int, key: str | None = None) -> Estimate:
    """Estimate a start from the jobs ahead."""
    whose = f"queue {situation.queue}" if key is None else f"key {visible(key)}"
    speed = per_second(situation, key)
    if speed is None:
        return none(f"{whose} completed no jobs in the last {_MINUTES} minutes")
    if situation.crew and situation.crew.is_stuck(situation.now, speed):
        return none(f"all workers of queue {situation.queue} are busy with long jobs")
    pace = f"{speed:,.0f} jobs per second" if speed >= 2 else f"a job every {duration(1 / speed)}"
    lately = f"{whose} recently completed {pace}"
    if before > MOST:
        return none(f"more than {MOST:,} jobs are ahead; {lately}")
    return Estimate((before + 1) / speed, f"{number(before)} ahead; {lately}")


def none(reason: str) -> Estimate:
    """Return an estimate with only a reason."""
    return Estimate(None, reason)


def at_once(reason: str) -> Estimate:
    """Return an estimate of one second."""
    return Estimate(1.0, reason)


def in_(seconds: float, reason: str) -> Estimate:
    """Return an estimate of at least 0 seconds."""
    return Estimate(max(0.0, seconds), reason)
