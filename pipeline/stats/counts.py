"""Counts of dead, staged and in-flight jobs in Postgres."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from drain.database.postgres import Connection
from drain.pipeline.stats.question import WEEK, Question
from drain.pipeline.stats.report import CANCELLED, Error
from drain.tables.selections import NO_IDLE_UNDO, NO_MARKER

_CHOSEN = (
    f"{NO_MARKER} AND (%(queue)s::text IS NULL OR queue = %(queue)s) "
    "AND (%(job)s::text IS NULL OR job_name = %(job)s)"
)
_STAGED = f"""
SELECT queue, job_name, count(*) FROM staged_jobs WHERE {_CHOSEN} AND {NO_IDLE_UNDO} GROUP BY queue, job_name
"""
_INFLIGHT = f"SELECT queue, job_name, count(*) FROM inflight_jobs WHERE {_CHOSEN} GROUP BY queue, job_name"
_ERRORS = 10
_LINE = r"\S[^\n]*"
# Parts of an error that differ between jobs: UUIDs, hexadecimal numbers, and numbers such as 1.5 or 10:30.
_NUMBER = (
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|\m(?=[a-f]*\d)[0-9a-f]{8,}\M|\d+([.,:-]\d+)*"
)
# One scan. Rarer errors become NULL, so that the result is small.
_DEAD = f"""
WITH dead AS (
    SELECT queue, job_name, floor(extract(epoch FROM died_at) / %(period)s)::bigint AS period,
        least(greatest(floor(extract(epoch FROM %(now)s - died_at) / %(week)s), 0), 2)::integer AS week,
        reason, CASE WHEN reason <> '{CANCELLED}' THEN left(regexp_replace(concat_ws(': ',
            CASE WHEN reason <> 'expired' THEN last_error ->> 'type'::text END,
            substring(left(CASE WHEN reason = 'expired' OR last_error IS NULL THEN explanation
                ELSE last_error ->> 'message'::text END, 1000), %(line)s)), %(number)s, '#', 'gi'), 200) END AS error,
        count(*) AS jobs, sum(attempts) AS attempts, max(died_at) AS latest
    FROM dead_jobs WHERE {_CHOSEN} AND (%(since)s::timestamptz IS NULL OR died_at >= %(since)s)
    GROUP BY 1, 2, 3, 4, 5, 6
), frequent AS (
    SELECT error FROM dead WHERE error IS NOT NULL GROUP BY error ORDER BY sum(jobs) DESC, error LIMIT {_ERRORS}
)
SELECT queue, job_name, period, week, reason, frequent.error, sum(jobs)::bigint, sum(attempts)::bigint, max(latest)
FROM dead LEFT JOIN frequent USING (error) GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY reason
"""


class Key(NamedTuple):
    """Group of jobs, None for all; `period` counts from 1970, `week` is 0 or 1 for the last and previous seven days."""

    queue: str | None = None
    job_name: str | None = None
    period: int | None = None
    week: int | None = None


ALL = Key()


@dataclass(frozen=True)
class Unfinished:
    """Unfinished jobs by group; dead ones by reason, with attempts of those not cancelled."""

    dead: dict[Key, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    dead_attempts: Counter[Key] = field(default_factory=Counter)
    errors: list[Error] = field(default_factory=list)
    staged: Counter[Key] = field(default_factory=Counter)
    inflight: Counter[Key] = field(default_factory=Counter)


def count(connection: Connection, question: Question, now: datetime) -> Unfinished:
    """Count in the connection's open transaction."""
    given = {
        "queue": question.queue,
        "job": question.job,
        "since": question.begin(now),
        "period": question.period.total_seconds(),
        "now": now,
        "week": WEEK.total_seconds(),
        "line": _LINE,
        "number": _NUMBER,
    }
    found = Unfinished()
    names: dict[str, Counter[str]] = defaultdict(Counter)
    seen: dict[str, datetime] = {}
    for queue, name, period, week, reason, error, jobs, attempts, latest in connection.execute(_DEAD, given):
        for key in _groups(queue, name, period, week):
            found.dead[key][reason] += jobs
            found.dead_attempts[key] += 0 if reason == CANCELLED else attempts
        if error is not None:
            names[error][name] += jobs
            seen[error] = max(latest, seen.get(error, latest))
    found.errors.extend(
        Error(error, of.total(), [name for name, _ in of.most_common()], seen[error])
        for error, of in sorted(names.items(), key=lambda found: (-found[1].total(), found[0]))
    )
    for statement, counted in ((_STAGED, found.staged), (_INFLIGHT, found.inflight)):
        for queue, job_name, jobs in connection.execute(statement, given):
            counted[Key(queue, job_name)] = jobs
            counted[ALL] += jobs
    return found


def _groups(queue: str, job_name: str, period: int, week: int) -> list[Key]:
    weeks = [Key(week=week), Key(queue, week=week)] if week < 2 else []
    return [
        *(ALL, Key(period=period), Key(queue, job_name), Key(queue, job_name, period)),
        *weeks,
    ]
