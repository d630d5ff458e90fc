"""Results of the jobs that a job waited for."""

from __future__ import annotations

from typing import Any

import psycopg

from drain.database.postgres import Connection, home_of
from drain.database.qualified import within

# By the ids given as `after`. The array leaves only the primary key to look in.
READ_RESULTS = """
SELECT edge.parent_id, done.result::text
FROM finished_jobs AS done JOIN job_edges AS edge ON edge.awaited_id = done.id
WHERE done.id = ANY (ARRAY (SELECT awaited_id FROM job_edges WHERE child_id = %(id)s AND state = 'met'))
    AND edge.child_id = %(id)s AND done.result IS NOT NULL
ORDER BY edge.parent_id
"""


def read_results(connection: Connection, job_id: int) -> dict[int, str]:
    """Read the kept results of a job's predecessors, as JSON, by id."""
    statement = within(home_of(connection), READ_RESULTS)
    return dict(connection.execute(statement, {"id": job_id}, prepare=False).fetchall())


async def read_results_async(connection: psycopg.AsyncConnection[Any], job_id: int) -> dict[int, str]:
    """See `read_results`."""
    statement = within(home_of(connection), READ_RESULTS)
    return dict(await (await connection.execute(statement, {"id": job_id}, prepare=False)).fetchall())
