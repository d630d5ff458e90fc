"""Bulk runs, which stage jobs by the million: all of a run's rows appear in one commit, and only once.

Each run that is under way has a side table, to which any number of tasks copy rows; Spark may discard the work of some.
The commit stages the rows of the tasks that count, records the run, and drops its side tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from psycopg import errors
from psycopg.sql import SQL, Identifier

from drain.database import locks
from drain.database.postgres import Connection, fetch_one
from drain.errors import StageError
from drain.tables import staged

TASK = "task"

# Upper bound of the characters of a row that an error message shows.
_SHOWN_CHARACTERS = 200
_FIND_RUN = "SELECT rows FROM bulk_runs WHERE run_id = %s"
_FIND_PLAN = "SELECT plan FROM bulk_runs WHERE run_id = %s"
# A run that has staged no jobs does not use its id up.
_NOTE_RUN = """
INSERT INTO bulk_runs (run_id, rows, plan) VALUES (%s, %s, %s) ON CONFLICT (run_id) DO UPDATE
SET rows = excluded.rows, plan = excluded.plan, committed_at = excluded.committed_at WHERE bulk_runs.rows = 0
"""
_CREATE = "SELECT drain_create_side_table(%s::text)"
_DROP = "SELECT drain_drop_side_table(%s::text)"
_DROP_ALL = "SELECT drain_drop_side_table(name) FROM bulk_side_tables WHERE run_id = %s"
# Ends the sessions that still write to a side table of a run, or are just committing it.
_END_WRITERS = """
SELECT pg_terminate_backend(pid) FROM bulk_side_tables AS side JOIN pg_locks ON relation = to_regclass(side.name)::oid
WHERE run_id = %s AND locktype = 'relation' AND pid <> pg_backend_pid()
"""
# Counts rows that are being copied, and rows that have been: the latter are known within a second of a task's commit.
_COPIED = """
SELECT coalesce(sum(pg_stat_get_tuples_inserted(to_regclass(name)) + coalesce((
    SELECT sum(tuples_processed) FROM pg_stat_progress_copy WHERE relid = to_regclass(name)::oid)::bigint, 0)),
    0)::bigint
FROM bulk_side_tables WHERE run_id = %s
"""
_NO_JSON = """
SELECT {column} FROM {table} WHERE task = ANY (%s) AND NOT pg_input_is_valid({column}, 'jsonb') LIMIT 1
"""


class Task(NamedTuple):
    """Task that has copied its rows and committed them."""

    number: int
    rows: int


def rows_of(connection: Connection, run_id: str) -> int | None:
    """Return the number of jobs that the run has staged; None if it has not."""
    found = connection.execute(_FIND_RUN, (run_id,)).fetchone()
    return None if found is None else int(found[0])


def plan_of(connection: Connection, run_id: str) -> str | None:
    """Return the plan that the run has staged; None if there is no such run, or its plan was not noted."""
    found = connection.execute(_FIND_PLAN, (run_id,)).fetchone()
    return None if found is None else found[0]


def try_to_run(connection: Connection, run_id: str) -> bool:
    """Take the lock of a run for as long as the session lives; False if another session has it."""
    return locks.try_lock(connection, locks.BULK_RUN, run_id)


def copied_rows(connection: Connection, run_id: str) -> int:
    """Estimate the number of rows that a run's tasks have copied so far."""
    (rows,) = fetch_one(connection, _COPIED, (run_id,))
    return int(rows)


def create_side_table(connection: Connection, run_id: str) -> str:
    """Make a side table for a run that begins; side tables that are a day old are dropped."""
    (name,) = fetch_one(connection, _CREATE, (run_id,))
    return str(name)


def drop_side_table(connection: Connection, name: str) -> None:
    """Drop a side table with all its rows, if it is still there."""
    connection.execute(_DROP, (name,))


def drop_side_tables(connection: Connection, run_id: str) -> None:
    """Drop all side tables of a run."""
    connection.execute(_DROP_ALL, (run_id,))


def abandon(connection: Connection, run_id: str) -> None:
    """End the sessions that still write for a run, and drop its side tables. Jobs that it has staged stay.

    Args:
        connection: In autocommit mode.
        run_id: Id of the run, whose lock the caller holds.
    """
    connection.execute(_END_WRITERS, (run_id,))
    drop_side_tables(connection, run_id)


def stage(
    connection: Connection,
    run_id: str,
    side_table: str,
    tasks: Sequence[Task],
    *,
    rows_per_second: float | None = None,
    plan: str | None = None,
) -> int:
    """Stage the rows that these tasks have copied, in a transaction of its own, unless the run has been staged.

    Args:
        connection: In autocommit mode.
        run_id: Id of the run. Of several callers that commit at the same time, one stages, and the others return the
            same number.
        side_table: Name of the side table with the rows. It is dropped, and so are all others of this run.
        tasks: Tasks whose rows count.
        rows_per_second: Number of rows that come due in each second from now on; None: all at once.
        plan: Description of what the run stages; see `plan_of`.

    Returns:
        Number of jobs that the run has staged, now or before.

    Raises:
        StageError: A row breaks a rule of `staged_jobs`, or rows are missing; nothing is staged.
    """
    expected = sum(task.rows for task in tasks)
    numbers = [task.number for task in tasks]
    try:
        with connection.transaction():
            if connection.execute(_NOTE_RUN, (run_id, expected, plan)).rowcount:
                rows = staged.insert_from(connection, side_table, numbers, rows_per_second=rows_per_second)
                if rows != expected:
                    raise StageError(
                        f"the tasks have copied {expected} rows and {rows} were found; nothing was staged"
                    )
            else:
                (expected,) = fetch_one(connection, _FIND_RUN, (run_id,))
            drop_side_table(connection, side_table)
    except errors.UndefinedTable:
        raise StageError(
            f"the rows of run {run_id!r} are gone: another driver has staged it, or a day has passed"
        ) from None
    except errors.IntegrityError as error:
        row = (error.diag.message_detail or "").strip()[:_SHOWN_CHARACTERS]
        raise StageError(
            f"nothing was staged, because a row breaks the rule {broken_rule(error)!r}: {row}"
        ) from None
    except (errors.DatetimeFieldOverflow, errors.IntervalFieldOverflow):
        raise StageError(
            f"nothing was staged: at {rows_per_second} rows a second the last of {expected:,} would come due "
            "later than any time that PostgreSQL has; name a higher rate"
        ) from None
    except errors.DataError as error:
        text = _text_that_is_no_json(connection, side_table, numbers) or error.diag.message_primary
        raise StageError(f"nothing was staged, because a row cannot be read as JSON: {text}") from None
    _drop_unused(connection, run_id)
    return expected


def _drop_unused(connection: Connection, run_id: str) -> None:
    """Drop the side tables of other drivers of the run, but for one in use, which its own driver drops."""
    with suppress(errors.LockNotAvailable), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '100ms'")
        drop_side_tables(connection, run_id)


def broken_rule(error: errors.IntegrityError) -> str:
    """Name the rule that a row breaks, in words: the name of the constraint, or the column that must not be null."""
    if error.diag.constraint_name:
        return error.diag.constraint_name.replace("_", " ")
    return f"{(error.diag.column_name or 'a column').replace('_', ' ')} must not be null"


def _text_that_is_no_json(connection: Connection, side_table: str, numbers: Sequence[int]) -> str | None:
    for column in ("job_args", "job_kwargs", "context"):
        statement = SQL(_NO_JSON).format(column=Identifier(column), table=Identifier(side_table))
        try:
            found = connection.execute(statement, (list(numbers),)).fetchone()
        except errors.UndefinedFunction:
            # Before PostgreSQL 16.
            return None
        if found is not None:
            return f"{column} = {str(found[0])[:_SHOWN_CHARACTERS]}"
    return None
