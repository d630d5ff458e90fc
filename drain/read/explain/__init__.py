"""Why one job waits: a single cause, since when, and when the job will probably start.

    explanation  result: state, cause, sentence, estimate; words of all causes
    situation    lazily read facts about a job, its queue and both stores
    absent       ids in no table: not given out, uncommitted, or gone
    ended        finished or dead jobs
    staged       jobs in `staged_jobs`
    inflight     jobs delivered, running, or awaiting their next attempt
    obstacles    causes that hold a due job: leader, Redis, pauses, order, limits
    rates        used-up rates of a queue or key
    uniqueness   jobs that share a unique key
    places       jobs ahead in the queue and in the key
    stack        stack of a running job, asked of its worker
    estimates    recent speed of a queue
    timeline     times at which a job passed its tables and processes

The tables are read in one snapshot, so a moving job is in exactly one of them. Causes are tried in the order of a
job's path, and the first that holds wins. Each question reads at most 10,000 rows. The leader is not asked.
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
    """Explain what a job waits for now.

    Args:
        connection: In autocommit mode, outside a transaction.
        redis: None leaves lists and workers out.

    Raises:
        psycopg.Error: The database failed. An unavailable Redis is a cause instead.
    """
    if found := _look(connection, redis, job_id):
        return found
    # Traces before the second look: a transaction that ended before them has its row there, or rolled back.
    traces = absent.read_traces(connection)
    return _look(connection, redis, job_id) or absent.explain(connection, job_id, traces)


def _look(connection: Connection, redis: Producer | None, job_id: int) -> Explanation | None:
    with snapshot(connection):
        try:
            job: Mapping[str, Any] = queries.job(connection, job_id)
        except UnknownJobError:
            return None
        return _OF_STATE[job["state"]](Situation(connection, redis, job))
