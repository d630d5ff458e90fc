"""Rows that appeared since the last look, read from an index where that look ended.

A look is one snapshot, so each job is in one table. Transactions commit out of order, so no cursor trusts a time or id
alone:

    staged       ids above the highest seen, and lower ones that were missing
    delivered    delivery numbers, which follow the leader's commits
    claimed      all claims, no more than workers hold
    failed       failure times, from some seconds before the last look
    finished     rows of transactions unseen by the last snapshot
    dead         the same, without an index
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import DELIVERED, IS_CLAIMED, id_array
from drain.tables.heads import heads

Row = dict[str, Any]
PAGE = 2_000
_ERROR_CHARACTERS = 500
_ERROR = f"""pg_catalog.jsonb_build_object('type', last_error ->> 'type'::text,
    'message', pg_catalog."left"(last_error ->> 'message'::text, {_ERROR_CHARACTERS}),
    'at', last_error ->> 'at'::text, 'attempt', last_error -> 'attempt'::text,
    'worker', last_error ->> 'worker'::text, 'claimed_at', last_error ->> 'claimed_at'::text) AS last_error"""
_JOB = "id, job_name, queue, tag, staged_at, scheduled_at"
_STAGED = f"'staged' AS state, {_JOB}, expires_at, fencing_token"
_INFLIGHT = f"""'inflight' AS state, {_JOB}, moved_at, delivery, attempts, batched, claimed_at, claimed_by,
    lease_expires_at, next_run_at, failed_at, fencing_token, {_ERROR}"""
_FINISHED = f"""'finished' AS state, {_JOB}, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token,
    superseded_by, finished_xid::text AS finished_xid, {_ERROR}"""
_DEAD = f"""'dead' AS state, {_JOB}, died_at, reason, explanation, attempts, fencing_token, {_ERROR}"""
_ANY_STATE = {
    "staged_jobs": _STAGED,
    "inflight_jobs": _INFLIGHT,
    "finished_jobs": _FINISHED,
    "dead_jobs": _DEAD,
}

_NEW_STAGED = f"""
SELECT {_STAGED} FROM staged_jobs WHERE id > %(above)s::bigint ORDER BY id LIMIT %(page)s::bigint
"""
_STAGED_AMONG = f"SELECT {_STAGED} FROM staged_jobs WHERE id = ANY (%(ids)s::bigint[])"
_INFLIGHT_AMONG = f"SELECT {_INFLIGHT} FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[])"
_DEAD_AMONG = f"SELECT {_DEAD} FROM dead_jobs WHERE id = ANY (%(ids)s::bigint[])"
_LAST_DELIVERIES = f"""{heads("inflight_jobs", DELIVERED, "delivery")}
SELECT heads.queue, last.delivery FROM heads, LATERAL (
    SELECT delivery FROM inflight_jobs AS job WHERE {DELIVERED} AND job.queue = heads.queue
    ORDER BY job.delivery DESC LIMIT 1) AS last
"""
_NEW_DELIVERIES = f"""{heads("inflight_jobs", DELIVERED, "delivery")}
SELECT found.* FROM heads
    LEFT JOIN unnest(%(queues)s::text[], %(numbers)s::bigint[]) AS known (queue, delivery) ON known.queue = heads.queue,
    LATERAL (
        SELECT {_INFLIGHT} FROM inflight_jobs AS job
        WHERE {DELIVERED} AND job.queue = heads.queue AND job.delivery > coalesce(known.delivery, 0::bigint)
        ORDER BY job.delivery LIMIT %(page)s::bigint) AS found
"""
_CLAIMED = f"SELECT id, fencing_token FROM inflight_jobs WHERE {IS_CLAIMED} LIMIT %(most)s::bigint"
_FAILED = f"""{heads("inflight_jobs", "failed_at IS NOT NULL", "failed_at")}
SELECT found.* FROM heads, LATERAL (
    SELECT {_INFLIGHT} FROM inflight_jobs AS job
    WHERE job.queue = heads.queue AND job.failed_at > %(since)s::timestamptz
    ORDER BY job.failed_at LIMIT %(page)s::bigint) AS found
"""
_FINISHED_BY = f"SELECT {_FINISHED} FROM finished_jobs WHERE finished_xid = ANY (%(xids)s::xid8[])"
# Transactions that had not begun by then.
_NEW_FINISHED = f"""
SELECT {_FINISHED} FROM finished_jobs
WHERE finished_jobs.finished_xid >= %(xid)s::xid8
    AND (finished_jobs.finished_xid, id) > (%(xid)s::xid8, %(id)s::bigint)
ORDER BY finished_jobs.finished_xid, id LIMIT %(page)s::bigint
"""
_NEW_DEAD = f"""
SELECT {_DEAD} FROM dead_jobs
WHERE pg_catalog.age(xmin) BETWEEN 0 AND %(age)s::integer AND died_at > %(since)s::timestamptz - interval '1 day'
LIMIT %(most)s::bigint
"""
_KNOWN_FROM = """
SELECT id FROM staged_jobs WHERE id >= %(id)s::bigint UNION ALL
SELECT id FROM inflight_jobs WHERE id >= %(id)s::bigint UNION ALL
SELECT id FROM dead_jobs WHERE id >= %(id)s::bigint
"""
# Claims and dead rows per look, and distance between transactions.
MOST_CLAIMS = 20_000
_MOST_DEAD = 20_000
_LONGEST_AGE = 1_000_000_000


class Snapshot(NamedTuple):
    """Transactions seen by a look: below `xmin`, not from `xmax` on, and not `open` ones."""

    xmin: int
    xmax: int
    open: tuple[int, ...]
    now: datetime


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[Snapshot]:
    """Open a read-only snapshot."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL jit = off; SET LOCAL enable_seqscan = off")
        # A partition truncated later would be empty in this snapshot.
        connection.execute("LOCK TABLE staged_jobs IN ACCESS SHARE MODE")
        text, now = connection.execute(
            "SELECT pg_current_snapshot()::text, clock_timestamp()", binary=True
        ).fetchall()[0]
        xmin, xmax, xip = text.split(":")
        yield Snapshot(int(xmin), int(xmax), tuple(int(xid) for xid in xip.split(",") if xid), now)


def last_id(connection: Connection) -> int:
    """Return the highest id given out."""
    number, is_used = fetch_one(connection, "SELECT last_value, is_called FROM staged_jobs_id_seq")
    return int(number) if is_used else int(number) - 1


def known_from(connection: Connection, job_id: int) -> set[int]:
    """Return ids from here on that are staged, in flight or dead."""
    return {found for (found,) in connection.execute(_KNOWN_FROM, {"id": job_id})}


def new_staged(connection: Connection, above: int) -> list[Row]:
    """Read a page of jobs above this id, lowest first."""
    return _rows(connection, _NEW_STAGED, {"above": above, "page": PAGE})


def staged_among(connection: Connection, ids: Collection[int]) -> list[Row]:
    """Read staged jobs."""
    return _rows(connection, _STAGED_AMONG, {"ids": id_array(ids)}) if ids else []


def inflight_among(connection: Connection, ids: Collection[int]) -> list[Row]:
    """Read jobs in flight."""
    return _rows(connection, _INFLIGHT_AMONG, {"ids": id_array(ids)}) if ids else []


def dead_among(connection: Connection, ids: Collection[int]) -> list[Row]:
    """Read dead jobs."""
    return _rows(connection, _DEAD_AMONG, {"ids": id_array(ids)}) if ids else []


def any_state(connection: Connection, job_id: int) -> list[Row]:
    """Read a job from any table, with former deaths and all errors."""
    found: list[Row] = []
    for table, columns in _ANY_STATE.items():
        errors = "NULL" if table == "staged_jobs" else "last_error"
        statement = f"SELECT {columns}, history, {errors} AS errors FROM {table} WHERE id = %(id)s::bigint"
        found += _rows(connection, statement, {"id": job_id})
    return found


def last_deliveries(connection: Connection) -> dict[str, int]:
    """Return each queue's highest delivery number."""
    return dict(connection.execute(_LAST_DELIVERIES).fetchall())


def new_deliveries(connection: Connection, above: Mapping[str, int]) -> list[Row]:
    """Read a page per queue of deliveries above these, lowest first."""
    parameters = {"queues": list(above), "numbers": list(above.values()), "page": PAGE}
    return _rows(connection, _NEW_DELIVERIES, parameters)


def claims(connection: Connection) -> dict[int, int]:
    """Return claimed jobs' tokens."""
    return dict(connection.execute(_CLAIMED, {"most": MOST_CLAIMS}).fetchall())


def failed_since(connection: Connection, since: datetime) -> list[Row]:
    """Read jobs in flight that failed since, a page per queue."""
    return _rows(connection, _FAILED, {"since": since, "page": PAGE})


def new_finished(connection: Connection, last: Snapshot) -> Iterator[list[Row]]:
    """Read pages of finished jobs unseen by the last snapshot."""
    if last.open:
        yield _rows(connection, _FINISHED_BY, {"xids": [str(xid) for xid in last.open]})
    xid, job_id = str(last.xmax), 0
    while page := _rows(connection, _NEW_FINISHED, {"xid": xid, "id": job_id, "page": PAGE}):
        yield page
        if len(page) < PAGE:
            return
        xid, job_id = page[-1]["finished_xid"], page[-1]["id"]


def new_dead(connection: Connection, last: Snapshot, present: Snapshot, since: datetime) -> list[Row]:
    """Read dead jobs unseen by the last such snapshot, and some others; `since` is when looking began."""
    age = min(present.xmax - last.xmin, _LONGEST_AGE)
    # In physical order: an index would be read whole too.
    connection.execute("SET LOCAL enable_seqscan = on")
    found = _rows(connection, _NEW_DEAD, {"age": age, "since": since, "most": _MOST_DEAD})
    connection.execute("SET LOCAL enable_seqscan = off")
    return found


def _rows(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> list[Row]:
    # In binary: psycopg parses time texts only in DateStyle ISO.
    with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), parameters, binary=True).fetchall()


def ids_of(rows: Sequence[Row]) -> set[int]:
    """Return the ids."""
    return {row["id"] for row in rows}
