"""Why one job waits, since when, and when it will probably start.

    explanation  result, and descriptions of all causes
    situation    lazily read facts about a job
    absent       ids in no table
    ended        finished or dead jobs
    staged       staged jobs
    blocked      jobs that wait for others
    inflight     jobs delivered, running or retrying
    obstacles    causes that hold a due job
    rates        used-up rates
    uniqueness   jobs that share a unique key
    places       jobs ahead in queue and key
    stack        stack of a running job
    estimates    recent speed of a queue
    timeline     times of a job's hops

All tables are read in one snapshot, so a moving job is in exactly one. The first cause on a job's path wins. Each query
reads at most 10,000 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain.database.postgres import Connection
from drain.errors import UnknownJobError
from drain.read import queries
from drain.read.explain import absent, blocked, ended, inflight, staged
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
    """Explain why a job waits now; without `redis`, lists and workers are ignored.

    Args:
        connection: In autocommit mode, outside a transaction.

    Raises:
        psycopg.Error: The database failed. An unavailable Redis is a cause instead.
    """
    if found := _look(connection, redis, job_id):
        return found
    # Read first: the second look then sees all rows committed before.
    traces = absent.read_traces(connection)
    return _look(connection, redis, job_id) or absent.explain(connection, job_id, traces)


def _look(connection: Connection, redis: Producer | None, job_id: int) -> Explanation | None:
    with snapshot(connection):
        try:
            job: Mapping[str, Any] = queries.job(connection, job_id)
        except UnknownJobError:
            return None
        situation = Situation(connection, redis, job)
        return blocked.explain(situation, _of_state) if queries.is_blocked(job) else _of_state(situation)


def _of_state(situation: Situation) -> Explanation:
    return _OF_STATE[situation.job["state"]](situation)
