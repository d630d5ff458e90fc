"""Results of the jobs that a running job waited for, and its flow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from drain.database.postgres import Connection, home_of
from drain.database.qualified import within

# The edge of a member, which goes up, or the row of a callback's flow.
_OWN_FLOW = """
SELECT child_id AS id, node FROM job_edges
WHERE awaited_id = %(id)s AND parent_id = %(id)s AND child_id < %(id)s AND on_failure = 'hold'
    AND state = 'waiting' AND awaited_id IS NOT NULL
"""
# Callbacks are staged right after their flow. OFFSET keeps the search from sorting all flows.
READ_FLOW = f"""
{_OWN_FLOW} UNION ALL (
    SELECT id, NULL FROM (
        SELECT id, on_success, on_complete, on_dead, undone_by FROM flows WHERE id < %(id)s
            AND (SELECT true FROM job_edges WHERE child_id = %(id)s LIMIT 1)
        ORDER BY id DESC OFFSET 0) AS earlier
    WHERE %(id)s IN (on_success, on_complete, on_dead, undone_by) LIMIT 1)
LIMIT 1
"""
# By the ids given as `after`. The array leaves only the primary key to look in.
READ_RESULTS = f"""
WITH own AS MATERIALIZED ({_OWN_FLOW})
SELECT edge.parent_id, done.result::text, (SELECT node FROM own LIMIT 1), (
    SELECT mate.node FROM job_edges AS mate
    WHERE mate.child_id = (SELECT id FROM own LIMIT 1) AND mate.parent_id = edge.parent_id)
FROM finished_jobs AS done JOIN job_edges AS edge ON edge.awaited_id = done.id
WHERE done.id = ANY (ARRAY (SELECT awaited_id FROM job_edges WHERE child_id = %(id)s AND state = 'met'))
    AND edge.child_id = %(id)s AND done.result IS NOT NULL
ORDER BY edge.parent_id
"""


def read_results(connection: Connection, job_id: int) -> dict[int | str, str]:
    """Read the kept results of a job's predecessors, as JSON, by id, or by the name of a node of the same flow.

    Names within a sub-flow are those that it gave.
    """
    statement = within(home_of(connection), READ_RESULTS)
    return _by_name(connection.execute(statement, {"id": job_id}, prepare=False).fetchall())


async def read_results_async(connection: psycopg.AsyncConnection[Any], job_id: int) -> dict[int | str, str]:
    """See `read_results`."""
    statement = within(home_of(connection), READ_RESULTS)
    return _by_name(await (await connection.execute(statement, {"id": job_id}, prepare=False)).fetchall())


def read_flow(connection: Connection, job_id: int) -> tuple[int, str | None] | None:
    """Read the flow of a running member or callback, and its node."""
    statement = within(home_of(connection), READ_FLOW)
    return connection.execute(statement, {"id": job_id}, prepare=False).fetchone()


async def read_flow_async(
    connection: psycopg.AsyncConnection[Any], job_id: int
) -> tuple[int, str | None] | None:
    """See `read_flow`."""
    statement = within(home_of(connection), READ_FLOW)
    return await (await connection.execute(statement, {"id": job_id}, prepare=False)).fetchone()


def _by_name(rows: Iterable[tuple[Any, ...]]) -> dict[int | str, str]:
    found: dict[int | str, str] = {}
    for job_id, result, own, node in rows:
        prefix = own[: own.rfind(".") + 1] if own else ""
        found[job_id if node is None else node.removeprefix(prefix)] = result
    return found
