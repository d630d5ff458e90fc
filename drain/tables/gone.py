"""Rows about jobs that no table has any more, or that no longer need them."""

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
            AND NOT EXISTS (SELECT FROM dead_jobs WHERE dead_jobs.id = looked.id) {unless}))
    RETURNING {column}
)
SELECT coalesce((SELECT max(id) FROM looked), 0), (SELECT count(*) FROM gone)
"""
_NOT_FINISHED = "AND NOT EXISTS (SELECT FROM finished_jobs WHERE finished_jobs.id = looked.id)"
# Those to be undone are kept, and with them what leads to the job that undoes them.
_IS_UNDONE = f"""
{_NOT_FINISHED} AND NOT EXISTS (
    SELECT FROM {{table}} AS own WHERE own.{{column}} = looked.id AND undone_by IS NOT NULL
        AND (EXISTS (SELECT FROM staged_jobs WHERE staged_jobs.id = undone_by)
            OR EXISTS (SELECT FROM inflight_jobs WHERE inflight_jobs.id = undone_by)
            OR EXISTS (SELECT FROM dead_jobs WHERE dead_jobs.id = undone_by)))"""
# A discarded undo's edge to its flow, the lowest one, shows whether it had begun.
_IS_OF_FLOW = f"""
{_NOT_FINISHED} AND NOT EXISTS (SELECT FROM flows WHERE undone_by = looked.id AND flows.id = (
    SELECT parent_id FROM job_edges WHERE child_id = looked.id ORDER BY parent_id LIMIT 1))"""
DELETE_STEPS = _DELETE.format(
    table="job_steps", column="job_id", unless=_IS_UNDONE.format(table="job_steps", column="job_id")
)
DELETE_EDGES = _DELETE.format(table="job_edges", column="child_id", unless=_IS_OF_FLOW)
DELETE_FLOWS = _DELETE.format(
    table="flows", column="id", unless=_IS_UNDONE.format(table="flows", column="id")
)
# A dead job keeps its wait: after a retry, its deadline is the same.
DELETE_WAITS = _DELETE.format(table="job_waits", column="job_id", unless="")


def delete(connection: Connection, statement: str, after: int, most: int) -> tuple[int, int]:
    """Delete the rows of jobs that are in no table.

    Args:
        statement: One of the four.
        after: Only of jobs with a higher id.
        most: Jobs to look at.

    Returns:
        The last id looked at, 0 at the end; and how many rows are gone.
    """
    last, gone = fetch_one(connection, statement, {"after": after, "most": most})
    return last, gone
