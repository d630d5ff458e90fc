"""Steps of jobs: their results, which later attempts reuse."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from drain.database.postgres import AnyConnection, Connection, home_of
from drain.database.qualified import within
from drain.tables.fences import Fenced

_RESULT = "%s::bigint, %s::bigint, %s::bigint, %s::text, %s::text, %s::json, %s::double precision"
_RECORD = f"drain_record_step({_RESULT})"
_RECORD_UNDOABLE = f"drain_record_undoable_step({_RESULT}, %s::jsonb)"
_RECORD_UNDO = f"drain_record_undo({_RESULT}, %s::bigint, %s::text)"
# Waits for a commit of this claim that is under way: behind the lock, a result that is absent stays so.
WAIT = "SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE"
READ = """
SELECT name, result::text, pg_catalog.date_part('epoch', clock_timestamp() - recorded_at)
FROM job_steps WHERE job_id = %s
"""
# A job's first step with an undo names the undo job, and is undone last, by any clock. A leader of schema version 8
# lets that job run even if the job or flow finished; a job that gave way has no `finished_by`.
READ_UNDOABLE = """
SELECT job_id, name FROM (
    SELECT step.*, CASE WHEN is_first THEN min(recorded_at) OVER (PARTITION BY job_id) ELSE recorded_at END AS at
    FROM job_edges AS edge, LATERAL (
        SELECT job_id, name, recorded_at, undone_by IS NOT NULL AS is_first FROM job_steps
        WHERE job_id = edge.parent_id AND undo IS NOT NULL AND %(id)s::bigint = (
            SELECT undone_by FROM job_steps WHERE job_id = edge.parent_id AND undone_by IS NOT NULL)
        OFFSET 0) AS step
    WHERE edge.child_id = %(id)s::bigint) AS undoable
WHERE (SELECT true FROM finished_jobs AS job WHERE job.id = %(undone)s::bigint
    AND (finished_by IS NOT NULL OR (SELECT true FROM flows WHERE flows.id = job.id)) LIMIT 1) IS NULL
ORDER BY at DESC, is_first, job_id DESC, name DESC
"""
READ_UNDO = "SELECT result::text, undo::text FROM job_steps WHERE job_id = %s::bigint AND name = %s::text"
# Name of the jobs that undo the steps of others.
UNDO = "drain.undo"


class Step(NamedTuple):
    """Step that has run.

    Attributes:
        result: JSON.
        undo: JSON of its undo: the function, `call`, and the kind of step that runs it, `as`.
        undoes: Job and name of the step that it undoes.
    """

    name: str
    result: str
    seconds: float
    undo: str | None = None
    undoes: tuple[int, str] | None = None


class Recorded(NamedTuple):
    """Result of an earlier attempt, as JSON, and its age when read."""

    result: str
    seconds_ago: float


class Undoable(NamedTuple):
    """Recorded step with an undo."""

    job_id: int
    name: str


def read(connection: Connection, claim: Fenced, *, waits: bool = False) -> dict[str, Recorded]:
    """Read the results that earlier attempts recorded, by name.

    Args:
        waits: First let the job's steps under way end.
    """
    if waits:
        connection.execute(within(home_of(connection), WAIT), (claim.id,), prepare=False)
    statement = within(home_of(connection), READ)
    rows = connection.execute(statement, (claim.id,), prepare=False).fetchall()
    return {name: Recorded(*row) for name, *row in rows}


async def read_async(
    connection: psycopg.AsyncConnection[Any], claim: Fenced, *, waits: bool
) -> dict[str, Recorded]:
    """See `read`."""
    if waits:
        await connection.execute(within(home_of(connection), WAIT), (claim.id,), prepare=False)
    statement = within(home_of(connection), READ)
    rows = await (await connection.execute(statement, (claim.id,), prepare=False)).fetchall()
    return {name: Recorded(*row) for name, *row in rows}


def read_undoable(connection: Connection, claim: Fenced, undone: int) -> list[Undoable]:
    """Read the steps that a job has to undo, the last one first.

    Args:
        undone: The job or flow that it undoes.
    """
    statement = within(home_of(connection), READ_UNDOABLE)
    rows = connection.execute(statement, {"id": claim.id, "undone": undone}, prepare=False)
    return [Undoable._make(row) for row in rows]


def read_undo(connection: Connection, undoable: Undoable) -> tuple[str, str]:
    """Read a step's result, and its undo, as JSON."""
    statement = within(home_of(connection), READ_UNDO)
    ((result, undo),) = connection.execute(statement, undoable, prepare=False).fetchall()
    return result, undo


def record(step: Step) -> str:
    """Build a statement that returns whether the claim is current, and the step recorded."""
    return f"SELECT {_call(step)}"


def record_or_fail(connection: AnyConnection, step: Step) -> str:
    """Build a statement that divides by zero if the claim is stale."""
    # As `finishes.FINISH_OR_FAIL`: on failure nothing is committed, so COMMIT is pipelined.
    return within(home_of(connection), f"SELECT 1 / {_call(step)}::integer")


def _call(step: Step) -> str:
    if step.undoes is not None:
        return _RECORD_UNDO
    return _RECORD if step.undo is None else _RECORD_UNDOABLE


def record_parameters(claim: Fenced, step: Step) -> tuple[object, ...]:
    """Return the parameters of `record`."""
    undo = step.undoes or (() if step.undo is None else (step.undo,))
    return (
        claim.id,
        claim.fencing_token,
        claim.salt,
        claim.worker,
        step.name,
        step.result,
        step.seconds,
        *undo,
    )
