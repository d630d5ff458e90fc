"""Staged jobs: bulk inserts, and the leader's moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from psycopg.sql import Identifier

from drain.database import locks
from drain.database.cursor import execute_and_commit
from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import (
    BLOCKED_AT,
    CHILD_WAITS,
    FINISHED,
    FINISHED_STAGED,
    IS_BLOCKED,
    JOB,
    MARKER,
    id_array,
)
from drain.tables.leader_progress import RECORD_PROGRESS

# `(priority, id)`, the order in a lane.
Place: TypeAlias = tuple[int, int]
START: Place = (-(2**31), -(2**63))
LAST_PRIORITY = 2**31 - 1


_MATURE = """
UPDATE staged_jobs SET matured_at = now()
WHERE id = ANY (ARRAY (SELECT id FROM staged_jobs_scheduled WHERE {which} FOR UPDATE SKIP LOCKED))
"""
MATURE = _MATURE.format(which="scheduled_at <= now() ORDER BY scheduled_at LIMIT %s")
MATURE_THESE = _MATURE.format(which="id = ANY (%s::bigint[])")


def mature(connection: Connection, limit: int) -> int:
    """Mark due scheduled rows as matured."""
    return connection.execute(MATURE, (limit,)).rowcount


def mature_these(connection: Connection, ids: Iterable[int]) -> None:
    """Mature these rows, except locked ones."""
    connection.execute(MATURE_THESE, (id_array(ids),))


# Without the index of times, which blocked jobs share; and not EXISTS, which may be planned as a hash of all edges.
# Jobs end in about the order of their ids, so the last edge waits longest, and the search steps over no met ones.
UNBLOCK = f"""
WITH free AS MATERIALIZED (
    SELECT id, job_name = '{MARKER}' AS is_marker FROM staged_jobs_scheduled
    WHERE id = ANY (%s::bigint[]) AND ({IS_BLOCKED}
        AND (SELECT true FROM job_edges WHERE child_id = id AND {CHILD_WAITS} ORDER BY parent_id DESC LIMIT 1) IS NULL)
        IS TRUE
), ended AS (
    DELETE FROM staged_jobs_scheduled WHERE id = ANY (ARRAY (SELECT id FROM free WHERE is_marker)) RETURNING *
), finished AS (
    INSERT INTO finished_jobs ({FINISHED}) SELECT {FINISHED_STAGED} FROM ended
), unblocked AS (
    UPDATE staged_jobs
    SET scheduled_at = greatest(starts_at, now()), matured_at = CASE WHEN starts_at > now() THEN NULL ELSE now() END
    WHERE id = ANY (ARRAY (SELECT id FROM free WHERE NOT is_marker))
)
SELECT id, is_marker FROM free
"""


def unblock(connection: Connection, ids: Iterable[int]) -> dict[int, bool]:
    """Schedule the jobs that wait for no other any more, and finish markers. Map each to whether it is a marker.

    The caller has locked them.
    """
    return dict(connection.execute(UNBLOCK, (id_array(ids),)).fetchall())


class DueJob(NamedTuple):
    """Due row; `expired` after its `expires_at`."""

    id: int
    queue: str
    job_name: str
    timeout_seconds: int | None
    expired: bool
    priority: int
    key: str | None = None
    unique_key: str | None = None

    @property
    def place(self) -> Place:
        """Position in its lane."""
        return self.priority, self.id


# Exact ids: `id <= last` would delete lower ids that commit later, unread.
MOVE = f"""
WITH moved AS (
    DELETE FROM staged_jobs_ready WHERE id = ANY (%(ids)s::bigint[]) RETURNING {JOB}
), numbered AS (
    SELECT * FROM pg_catalog.unnest(%(ids)s::bigint[]) WITH ORDINALITY AS batch (id, position)
), recorded AS ({RECORD_PROGRESS})
INSERT INTO inflight_jobs ({JOB}, delivery)
SELECT {JOB}, %(before)s + position FROM moved JOIN numbered USING (id) WHERE (SELECT count(*) FROM recorded) = 1
"""


def move(
    connection: Connection,
    ids: Sequence[int],
    last_delivery: int,
    pushed_up_to: int | None = None,
    *,
    commits: bool = False,
) -> None:
    """Move exactly these rows to `inflight_jobs`, numbered in order from `last_delivery + 1`.

    The numbers count as used even after a rollback. Recording them here saves one of five round trips of a small batch.

    Args:
        connection: In the transaction that read the rows.
        pushed_up_to: Watermark to record; None for `last_delivery`.
        commits: Commit in the same round trip.
    """
    numbers = {
        "before": last_delivery,
        "last_delivery": last_delivery + len(ids),
        "pushed_up_to": last_delivery if pushed_up_to is None else pushed_up_to,
    }
    parameters = {"ids": id_array(ids)} | numbers
    if commits:
        execute_and_commit(connection, MOVE, parameters)
    else:
        connection.execute(MOVE, parameters)


class Forwardable(NamedTuple):
    """Row for Redis in forward mode; arguments as JSON text."""

    id: int
    queue: str
    job_name: str
    job_args: str
    job_kwargs: str
    timeout_seconds: int | None


READ_FORWARDABLE = """
SELECT id, queue, job_name, job_args::text, job_kwargs::text, timeout_seconds
FROM staged_jobs_ready WHERE id = ANY (%s::bigint[])
"""
# No table shows when such a job ends, so jobs that wait for it are cancelled.
DELETE_FORWARDED = """
WITH gone AS (DELETE FROM staged_jobs_ready WHERE id = ANY (%s::bigint[]) RETURNING id)
UPDATE job_edges SET on_failure = 'cancel', changed_xid = pg_current_xact_id()
WHERE awaited_id = ANY (ARRAY (SELECT id FROM gone)) AND state = 'waiting'
"""


def read_forwardable(connection: Connection, ids: Sequence[int]) -> list[Forwardable]:
    """Read rows in this order."""
    cursor = connection.execute(READ_FORWARDABLE, (id_array(ids),))
    rows = {row[0]: Forwardable._make(row) for row in cursor.fetchall()}
    return [rows[id_] for id_ in ids]


def delete_forwarded(connection: Connection, ids: Sequence[int]) -> None:
    """Delete exactly these rows; push them before the commit, so that a crash keeps them."""
    connection.execute(DELETE_FORWARDED, (id_array(ids),))


BURY = f"""
WITH given_up AS (
    DELETE FROM staged_jobs_ready WHERE id = ANY (%(ids)s::bigint[]) RETURNING {JOB}
)
INSERT INTO dead_jobs ({JOB}, reason, explanation)
SELECT {JOB}, %(reason)s, %(explanation)s FROM given_up
"""


def bury(connection: Connection, ids: Sequence[int], reason: str, explanation: str) -> int:
    """Bury exactly these rows."""
    parameters = {"ids": id_array(ids), "reason": reason, "explanation": explanation}
    return connection.execute(BURY, parameters).rowcount


_SHARE_BULK_LOCK = f"SELECT pg_advisory_xact_lock_shared({locks.BULK_STAGING})"
_TRY_BULK_LOCK = f"SELECT pg_try_advisory_xact_lock({locks.BULK_STAGING})"


def announce_bulk(connection: Connection) -> None:
    """Make the leader's scans skip this transaction's rows."""
    connection.execute(_SHARE_BULK_LOCK)


def is_bulk_under_way(connection: Connection) -> bool:
    """Return True during an announced transaction; call in a transaction."""
    (is_free,) = fetch_one(connection, _TRY_BULK_LOCK)
    return not is_free


# Partitions rotate every five seconds. The idle one is neither current nor next, so staging never waits for it.
IDLE_PARTITION = (
    "'staged_jobs_ready_' || ((date_part('second', {now} AT TIME ZONE 'UTC')::integer / 5 + 2) %% 3)::text"
)
TRUNCATE_IDLE = f"""
SELECT drain_truncate_if_empty(name::regclass)
FROM (SELECT {IDLE_PARTITION.format(now="clock_timestamp()")}) AS idle (name)
WHERE pg_relation_size(name::regclass) > %s
"""


def truncate_idle(connection: Connection, larger_than: int) -> int:
    """Truncate the idle partition if empty, unused and larger; return 1 or 0.

    Call in autocommit mode, at read committed.
    """
    return connection.execute(TRUNCATE_IDLE, (larger_than,)).fetchall().count((True,))


IF_NULL = {"job_args": "[]", "job_kwargs": "{}", "queue": "default", "priority": 0}
ASIDE = "pg_temp.drain_bulk"
_PUT_ASIDE = (
    f"CREATE TEMPORARY TABLE {ASIDE} ON COMMIT DROP AS SELECT {{names}} FROM staged_jobs WITH NO DATA"
)
_DUE = "coalesce({scheduled_at}, now()) + make_interval(secs => coalesce({quiet_seconds}, 0))"
# From the statement's start: copying may have taken hours.
_SPREAD = """
greatest({due}, statement_timestamp()
    + make_interval(secs => floor((row_number() OVER () - 1) / %(rate)s::float8)))
"""


def put_aside(connection: Connection, names: Sequence[str]) -> str:
    """Create a temporary table; return its name."""
    columns = ", ".join(Identifier(name).as_string() for name in names)
    connection.execute(_PUT_ASIDE.format(names=columns).encode())
    return ASIDE


def insert_put_aside(
    connection: Connection, names: Sequence[str], *, rows_per_second: float | None = None
) -> None:
    """Stage the temporary table's rows, in its transaction."""
    connection.execute(put_aside_insert(names, rows_per_second).encode(), {"rate": rows_per_second})


def put_aside_insert(
    names: Sequence[str], rows_per_second: float | None, *, blocked: str = "false", source: str = ASIDE
) -> str:
    """Build an INSERT of the temporary table's rows; those that are `blocked` wait for others."""
    values = {name: Identifier(name).as_string() for name in names}
    given = {name: values.get(name, "NULL") for name in ("scheduled_at", "quiet_seconds")}
    due = _DUE.format(**given)
    due = due if rows_per_second is None else _SPREAD.format(due=due)
    if blocked != "false":
        values["starts_at"] = f"CASE WHEN {blocked} THEN {due} END"
        due = f"CASE WHEN {blocked} THEN {BLOCKED_AT} ELSE {due} END"
    values["scheduled_at"] = due
    return f"INSERT INTO staged_jobs ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source}"
