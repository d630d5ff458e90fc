"""Ids in no table: never assigned, uncommitted, or gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from drain.database import locks
from drain.database.postgres import Connection, fetch_one
from drain.formatting import clock, visible
from drain.read import queries
from drain.read.explain.estimates import none
from drain.read.explain.explanation import Explanation, Finding

_SEQUENCE = "SELECT pg_get_serial_sequence('staged_jobs'::text, 'id'::text)"
_LAST_ID = "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM {}"
# Inserts hold this lock; bulk loads, the advisory one too. xact_start is NULL if prepared, or hidden from this role.
_OPEN = f"""
SELECT held.pid, session.application_name, session.xact_start, EXISTS (
    SELECT FROM pg_locks AS bulk WHERE bulk.pid = held.pid AND bulk.locktype = 'advisory' AND bulk.granted
        AND bulk.classid = {locks.BULK_STAGING.first}::oid AND bulk.objid = {locks.BULK_STAGING.second}::oid
        AND bulk.mode = 'ShareLock')
FROM pg_locks AS held LEFT JOIN pg_stat_activity AS session ON session.pid = held.pid
WHERE held.locktype = 'relation' AND held.relation = 'staged_jobs'::regclass::oid AND held.granted
    AND held.mode = 'RowExclusiveLock' AND held.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY session.xact_start LIMIT 100
"""
_MOST_NAMED = 3


class OpenTransaction(NamedTuple):
    """Open transaction that may have staged jobs.

    `pid` is None if it is prepared; the others if hidden from this role.
    """

    pid: int | None
    application: str | None
    since: datetime | None
    is_bulk: bool


class Traces(NamedTuple):
    """Last assigned id, and later open transactions."""

    last_id: int
    open: Sequence[OpenTransaction]


def read_traces(connection: Connection) -> Traces:
    """Read the last id first, so that every lower one is in an open or ended transaction."""
    (sequence,) = fetch_one(connection, _SEQUENCE)
    (last_id,) = fetch_one(connection, _LAST_ID.format(sequence))
    rows = connection.execute(_OPEN, binary=True)
    return Traces(int(last_id), [OpenTransaction._make(row) for row in rows])


def explain(connection: Connection, job_id: int, traces: Traces) -> Explanation:
    """Explain an absent id."""
    if job_id > traces.last_id or job_id == 0:
        why = f"the id was never assigned: the last one is {traces.last_id}"
        finding = Finding(
            "not_given_out", why, None, none("the job does not exist"), {"last_id": traces.last_id}
        )
    elif traces.open:
        finding = _of_open_transactions(traces.open)
    else:
        why = (
            "the id is in no table, and no staging transaction is open: the job was rolled back, forwarded, "
            "discarded or archived"
        )
        finding = Finding("absent", why, None, none("the job no longer exists"))
    return Explanation(job_id, "unknown", finding, queries.now(connection))


def _of_open_transactions(transactions: Sequence[OpenTransaction]) -> Finding:
    bulk = [each for each in transactions if each.is_bulk]
    what = "a bulk load is uncommitted" if bulk else "a staging transaction is uncommitted"
    named = "; ".join(_name(each) for each in [*bulk, *transactions][:_MOST_NAMED])
    why = (
        f"the id is in no table, and {what} ({named}): the job may be waiting for its commit, "
        "or was rolled back"
    )
    details = {"transactions": [each._asdict() for each in transactions], "bulk": bool(bulk)}
    since = min((each.since for each in transactions if each.since), default=None)
    return Finding("uncommitted", why, since, none("depends on when the transaction commits"), details)


def _name(transaction: OpenTransaction) -> str:
    if transaction.pid is None:
        return "a prepared transaction"
    since = f" since {clock(transaction.since)}" if transaction.since else ""
    application = f" of {visible(transaction.application)}" if transaction.application else ""
    return f"{'bulk load, ' if transaction.is_bulk else ''}process {transaction.pid}{application}{since}"
