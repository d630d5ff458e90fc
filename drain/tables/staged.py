"""Staged jobs: inserted by bulk runs, moved in flight or given up by the enqueuer; `inserts` is of applications."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from psycopg.sql import Identifier

from drain.database import locks
from drain.database.cursor import execute_and_commit
from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import JOB, id_array
from drain.tables.leader_progress import RECORD_PROGRESS

# Place of a row in the order in which the rows of a lane are read: `(priority, id)`; a scan reads those behind one.
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
    """Mark up to `limit` scheduled rows whose time has come as matured, for `lanes.read_due`; returns how many."""
    return connection.execute(MATURE, (limit,)).rowcount


def mature_these(connection: Connection, ids: Iterable[int]) -> None:
    """Mark these scheduled rows, whose time has come, as matured; rows that another session has locked stay."""
    connection.execute(MATURE_THESE, (id_array(ids),))


class DueJob(NamedTuple):
    """Columns of a due row that the enqueuer needs to admit, move and push it.

    Attributes:
        expired: Its `expires_at` has passed.
        key: Customer, tenant or resource, for the rules of the queue.
        unique_key: Text that jobs share of which one alone waits.
    """

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
        """Position in the order in which rows are read."""
        return self.priority, self.id


# A batch is a list of ids, and each statement names exactly these. A condition `id <= last` would delete a lower id
# whose transaction commits later, and which was never read.
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
    """Move exactly these rows to `inflight_jobs`, numbered from `last_delivery + 1` in the given order.

    The numbers are recorded as handed out, which no rollback undoes: measured, an exchange less of the five of a batch
    of few rows.

    Args:
        connection: The leader's, in the transaction that has read the rows.
        ids: Ids of the rows.
        last_delivery: Highest number that has been handed out before.
        pushed_up_to: Watermark to record; None: all before these rows have been pushed.
        commits: Commit the transaction in the same exchange.
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
    """Columns of a row that leaves for Redis in forward mode; the arguments as JSON texts."""

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
DELETE_FORWARDED = "DELETE FROM staged_jobs_ready WHERE id = ANY (%s::bigint[])"


def read_forwardable(connection: Connection, ids: Sequence[int]) -> list[Forwardable]:
    """Read all that forward mode needs of exactly these staged rows, in the given order."""
    cursor = connection.execute(READ_FORWARDABLE, (id_array(ids),))
    rows = {row[0]: Forwardable._make(row) for row in cursor.fetchall()}
    return [rows[id_] for id_ in ids]


def delete_forwarded(connection: Connection, ids: Sequence[int]) -> None:
    """Delete exactly these staged rows, whose jobs go to Redis alone.

    The caller pushes the jobs before it commits: a crash in between leaves the rows where they were.
    """
    connection.execute(DELETE_FORWARDED, (id_array(ids),))


BURY = f"""
WITH given_up AS (
    DELETE FROM staged_jobs_ready WHERE id = ANY (%(ids)s::bigint[]) RETURNING {JOB}
)
INSERT INTO dead_jobs ({JOB}, reason, explanation)
SELECT {JOB}, %(reason)s, %(explanation)s FROM given_up
"""


def bury(connection: Connection, ids: Sequence[int], reason: str, explanation: str) -> int:
    """Move exactly these staged rows to `dead_jobs`; returns how many there were."""
    parameters = {"ids": id_array(ids), "reason": reason, "explanation": explanation}
    return connection.execute(BURY, parameters).rowcount


_SHARE_BULK_LOCK = f"SELECT pg_advisory_xact_lock_shared({locks.BULK_STAGING})"
_TRY_BULK_LOCK = f"SELECT pg_try_advisory_xact_lock({locks.BULK_STAGING})"


def announce_bulk(connection: Connection) -> None:
    """Announce that the open transaction stages very many rows, so that the enqueuer's scans do not step over them."""
    connection.execute(_SHARE_BULK_LOCK)


def is_bulk_under_way(connection: Connection) -> bool:
    """Return True if a transaction that has called `announce_bulk` is still open; for use in a transaction."""
    (is_free,) = fetch_one(connection, _TRY_BULK_LOCK)
    return not is_free


# Name of the idle partition. Three partitions take turns of five seconds: the idle one is neither that which
# applications stage into now, nor the next one, since who stages would have to wait for as long as it is locked.
IDLE_PARTITION = (
    "'staged_jobs_ready_' || ((date_part('second', {now} AT TIME ZONE 'UTC')::integer / 5 + 2) %% 3)::text"
)
TRUNCATE_IDLE = f"""
SELECT drain_truncate_if_empty(name::regclass)
FROM (SELECT {IDLE_PARTITION.format(now="clock_timestamp()")}) AS idle (name)
WHERE pg_relation_size(name::regclass) > %s
"""


def truncate_idle(connection: Connection, larger_than: int) -> int:
    """Truncate the idle partition of ready rows, if it is empty, not in use, and has more than `larger_than` bytes.

    To be called in autocommit mode, at read committed.

    Returns:
        Number of partitions that were truncated.
    """
    return connection.execute(TRUNCATE_IDLE, (larger_than,)).fetchall().count((True,))


# Defaults of columns that must not be null.
IF_NULL = {"job_args": "[]", "job_kwargs": "{}", "queue": "default", "priority": 0}
# Rows of a bulk run until its transaction stages them. The session's own, since it is gone with the transaction.
_ASIDE = "pg_temp.drain_bulk"
_PUT_ASIDE = (
    f"CREATE TEMPORARY TABLE {_ASIDE} ON COMMIT DROP AS SELECT {{names}} FROM staged_jobs WITH NO DATA"
)
_DUE = "coalesce({scheduled_at}, now()) + make_interval(secs => coalesce({quiet_seconds}, 0))"
# From the statement on: its transaction may have copied for hours before.
_SPREAD = """
greatest({due}, statement_timestamp()
    + make_interval(secs => floor((row_number() OVER () - 1) / %(rate)s::float8)))
"""


def put_aside(connection: Connection, names: Sequence[str]) -> str:
    """Make a temporary table with these columns, for rows that `insert_put_aside` will stage; returns its name."""
    columns = ", ".join(Identifier(name).as_string() for name in names)
    connection.execute(_PUT_ASIDE.format(names=columns).encode())
    return _ASIDE


def insert_put_aside(
    connection: Connection, names: Sequence[str], *, rows_per_second: float | None = None
) -> None:
    """Stage the rows of the temporary table, in its transaction.

    Args:
        connection: The one that has called `put_aside`.
        names: Columns of the table.
        rows_per_second: Number of rows that come due in each second from now on; None: all at once.
    """
    values = {name: Identifier(name).as_string() for name in names}
    given = {name: values.get(name, "NULL") for name in ("scheduled_at", "quiet_seconds")}
    due = _DUE.format(**given)
    values["scheduled_at"] = due if rows_per_second is None else _SPREAD.format(due=due)
    statement = (
        f"INSERT INTO staged_jobs ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {_ASIDE}"
    )
    connection.execute(statement.encode(), {"rate": rows_per_second})
