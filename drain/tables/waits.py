"""Jobs that wait for events or sleep, and the events.

A worker parks a job; the leader alone ends waits, and records each outcome as a step.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Self

from drain.database.postgres import Connection
from drain.tables import leases
from drain.tables.columns import NOT_WAITING, PARKED_AT
from drain.tables.edge_looks import Snapshot, new_rows
from drain.tables.fences import THIS_CLAIM, Fenced, of_one

# As `outcomes.DEFER`. A job that waits again under the same name, such as one that was moved, keeps its deadline.
PARK = f"""
WITH parked AS (
    UPDATE inflight_jobs SET
        lease_expires_at = NULL,
        next_run_at = {PARKED_AT},
        attempts = attempts - CASE WHEN lease_expires_at IS NULL OR batched THEN 0 ELSE 1 END,
        batched = false
    WHERE {THIS_CLAIM} AND {NOT_WAITING}
    RETURNING id, staged_by, fencing_token
)
INSERT INTO job_waits AS wait (job_id, name, event, deadline, staged_by, fencing_token)
SELECT id, %(name)s, %(event)s,
    coalesce(%(until)s::timestamptz, clock_timestamp() + make_interval(secs => %(seconds)s::float8)),
    staged_by, fencing_token
FROM parked
ON CONFLICT (job_id) DO UPDATE SET
    name = excluded.name, event = excluded.event, staged_by = excluded.staged_by,
    fencing_token = excluded.fencing_token, wait_xid = excluded.wait_xid,
    began_at = CASE WHEN wait.name = excluded.name THEN wait.began_at ELSE excluded.began_at END,
    deadline = CASE WHEN wait.name = excluded.name THEN wait.deadline ELSE excluded.deadline END
"""


def park(
    connection: Connection,
    claim: Fenced,
    name: str,
    event: str | None,
    when: float | datetime | None,
) -> bool:
    """Give the claim back until an event, or until a time or for some seconds; False if it is stale.

    Repeatable. The attempt does not count.
    """
    until, seconds = (when, None) if isinstance(when, datetime) else (None, when)
    parameters = {**of_one(claim), "name": name, "event": event, "until": until, "seconds": seconds}
    # If the answer to an earlier one was lost, the job may be due again.
    return connection.execute(PARK, parameters).rowcount == 1 or leases.is_current(connection, claim)


class Matched(NamedTuple):
    """Result of a look.

    Attributes:
        waits: Some job in flight waited before this look, or very many others did.
        found: Waits that may end, up to `MOST`.
        ended: Those that did; the rows of others were locked.
        resumed: Jobs made due.
    """

    snapshot: Snapshot
    waits: bool
    found: int
    ended: int
    resumed: int

    @property
    def is_complete(self) -> bool:
        """True if a later look need not find the same waits."""
        return self.found == self.ended < MOST


MOST = 1000
_SOME_WAIT = "(SELECT true FROM job_waits LIMIT 1)"
# A job that has ended needs no look until it is retried: it then waits again, and is compared with all events.
_SOME_JOB_WAITS = """(SELECT true FROM (
    SELECT job_id, pg_catalog.row_number() OVER () AS place FROM job_waits LIMIT 100) AS first
    WHERE place = 100 OR (SELECT true FROM inflight_jobs WHERE id = job_id) LIMIT 1)"""
# As `drain_job_state`: a role that has been dropped has no members.
_REACHES = """(event.emitted_by = wait.staged_by OR (
    SELECT true FROM pg_catalog.pg_roles AS emitter WHERE emitter.rolname = event.emitted_by::name AND (
        pg_catalog.pg_has_role(emitter.oid,
            (SELECT relowner FROM pg_catalog.pg_class WHERE oid = 'inflight_jobs'::regclass), 'USAGE')
        OR (SELECT pg_catalog.pg_has_role(emitter.oid, stager.oid, 'USAGE') FROM pg_catalog.pg_roles AS stager
            WHERE stager.rolname = wait.staged_by::name))))"""
# An event ends a wait before its deadline does, however late the leader looks.
_MATCH = f"""
WITH candidate AS MATERIALIZED ({{candidates}}
), found AS MATERIALIZED (
    SELECT wait.*, outcome.result FROM candidate, LATERAL (
        SELECT * FROM job_waits WHERE job_waits.job_id = candidate.job_id OFFSET 0) AS wait, LATERAL (
        SELECT CASE
            WHEN (SELECT true FROM job_steps WHERE job_steps.job_id = wait.job_id AND job_steps.name = wait.name)
            THEN 'null'
            ELSE coalesce(
                (SELECT '{{{{"event": ' || payload::text || '}}}}' FROM job_events AS event
                    WHERE event.name = wait.event AND {_REACHES} ORDER BY id LIMIT 1),
                CASE WHEN wait.deadline <= now() THEN '{{{{"timeout": true}}}}' END)
            END OFFSET 0) AS outcome (result)
    WHERE outcome.result IS NOT NULL LIMIT {MOST}
), held AS MATERIALIZED (
    SELECT id FROM inflight_jobs WHERE id = ANY (ARRAY (SELECT job_id FROM found)) ORDER BY id FOR UPDATE SKIP LOCKED
), ended AS MATERIALIZED (
    SELECT * FROM found WHERE job_id = ANY (ARRAY (SELECT id FROM held))
        OR (SELECT true FROM inflight_jobs WHERE id = job_id) IS NULL
), recorded AS (
    INSERT INTO job_steps (job_id, name, result, seconds, fencing_token)
    SELECT job_id, name, result::json, greatest(0, date_part('epoch', clock_timestamp() - began_at)), fencing_token
    FROM ended ON CONFLICT DO NOTHING
), gone AS (
    DELETE FROM job_waits WHERE job_id = ANY (ARRAY (SELECT job_id FROM ended))
), resumed AS (
    UPDATE inflight_jobs SET next_run_at = now()
    WHERE id = ANY (ARRAY (SELECT id FROM held)) AND coalesce(next_run_at, '-infinity') = {PARKED_AT} RETURNING id
)
SELECT pg_current_snapshot()::text, coalesce({_SOME_JOB_WAITS}, false), (SELECT count(*) FROM found),
    (SELECT count(*) FROM ended), (SELECT count(*) FROM resumed)
"""
FIRST_MATCH = _MATCH.format(candidates="SELECT job_id FROM job_waits")
MATCH = _MATCH.format(
    candidates=f"""{new_rows("job_id", "job_waits", "wait_xid")}
    UNION
    SELECT wait.job_id FROM (
        SELECT DISTINCT name FROM ({new_rows("name", "job_events", "emitted_xid", _SOME_WAIT)}) AS fresh) AS event,
        LATERAL (SELECT job_id FROM job_waits WHERE job_waits.event = event.name OFFSET 0) AS wait
    UNION
    SELECT job_id FROM job_waits WHERE deadline <= now()"""
)


def match(connection: Connection, last: Snapshot | None) -> Matched:
    """End waits by events and deadlines that a look with the snapshot `last` did not find; by all without one."""
    statement = FIRST_MATCH if last is None else MATCH
    parameters = {} if last is None else last._asdict()
    # Planning takes longer than a look.
    text, *numbers = connection.execute(statement, parameters, prepare=True).fetchall()[0]
    return Matched(Snapshot.parse(text), *numbers)


KEPT_DAYS = 30
DELETE_EVENTS = f"""
DELETE FROM job_events WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM job_events WHERE emitted_at < now() - interval '{KEPT_DAYS} days' LIMIT %s))
"""


def delete_old_events(connection: Connection, most: int) -> int:
    """Delete some events older than `KEPT_DAYS`; return how many."""
    return connection.execute(DELETE_EVENTS, (most,)).rowcount


class Wait(NamedTuple):
    """Wait of a job; it sleeps if `event` is None."""

    name: str
    event: str | None
    deadline: datetime | None
    began_at: datetime

    @classmethod
    def read(cls, connection: Connection, job_id: int) -> Self | None:
        """Read a job's wait, if any."""
        statement = "SELECT name, event, deadline, began_at FROM job_waits WHERE job_id = %s"
        row = connection.execute(statement, (job_id,), binary=True).fetchone()
        return None if row is None else cls._make(row)
