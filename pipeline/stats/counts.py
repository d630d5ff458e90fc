"""Counts of jobs that are not finished: dead, staged and in flight, as Postgres finds them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from drain.database.postgres import Connection
from pipeline.stats.question import Question
from pipeline.stats.report import CANCELLED

# Queue, name and number of the period since 1970; None in a place stands for all values.
Key: TypeAlias = tuple[str | None, str | None, int | None]
ALL: Key = (None, None, None)

_CHOSEN = "(%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(job)s::text IS NULL OR job_name = %(job)s)"
_STAGED = f"SELECT queue, job_name, count(*) FROM staged_jobs WHERE {_CHOSEN} GROUP BY queue, job_name"
_INFLIGHT = f"SELECT queue, job_name, count(*) FROM inflight_jobs WHERE {_CHOSEN} GROUP BY queue, job_name"
# Counts by name, by period, by both, and of all together.
_DEAD = f"""
SELECT queue, job_name, period, reason, count(*), sum(attempts)
FROM dead_jobs, LATERAL (SELECT floor(extract(epoch FROM died_at) / %(period)s)::bigint AS period) AS time
WHERE {_CHOSEN} AND (%(since)s::timestamptz IS NULL OR died_at >= %(since)s)
GROUP BY GROUPING SETS ((reason), (reason, period), (reason, queue, job_name), (reason, queue, job_name, period))
ORDER BY reason
"""


@dataclass(frozen=True)
class Unfinished:
    """Counts of jobs that are not finished, by queue, name and period.

    Attributes:
        dead: Number of dead jobs by reason.
        dead_attempts: Number of attempts of the dead jobs that were not cancelled.
        staged: Number of staged jobs, over all periods.
        inflight: Number of jobs in flight, over all periods.
    """

    dead: dict[Key, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    dead_attempts: Counter[Key] = field(default_factory=Counter)
    staged: Counter[Key] = field(default_factory=Counter)
    inflight: Counter[Key] = field(default_factory=Counter)


def count(connection: Connection, question: Question, now: datetime) -> Unfinished:
    """Count unfinished jobs, in the transaction that is open on this connection."""
    given = {
        "queue": question.queue,
        "job": question.job,
        "since": question.begin(now),
        "period": question.period.total_seconds(),
    }
    found = Unfinished()
    for queue, job_name, period, reason, jobs, attempts in connection.execute(_DEAD, given):
        found.dead[queue, job_name, period][reason] = jobs
        found.dead_attempts[queue, job_name, period] += 0 if reason == CANCELLED else attempts
    for statement, counted in ((_STAGED, found.staged), (_INFLIGHT, found.inflight)):
        for queue, job_name, jobs in connection.execute(statement, given):
            counted[queue, job_name, None] = jobs
            counted[ALL] += jobs
    return found
