"""Estimates from measured speeds: how many jobs of a queue, or of a key, have ended in the last minutes.

Only the time counts in which such jobs were delivered or ran: a queue that was idle for a while is not slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from drain.formatting import duration, visible
from drain.read.causes import MOST
from drain.read.explain.explanation import Estimate
from drain.read.explain.places import number
from drain.read.explain.situation import Situation

# Time in which finished jobs count, in minutes.
_MINUTES = 10
# Upper bound of the finished jobs that are read, the latest ones.
_MOST_FINISHED = 1000
# All workers are busy for longer than this many jobs took lately: the speed says nothing any more.
_LATE = 5
# Number of jobs that have to end while one waits, so that these alone are measured.
_ENOUGH = 10
_FINISHED = f"""
SELECT begun_at, finished_at, superseded_by IS NULL AND (%(key)s::text IS NULL OR key = %(key)s::text) FROM (
    SELECT CASE WHEN attempts > 1 THEN claimed_at ELSE moved_at END AS begun_at, finished_at, key, superseded_by
    FROM finished_jobs WHERE queue = %(queue)s AND finished_at > now() - interval '{_MINUTES} minutes'
    ORDER BY finished_at DESC LIMIT {_MOST_FINISHED}) AS latest
ORDER BY begun_at
"""


class _Span(NamedTuple):
    """Time between the delivery of a job, or its last claim, and its end; `counts` if it is a job to be measured."""

    begun_at: datetime
    ended_at: datetime
    counts: bool = True


def per_second(situation: Situation, key: str | None = None) -> float | None:
    """Measure how many jobs of the queue, or of one of its keys, end in a second; None if none has lately."""
    parameters = {"queue": situation.queue, "key": key}
    read = [_Span(*row) for row in situation.connection.execute(_FINISHED, parameters, binary=True)]
    ended = [span for span in read if span.counts]
    if not ended:
        return None
    is_whole = len(read) < _MOST_FINISHED
    begin = situation.now - timedelta(minutes=_MINUTES) if is_whole else min(span.ended_at for span in read)
    # While the job waits, the queue is not idle: these say best how fast it is.
    lately = [span for span in ended if span.ended_at > situation.due_at]
    if len(lately) >= _ENOUGH:
        ended, begin = lately, max(begin, situation.due_at)
    running = [job.since for job in situation.running if key is None or job.key == key]
    spans = [*ended, *([_Span(min(running), situation.now)] if running else [])]
    speed = len(ended) / max(_busy_seconds(spans, begin), 1.0)
    return min(speed, *_rates(situation, key))


def _busy_seconds(spans: Iterable[_Span], begin: datetime) -> float:
    """Measure the time after `begin` that at least one of these spans covers."""
    covered, end = 0.0, begin
    for span in sorted(spans):
        first = max(span.begun_at, end)
        if span.ended_at > first:
            covered += (span.ended_at - first).total_seconds()
            end = span.ended_at
    return covered


def _rates(situation: Situation, key: str | None) -> list[float]:
    """Return the rates of the queue, and of the key, in jobs a second."""
    rules = situation.rules
    buckets = (rules.bucket, rules.bucket_of_key if key is not None else None)
    return [float("inf"), *(bucket.per_second for bucket in buckets if bucket is not None)]


def by_speed(situation: Situation, before: int, key: str | None = None) -> Estimate:
    """Estimate the start of a job from the number of jobs before it and the speed of its queue, or of its key."""
    whose = f"queue {situation.queue}" if key is None else f"key {visible(key)}"
    speed = per_second(situation, key)
    if speed is None:
        return none(f"no job of {whose} has finished in the last {_MINUTES} minutes")
    if situation.crew and situation.crew.stuck_seconds(situation.now) > 1 + _LATE / speed:
        return none(f"the workers of queue {situation.queue} are busy, and it is unknown when one is free")
    pace = (
        f"{speed:,.0f} jobs of {whose} a second"
        if speed >= 2
        else f"a job of {whose} every {duration(1 / speed)}"
    )
    if before > MOST:
        return none(f"more than {MOST:,} jobs are before it, at {pace} lately")
    return Estimate((before + 1) / speed, f"{number(before)} before it, at {pace} lately")


def none(reason: str) -> Estimate:
    """Say why there is no estimate."""
    return Estimate(None, reason)


def at_once(reason: str) -> Estimate:
    """Estimate a start within about a second."""
    return Estimate(1.0, reason)


def in_(seconds: float, reason: str) -> Estimate:
    """Estimate a start after this time; a negative one counts as now."""
    return Estimate(max(0.0, seconds), reason)
