"""Pauses: the rows of `queue_pauses`, which name queues, jobs and keys of which nothing starts.

A pause applies to the jobs that have all of what it names. One for an unlimited time and one until a time stand beside
each other. Statements that run in an application's transaction name their parameters `%(name)s`; `drain.jobs.callers`
executes them on any connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from drain.database.postgres import Connection


class Pause(NamedTuple):
    """Row of `queue_pauses`.

    Attributes:
        queue: Name of the queue; None for all queues.
        job_name: Name of the jobs; None for all names.
        key: Key of the jobs; None for all jobs, with or without a key.
        until: Time at which the pause ends by itself; None for never.
        reason: Sentence for people.
        paused_by: Role of the database, or worker, that made the pause.
        paused_at: Time since which it holds.
    """

    queue: str | None
    job_name: str | None
    key: str | None
    until: datetime | None
    reason: str | None
    paused_by: str | None = None
    paused_at: datetime | None = None


_NAMES = "coalesce(queue, ''), coalesce(job_name, ''), coalesce(key, '')"
_HOLDS = "(until IS NULL OR until > clock_timestamp())"
READ = f"""
SELECT queue, job_name, key, until, reason, paused_by, paused_at FROM queue_pauses
WHERE {_HOLDS}
ORDER BY paused_at, number
"""
# Pause until a time, or for some seconds, or for an unlimited time if both are NULL. A pause that is there already
# lasts until the later of both times. A time that has passed pauses nothing.
PAUSE = f"""
INSERT INTO queue_pauses (queue, job_name, key, until, reason, paused_by)
SELECT wanted.* FROM (
    SELECT CAST(%(queue)s AS text), CAST(%(job_name)s AS text), CAST(%(key)s AS text),
        coalesce(CAST(%(until)s AS timestamptz),
            clock_timestamp() + make_interval(secs => CAST(%(seconds)s AS double precision))) AS until,
        CAST(%(reason)s AS text), coalesce(CAST(%(paused_by)s AS text), CAST(session_user AS text))) AS wanted
WHERE {_HOLDS}
ON CONFLICT ({_NAMES}, (until IS NULL)) DO UPDATE SET
    until = greatest(queue_pauses.until, EXCLUDED.until), reason = EXCLUDED.reason, paused_by = EXCLUDED.paused_by
RETURNING until
"""
RESUME = """
DELETE FROM queue_pauses
WHERE queue IS NOT DISTINCT FROM CAST(%(queue)s AS text)
    AND job_name IS NOT DISTINCT FROM CAST(%(job_name)s AS text) AND key IS NOT DISTINCT FROM CAST(%(key)s AS text)
RETURNING until IS NULL OR until > clock_timestamp()
"""
_PRUNE = "DELETE FROM queue_pauses WHERE until <= clock_timestamp()"


# Condition on a row that is called `job`, of any table of jobs: a pause applies to it. Each comparison can be searched
# for in the index `queue_pauses_once`, of which a column is '' for a pause that does not name it.
IS_PAUSED = """EXISTS (
    SELECT FROM queue_pauses AS pause
    WHERE coalesce(pause.queue, '') = ANY (ARRAY['', job.queue])
        AND coalesce(pause.job_name, '') = ANY (ARRAY['', job.job_name])
        AND coalesce(pause.key, '') = ANY (ARRAY['', coalesce(job.key, '')])
        AND (pause.until IS NULL OR pause.until > now()))"""


def read(connection: Connection) -> list[Pause]:
    """Read the pauses that hold now, the oldest first."""
    return rows_of(connection.execute(READ, binary=True))


def rows_of(rows: Iterable[Any]) -> list[Pause]:
    """Make pauses of the rows that `READ` returns."""
    return [Pause._make(row) for row in rows]


def prune(connection: Connection) -> int:
    """Delete the pauses that are over; returns their number."""
    return connection.execute(_PRUNE).rowcount


def pause_for(
    connection: Connection,
    queue: str,
    key: str | None,
    when: float | datetime,
    *,
    reason: str,
    paused_by: str,
) -> None:
    """Pause a key of a queue, or the queue if `key` is None, until a time or for some seconds from now.

    Args:
        connection: Any; the caller decides about the transaction.
        queue: Name of the queue.
        key: Key, or None.
        when: Time at which the pause ends, or seconds.
        reason: Sentence for people.
        paused_by: Name of the worker.
    """
    until, seconds = (when, None) if isinstance(when, datetime) else (None, when)
    parameters = {
        "queue": queue,
        "job_name": None,
        "key": key,
        "until": until,
        "seconds": seconds,
        "reason": reason,
        "paused_by": paused_by,
    }
    connection.execute(PAUSE, parameters)
