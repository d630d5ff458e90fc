"""Queries for job lists, one whole job, queue names and the leader.

Times are read in binary: psycopg parses text only in DateStyle ISO.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import DataError, sql
from psycopg.abc import Buffer
from psycopg.rows import dict_row
from psycopg.sql import Composed
from psycopg.types.datetime import TimestamptzBinaryLoader, TimestamptzLoader
from psycopg.types.json import set_json_loads
from psycopg.types.numeric import Int8BinaryLoader

from drain.database import locks
from drain.database.postgres import Connection, fetch_one
from drain.errors import UnknownJobError
from drain.tables import lanes
from drain.tables.columns import BLOCKED_UNTIL, DUE, IS_BLOCKED, PARKED_UNTIL
from drain.tables.heads import heads

# Representable in every time zone.
_FIRST_TIME, _LAST_TIME = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
TABLES = {
    "staged": "staged_jobs",
    "inflight": "inflight_jobs",
    "finished": "finished_jobs",
    "dead": "dead_jobs",
}
# The lock decides who leads; the row only adds the name.
_LEADER = f"""
SELECT state.leader, state.leader_since FROM drain_state AS state
WHERE EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND classid = {locks.LEADER.first}::oid AND objid = {locks.LEADER.second}::oid AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
# There may be millions of due staged jobs; `lanes` finds their queues.
_OTHER_QUEUES = """
SELECT queue FROM staged_jobs_scheduled UNION SELECT queue FROM inflight_jobs UNION SELECT queue FROM dead_jobs
"""
_KNOWN_KEY = f"""
SELECT EXISTS (SELECT FROM staged_jobs_ready WHERE {DUE} AND queue = ANY (%(queues)s::text[]) AND key = %(key)s::text)
    OR EXISTS (SELECT FROM staged_jobs_scheduled WHERE key = %(key)s::text)
    OR EXISTS (SELECT FROM inflight_jobs WHERE key = %(key)s::text)
    OR EXISTS (SELECT FROM dead_jobs WHERE queue = ANY (%(queues)s::text[]) AND key = %(key)s::text)
"""
_LATEST = {
    "staged": "SELECT * FROM staged_jobs WHERE true {} ORDER BY id DESC LIMIT %(limit)s",
    "blocked": f"SELECT * FROM staged_jobs_scheduled WHERE {IS_BLOCKED} {{}} ORDER BY id DESC LIMIT %(limit)s",
    "inflight": """
SELECT * FROM inflight_jobs WHERE true {}
ORDER BY greatest(moved_at, claimed_at, failed_at) DESC, id DESC LIMIT %(limit)s
""",
    # Through the index: the table may hold 100 million rows.
    "finished": f"""{heads("finished_jobs", "true")}
SELECT latest.* FROM heads, LATERAL (
    SELECT * FROM finished_jobs WHERE finished_jobs.queue = heads.queue {{}}
    ORDER BY finished_at DESC LIMIT %(limit)s) AS latest
ORDER BY latest.finished_at DESC, latest.id DESC LIMIT %(limit)s
""",
    "dead": "SELECT * FROM dead_jobs WHERE true {} ORDER BY died_at DESC, id DESC LIMIT %(limit)s",
}

# For `jobs`.
STATES = tuple(_LATEST)
_STEPS = sql.SQL(
    "SELECT name, seconds, recorded_at, result, fencing_token FROM job_steps WHERE job_id = %(id)s ORDER BY recorded_at"
)
# Not `Wait.read`, which Django's cursors refuse.
_WAIT = sql.SQL("SELECT name, event, deadline, began_at FROM job_waits WHERE job_id = %(id)s")


def jobs(
    connection: Connection,
    state: str,
    *,
    limit: int,
    queue: str | None = None,
    job_name: str | None = None,
    tag: str | None = None,
) -> list[dict[str, Any]]:
    """List the jobs of one of `STATES`, latest change first; staged ones by id."""
    given = {"queue": queue, "job_name": job_name, "tag": tag}
    wanted = {column: text for column, text in given.items() if text is not None}
    conditions = [sql.SQL("AND {} = {}").format(sql.Identifier(c), sql.Placeholder(c)) for c in wanted]
    statement = sql.SQL(_LATEST[state]).format(sql.SQL(" ").join(conditions))
    return _objects(connection, statement, {**wanted, "limit": limit})


def job(connection: Connection, job_id: int) -> dict[str, Any]:
    """Read a job and its state.

    Raises:
        UnknownJobError: No table has this id.
    """
    for state, table in TABLES.items():
        statement = sql.SQL("SELECT * FROM {table} WHERE id = %(id)s").format(table=sql.Identifier(table))
        for row in _objects(connection, statement, {"id": job_id}):
            steps = _objects(connection, _STEPS, {"id": job_id})
            wait = _objects(connection, _WAIT, {"id": job_id})
            return {
                "state": state,
                **row,
                **({"steps": steps} if steps else {}),
                **({"wait": wait[0]} if wait else {}),
            }
    raise UnknownJobError(
        f"no job has the id {job_id}: it was never staged, or was rolled back, forwarded, discarded or archived"
    )


def is_blocked(job: Mapping[str, Any]) -> bool:
    """Return True for a job that waits for others."""
    return job["state"] == "staged" and bool(job["scheduled_at"] == BLOCKED_UNTIL)


def now(connection: Connection) -> datetime:
    """Read the database's clock."""
    (moment,) = connection.execute("SELECT clock_timestamp()", binary=True).fetchall()[0]
    return moment  # type: ignore[no-any-return]


def inflight_state(job: Mapping[str, Any], now: datetime) -> str:
    """Return the state of a job in flight.

    Stalled means an expired lease: the worker died or hung, and the job will be redelivered.
    """
    if job["next_run_at"] == PARKED_UNTIL:
        return "parked"
    if job["next_run_at"] is not None:
        has_failed = job["failed_at"] and (not job["claimed_at"] or job["failed_at"] >= job["claimed_at"])
        return "retrying" if has_failed else "deferred"
    if job["lease_expires_at"] is None:
        return "queued"
    return "running" if job["lease_expires_at"] > now else "stalled"


def with_lenient_values(connection: Connection) -> Connection:
    """Load values that Python cannot represent, so that one never hides other rows.

    Bad JSON becomes text; times outside the years 1 to 9999 become the nearest.
    """
    set_json_loads(_json_or_text, connection)
    connection.adapters.register_loader("timestamptz", _NearestTime)
    connection.adapters.register_loader("timestamptz", _NearestTimeInBinary)
    return connection


class _NearestTime(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            text = bytes(data)
            return _FIRST_TIME if text.startswith(b"-") or text.endswith(b"BC") else _LAST_TIME


class _NearestTimeInBinary(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            return _FIRST_TIME if bytes(data)[0] >= 0x80 else _LAST_TIME


def queues(connection: Connection) -> set[str]:
    """Name the queues with unfinished jobs."""
    staged = {lane.queue for lane in lanes.find_lanes(connection, lanes.KINDS)}
    return staged | {queue for (queue,) in connection.execute(_OTHER_QUEUES)}


def is_known_key(connection: Connection, key: str, queues: Collection[str]) -> bool:
    """Return True if an unfinished job has the key."""
    (known,) = fetch_one(connection, _KNOWN_KEY, {"key": key, "queues": list(queues)})
    return bool(known)


def _objects(
    connection: Connection, statement: sql.SQL | Composed, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    # Other cursor classes may not read binary.
    with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
        cursor.adapters.register_loader("xid8", Int8BinaryLoader)
        return cursor.execute(statement, parameters, binary=True).fetchall()


def _json_or_text(data: str | bytes) -> Any:
    try:
        return json.loads(data, parse_float=_finite)
    except (ValueError, RecursionError):
        return data if isinstance(data, str) else bytes(data).decode()


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("too large for a float, and JSON has no infinity")
    return number


def leader(connection: Connection) -> dict[str, str] | None:
    """Read the leader's name and start."""
    # A leader without a name is about to write it.
    row: tuple[str | None, datetime | None] | None = connection.execute(_LEADER, binary=True).fetchone()
    if row is None or row[0] is None or row[1] is None:
        return None
    return {"name": row[0], "since": row[1].isoformat()}
