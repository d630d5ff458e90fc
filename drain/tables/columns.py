"""A job's columns and index conditions in SQL, compared with `schema.sql` by tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from drain.database.grants import STAGED_BY_APPLICATIONS

# Settable by applications.
STAGEABLE = STAGED_BY_APPLICATIONS
# Moves from `staged_jobs` to `inflight_jobs` and `dead_jobs`.
JOB = f"id, {STAGEABLE}, staged_at, fencing_token, history, salt, staged_by, stands_for"
# Kept in `stands_for` of a job that gave way.
REQUEST = f"id, {STAGEABLE}, staged_by"
# Of a job that has been in flight.
DEAD = f"{JOB}, attempts, last_error, reason, explanation"
# Read by workers.
CLAIMED = "job_name, job_args::text, job_kwargs::text, queue, tag, context::text"

# Including the current one; in a batch, attempts count when they end.
ATTEMPTS = "attempts + batched::integer"

# Columns of `finished_jobs`, as in `drain_finish`.
_KEPT = (
    "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context, staged_at, moved_at, claimed_at, "
    "fencing_token, last_error, history, key, staged_by"
)
FINISHED = f"{_KEPT}, finished_at, finished_by, attempts"
FINISHED_VALUES = f"{_KEPT}, clock_timestamp(), claimed_by, {ATTEMPTS}"
# Not superseded, nor a marker.
HAS_RUN = "superseded_by IS NULL AND attempts > 0"
# Of a job that gave way.
SUPERSEDED = f"{_KEPT}, finished_at, attempts, superseded_by"

# A job with predecessors, until the enqueuer has seen them finish: never due.
BLOCKED_UNTIL = datetime(9999, 12, 29, tzinfo=UTC)
BLOCKED_AT = "'9999-12-29Z'::timestamptz"
IS_BLOCKED = f"scheduled_at = {BLOCKED_AT}"
# A blocked job's time, as if nothing had blocked it.
START_IF_BLOCKED = f"CASE WHEN {IS_BLOCKED} THEN coalesce(starts_at, staged_at) ELSE scheduled_at END"
# Job that ends a flow: the leader finishes it itself.
MARKER = "drain.jobs.markers.end_of_flow"


def _kept_but(values: Mapping[str, str]) -> str:
    return ", ".join(values.get(column, column) for column in _KEPT.split(", "))


# The raised token fences off a worker with an expired lease.
_IN_FLIGHT = {"claimed_at": "coalesce(claimed_at, now())", "fencing_token": "fencing_token + 1"}
SUPERSEDED_IN_FLIGHT = f"{_kept_but(_IN_FLIGHT)}, now(), attempts"
_STAGED = {
    "scheduled_at": START_IF_BLOCKED,
    "moved_at": "now()",
    "claimed_at": "now()",
    "last_error": "NULL::jsonb",
}
SUPERSEDED_STAGED = f"{_kept_but(_STAGED | {'fencing_token': 'fencing_token + 1'})}, now(), 0"
# Of a marker, which no worker claims.
FINISHED_STAGED = f"{_kept_but(_STAGED)}, now(), NULL::text, 0"

# Condition of the index `staged_jobs_in_lanes`; true in `staged_jobs_ready`.
DUE = "(scheduled_at <= staged_at OR matured_at IS NOT NULL)"
LANE_QUEUE = 'queue COLLATE "C"'
LANE_KIND = "((priority > 0)::integer * 2 + (key IS NOT NULL)::integer)"
# `next_run_at` of a job that waits for an event, or sleeps: never due.
PARKED_UNTIL, PARKED_AT = BLOCKED_UNTIL, BLOCKED_AT
# Condition of the index `job_edges_waiting`.
CHILD_WAITS = "state = 'waiting' AND child_id > 0"
# Conditions of `inflight_jobs` indexes.
IS_CLAIMED = "lease_expires_at IS NOT NULL"
DELIVERED = "lease_expires_at IS NULL AND next_run_at IS NULL"
# States as displayed: with an expired lease a job is queued.
RUNNING = "lease_expires_at > now()"
QUEUED = "next_run_at IS NULL AND (lease_expires_at > now()) IS NOT TRUE"
LAPSED = "lease_expires_at <= now()"
PARKED = f"next_run_at = {PARKED_AT}"
RETRYING = f"next_run_at < {PARKED_AT} AND lease_expires_at IS NULL"
# As `queries.inflight_state` names them: part of the retrying and of the queued ones.
DEFERRED = f"{RETRYING} AND (failed_at IS NULL OR failed_at < claimed_at)"
STALLED = f"next_run_at IS NULL AND {LAPSED}"

# For look-ups by id: only the primary key fits. A planner that believes a table empty would scan another index.
NOT_CLAIMED = "coalesce(lease_expires_at, '-infinity') = '-infinity'"
LEASE_IS_OVER = "coalesce(lease_expires_at, '-infinity') < clock_timestamp()"
# Only the leader ends a wait.
NOT_WAITING = "coalesce(next_run_at, '-infinity') = '-infinity'"


def finite(time: str) -> str:
    """Bound a time: PostgreSQL up to 16 cannot subtract infinity."""
    return f"least('9999-12-30Z'::timestamptz, greatest('0001-01-02Z'::timestamptz, {time}))"


def these_rows(**columns: str) -> str:
    """Build a condition on `id` and columns, from arrays `ids` and one per column.

    IS TRUE forces hashing: a join of tables believed empty compares each row with each. The ids are repeated for the
    index. Columns must not be null.
    """
    given = ", ".join(f"%({name})s::bigint[]" for name in ("ids", *columns))
    row = ", ".join(("id", *columns.values()))
    return f"id = ANY (%(ids)s::bigint[]) AND (({row}) IN (SELECT * FROM unnest({given}))) IS TRUE"


def id_array(ids: Iterable[int]) -> str:
    """Format ids as an array, at a quarter of psycopg's cost for a list."""
    return "{" + ",".join(map(str, ids)) + "}"
