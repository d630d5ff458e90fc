"""Columns of a job and conditions of indexes, as SQL constants, each defined once.

tests/unit/test_columns.py compares them with `schema.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drain.database.grants import STAGED_BY_APPLICATIONS

# An application may give these when staging.
STAGEABLE = STAGED_BY_APPLICATIONS
# What a job takes from `staged_jobs` to `inflight_jobs` and `dead_jobs`.
JOB = f"id, {STAGEABLE}, staged_at, fencing_token, history, salt, staged_by, stands_for"
# What `stands_for` keeps of a job that gave way.
REQUEST = f"id, {STAGEABLE}, staged_by"
# `dead_jobs` columns for a job that has been in flight.
DEAD = f"{JOB}, attempts, last_error, reason, explanation"
# What a worker reads of a claimed job; JSON as text.
CLAIMED = "job_name, job_args::text, job_kwargs::text, queue, tag, context::text"

# Attempts including the present one; an attempt claimed in a batch counts when it ends.
ATTEMPTS = "attempts + batched::integer"

# `finished_jobs` columns, and their values in a row of `inflight_jobs`; as in `drain_finish`.
_KEPT = (
    "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context, staged_at, moved_at, claimed_at, "
    "fencing_token, last_error, history, key, staged_by"
)
FINISHED = f"{_KEPT}, finished_at, finished_by, attempts"
FINISHED_VALUES = f"{_KEPT}, clock_timestamp(), claimed_by, {ATTEMPTS}"
# `finished_jobs` columns for a job that gave way; below, their values, without the last, in the other tables.
SUPERSEDED = f"{_KEPT}, finished_at, attempts, superseded_by"


def _kept_but(values: Mapping[str, str]) -> str:
    return ", ".join(values.get(column, column) for column in _KEPT.split(", "))


# The raised token fences off a worker whose lease ran out.
_IN_FLIGHT = {"claimed_at": "coalesce(claimed_at, now())", "fencing_token": "fencing_token + 1"}
SUPERSEDED_IN_FLIGHT = f"{_kept_but(_IN_FLIGHT)}, now(), attempts"
_STAGED = {
    "moved_at": "now()",
    "claimed_at": "now()",
    "last_error": "NULL::jsonb",
    "fencing_token": "fencing_token + 1",
}
SUPERSEDED_STAGED = f"{_kept_but(_STAGED)}, now(), 0"

# Condition of the index `staged_jobs_in_lanes`, true for all of `staged_jobs_ready`.
DUE = "(scheduled_at <= staged_at OR matured_at IS NOT NULL)"
# First columns of that index; `lanes` names the kinds.
LANE_QUEUE = 'queue COLLATE "C"'
LANE_KIND = "((priority > 0)::integer * 2 + (key IS NOT NULL)::integer)"
# Conditions of indexes on `inflight_jobs`.
IS_CLAIMED = "lease_expires_at IS NOT NULL"
DELIVERED = "lease_expires_at IS NULL AND next_run_at IS NULL"
# The states that commands show. With an expired lease a job is queued: its worker died or hangs.
RUNNING = "lease_expires_at > now()"
QUEUED = "next_run_at IS NULL AND (lease_expires_at > now()) IS NOT TRUE"
LAPSED = "lease_expires_at <= now()"
RETRYING = "next_run_at IS NOT NULL AND lease_expires_at IS NULL"

# Value of `last_error` for a failure now; it keeps the first one.
ERROR_NOW = """%(error)s::jsonb || pg_catalog.jsonb_build_object('at', clock_timestamp())
        || CASE WHEN last_error IS NULL THEN '{}'::jsonb ELSE pg_catalog.jsonb_build_object(
            'first', coalesce(last_error -> 'first'::text, last_error - 'traceback'::text)) END"""
# For look-ups by id. They imply no index but the primary key's: a planner that takes the table for empty would scan all
# of another one, as happened through a pooler.
NOT_CLAIMED = "coalesce(lease_expires_at, '-infinity') = '-infinity'"
LEASE_IS_OVER = "coalesce(lease_expires_at, '-infinity') < clock_timestamp()"
# Only the leader makes a waiting row claimable.
NOT_WAITING = "coalesce(next_run_at, '-infinity') = '-infinity'"


def finite(time: str) -> str:
    """Bound a time for subtraction: up to version 16, PostgreSQL cannot subtract infinite ones."""
    return f"least('9999-12-30Z'::timestamptz, greatest('0001-01-02Z'::timestamptz, {time}))"


def these_rows(**columns: str) -> str:
    """Build a condition on ids and numbers, from the parameter `ids` and one per column.

    IS TRUE forces a hashed comparison: a join of tables believed to be empty compares each row with each. The ids are
    repeated for the index.

    Args:
        columns: Column, or expression that is never null, by parameter name.
    """
    given = ", ".join(f"%({name})s::bigint[]" for name in ("ids", *columns))
    row = ", ".join(("id", *columns.values()))
    return f"id = ANY (%(ids)s::bigint[]) AND (({row}) IN (SELECT * FROM unnest({given}))) IS TRUE"


def id_array(ids: Iterable[int]) -> str:
    """Format ids as a PostgreSQL array; measured: a quarter of the cost of a list in psycopg."""
    return "{" + ",".join(map(str, ids)) + "}"
