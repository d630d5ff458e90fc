"""Explanation of one job: the one thing that the job waits for now, since when, and when it will probably start.

    explanation  the result: state, cause, sentence, estimate; the words of all causes
    situation    all that is read about one job, its queue and the two stores
    absent       ids that no table has: never given out, of an open transaction, or gone
    ended        jobs that are finished or dead
    staged       jobs that wait in `staged_jobs`
    inflight     jobs that were delivered, run, or wait for their next attempt
    obstacles    what may hold a due job: leader, Redis, pauses, order, limits, rates
    rates        tokens of a queue or a key: when the next job may begin
    uniqueness   jobs that share a unique key: which one stands, and until when it stays quiet
    places       numbers of jobs before one in its queue and in its key
    stack        where a running job is, asked of its worker process
    estimates    how fast a queue has finished jobs lately
    timeline     times at which one job passed its tables and processes

What always holds: the tables are read in one snapshot, so that a job which moves meanwhile is in exactly one place; the
causes are tried in the order of a job's way, and the first that holds is the answer; each question looks at 10,000 rows
at most. The leader is not asked: what it decides by is worked out from the tables and Redis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain.database.postgres import Connection
from drain.errors import UnknownJobError
from drain.read import queries
from drain.read.explain import absent, ended, inflight, staged
from drain.read.explain.explanation import CAUSES, Estimate, Explanation
from drain.read.explain.situation import Situation
from drain.read.snapshots import snapshot
from drain.wire import Producer

__all__ = ["CAUSES", "Estimate", "Explanation", "explain"]

_OF_STATE = {
    "staged": staged.explain,
    "inflight": inflight.explain,
    "finished": ended.explain_finished,
    "dead": ended.explain_dead,
}


def explain(connection: Connection, redis: Producer | None, job_id: int) -> Explanation:
    """Find out what a job waits for now.

    Args:
        connection: In autocommit mode, with no transaction open.
        redis: Redis that the leader pushes into; None leaves lists and workers out.
        job_id: Id that staging has returned.

    Raises:
        psycopg.Error: The database failed. If Redis does not answer, that is the cause for which jobs wait.
    """
    if found := _look(connection, redis, job_id):
        return found
    # In this order: a transaction that is over when these are read has its row in the second look, or none.
    traces = absent.read_traces(connection)
    return _look(connection, redis, job_id) or absent.explain(connection, job_id, traces)


def _look(connection: Connection, redis: Producer | None, job_id: int) -> Explanation | None:
    with snapshot(connection):
        try:
            job: Mapping[str, Any] = queries.job(connection, job_id)
        except UnknownJobError:
            return None
        return _OF_STATE[job["state"]](Situation(connection, redis, job))
