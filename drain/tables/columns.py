"""Columns of a job and conditions of indexes, as constants of SQL: no other module spells them.

A job keeps its columns from table to table; each table adds some of its own. tests/unit/test_columns.py compares all
of this with `schema.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drain.database.grants import STAGED_BY_APPLICATIONS

# Columns that an application may give when it stages; the others have defaults.
STAGEABLE = STAGED_BY_APPLICATIONS
# Columns that a job brings along from `staged_jobs` to `inflight_jobs` and `dead_jobs`.
JOB = f"id, {STAGEABLE}, staged_at, fencing_token, history, salt, staged_by, stands_for"
# Columns that `stands_for` keeps of a job that gave way.
REQUEST = f"id, {STAGEABLE}, staged_by"
# Columns of `dead_jobs` for a job that has been in flight; the others have defaults.
DEAD = f"{JOB}, attempts, last_error, reason, explanation"
# Columns of a claimed job that its worker reads, between its id and its attempts; JSON as texts.
CLAIMED = "job_name, job_args::text, job_kwargs::text, queue, tag, context::text"

# Attempts so far, with the present one: that of a job which was claimed among others counts when it ends.
ATTEMPTS = "attempts + batched::integer"

# Columns of `finished_jobs`, and their values in a row of `inflight_jobs`; those of `drain_finish` in `schema.sql`.
_KEPT = (
    "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context, staged_at, moved_at, claimed_at, "
    "fencing_token, last_error, history, key, staged_by"
)
FINISHED = f"{_KEPT}, finished_at, finished_by, attempts"
FINISHED_VALUES = f"{_KEPT}, clock_timestamp(), claimed_by, {ATTEMPTS}"
# Columns of `finished_jobs` for a job that has given way to another one; below, their values, but for the last one, in
# a row of `inflight_jobs` and of `staged_jobs`.
SUPERSEDED = f"{_KEPT}, finished_at, attempts, superseded_by"


def _kept_but(values: Mapping[str, str]) -> str:
    return ", ".join(values.get(column, column) for column in _KEPT.split(", "))


# The token is raised: a worker whose lease ran out before cannot take the row for its own finish.
_IN_FLIGHT = {"claimed_at": "coalesce(claimed_at, now())", "fencing_token": "fencing_token + 1"}
SUPERSEDED_IN_FLIGHT = f"{_kept_but(_IN_FLIGHT)}, now(), attempts"
_STAGED = {
    "moved_at": "now()",
    "claimed_at": "now()",
    "last_error": "NULL::jsonb",
    "fencing_token": "fencing_token + 1",
}
SUPERSEDED_STAGED = f"{_kept_but(_STAGED)}, now(), 0"

# Condition of the index `staged_jobs_in_lanes`: all rows of `staged_jobs_ready` fulfil it.
DUE = "(scheduled_at <= staged_at OR matured_at IS NOT NULL)"
# First columns of that index: the kind of lane that a row is in, by the constants of `lanes`, and the queue.
LANE_QUEUE = 'queue COLLATE "C"'
LANE_KIND = "((priority > 0)::integer * 2 + (key IS NOT NULL)::integer)"
# Conditions of indexes on `inflight_jobs`: a worker has claimed the job; or it waits for one, under its number.
IS_CLAIMED = "lease_expires_at IS NOT NULL"
DELIVERED = "lease_expires_at IS NULL AND next_run_at IS NULL"
# The states that commands and pages show. A job whose lease is over is queued: its worker has died or hangs.
RUNNING = "lease_expires_at > now()"
QUEUED = "next_run_at IS NULL AND (lease_expires_at > now()) IS NOT TRUE"
LAPSED = "lease_expires_at <= now()"
RETRYING = "next_run_at IS NOT NULL AND lease_expires_at IS NULL"

# Conditions on rows of `inflight_jobs` that are looked up by id. Each is written so that it implies the condition of no
# index other than the primary key: a planner that believes the table to be empty would read all of such an index, as
# happened through a pooler.
# Value of `last_error` for a failure now, in a statement on a row of `inflight_jobs`: it keeps the first one too.
ERROR_NOW = """%(error)s::jsonb || pg_catalog.jsonb_build_object('at', clock_timestamp())
        || CASE WHEN last_error IS NULL THEN '{}'::jsonb ELSE pg_catalog.jsonb_build_object(
            'first', coalesce(last_error -> 'first'::text, last_error - 'traceback'::text)) END"""
NOT_CLAIMED = "coalesce(lease_expires_at, '-infinity') = '-infinity'"
LEASE_IS_OVER = "coalesce(lease_expires_at, '-infinity') < clock_timestamp()"
# Only the enqueuer, which renumbers a waiting row, makes it one that can be claimed.
NOT_WAITING = "coalesce(next_run_at, '-infinity') = '-infinity'"


def finite(time: str) -> str:
    """Bound a time for subtraction: up to version 16, PostgreSQL cannot subtract infinite ones.

    One such row would hide the numbers of all queues.
    """
    return f"least('9999-12-30Z'::timestamptz, greatest('0001-01-02Z'::timestamptz, {time}))"


def these_rows(**columns: str) -> str:
    """Condition for the rows with these ids and numbers, from the parameter `ids` and one for each column.

    They are compared by a hash of all lists, whatever the planner believes of the table: IS TRUE keeps it from making
    a join of the two, and a join of tables that it believes to be empty compares each row with each. The ids are named
    once more, so that the rows are looked up by them.

    Args:
        columns: The column, or an expression that is never null, by the name of its parameter.
    """
    given = ", ".join(f"%({name})s::bigint[]" for name in ("ids", *columns))
    row = ", ".join(("id", *columns.values()))
    return f"id = ANY (%(ids)s::bigint[]) AND (({row}) IN (SELECT * FROM unnest({given}))) IS TRUE"


def id_array(ids: Iterable[int]) -> str:
    """Ids as the text of a PostgreSQL array; measured: a quarter of what a list costs psycopg."""
    return "{" + ",".join(map(str, ids)) + "}"
