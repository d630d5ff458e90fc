"""Rows about jobs that no table has any more."""

from __future__ import annotations

from drain.database.postgres import Connection, fetch_one

# Jobs may be in any table, so one snapshot must show them all.
_DELETE = """
WITH looked AS (
    SELECT DISTINCT {column} AS id FROM {table} WHERE {column} > %(after)s ORDER BY {column} LIMIT %(most)s
), gone AS (
    DELETE FROM {table} WHERE {column} = ANY (ARRAY (
        SELECT id FROM looked
        WHERE NOT EXISTS (SELECT FROM staged_jobs WHERE staged_jobs.id = looked.id)
            AND NOT EXISTS (SELECT FROM inflight_jobs WHERE inflight_jobs.id = looked.id)
            AND NOT EXISTS (SELECT FROM finished_jobs WHERE finished_jobs.id = looked.id)
            AND NOT EXISTS (SELECT FROM dead_jobs WHERE dead_jobs.id = looked.id)))
    RETURNING {column}
)
SELECT coalesce((SELECT max(id) FROM looked), 0), (SELECT count(*) FROM gone)
"""
DELETE_STEPS = _DELETE.format(table="job_steps", column="job_id")
DELETE_EDGES = _DELETE.format(table="job_edges", column="child_id")


def delete(connection: Connection, statement: str, after: int, most: int) -> tuple[int, int]:
    """Delete the rows of jobs that are in no table.

    Args:
        statement: One of the two.
        after: Only of jobs with a higher id.
        most: Jobs to look at.

    Returns:
        The last id looked at, 0 at the end; and how many rows are gone.
    """
    last, gone = fetch_one(connection, statement, {"after": after, "most": most})
    return last, gone
