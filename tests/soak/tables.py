"""What the applications ask for, and what the jobs leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from drain import queues
from drain.database import postgres
from drain.database.postgres import Connection
from drain.tables import dead

# Rules that hold from the first job to the last one, so that what they say is exact at any moment.
RUNNING, RUNNING_PER_KEY = 5, 2
# Key that is paused before the first job is staged, until the faults are over.
HELD = "held"
# Advisory lock, shared by all that change jobs from outside. The soak holds it alone while it judges.
_GATE = 7365
# `wanted` is written in the transaction that stages the job. Jobs write into `effects` in the transaction that
# finishes them, and into `sent` in one of its own, as they would do something outside of PostgreSQL. Steps
# write into `stepped`. `once` has the
# answer to each staging with an idempotency key, `cancelled` the jobs that the operator has cancelled and not revived,
# both written in the transaction that does so. `witness` notes each change of the set of running jobs, with the
# transaction that makes it.
_CREATE = """
CREATE TABLE wanted (job_id bigint PRIMARY KEY, kind text NOT NULL);
CREATE TABLE effects (job_id bigint NOT NULL, fencing_token bigint NOT NULL);
CREATE TABLE sent (job_id bigint NOT NULL, fencing_token bigint NOT NULL);
CREATE TABLE stepped (job_id bigint NOT NULL, step text NOT NULL, fencing_token bigint NOT NULL);
CREATE TABLE once (idempotency_key text NOT NULL, job_id bigint NOT NULL);
CREATE TABLE cancelled (job_id bigint PRIMARY KEY);
CREATE TABLE calmed (at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE witness (
    number bigint GENERATED ALWAYS AS IDENTITY, xid xid NOT NULL DEFAULT pg_current_xact_id()::xid,
    job_id bigint NOT NULL, queue text NOT NULL, key text, change integer NOT NULL);
CREATE FUNCTION note_running() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.next_run_at IS NULL THEN
        INSERT INTO witness (job_id, queue, key, change) VALUES (OLD.id, OLD.queue, OLD.key, -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.next_run_at IS NULL THEN
        INSERT INTO witness (job_id, queue, key, change) VALUES (NEW.id, NEW.queue, NEW.key, 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_begun_and_ended AFTER INSERT OR DELETE ON inflight_jobs
    FOR EACH ROW EXECUTE FUNCTION note_running();
CREATE TRIGGER note_changed AFTER UPDATE ON inflight_jobs FOR EACH ROW
    WHEN ((OLD.next_run_at IS NULL, OLD.queue, OLD.key) IS DISTINCT FROM (NEW.next_run_at IS NULL, NEW.queue, NEW.key))
    EXECUTE FUNCTION note_running();
"""
WANT = "INSERT INTO wanted (job_id, kind) VALUES (%s, %s) ON CONFLICT DO NOTHING"
STAGED_ONCE = "INSERT INTO once (idempotency_key, job_id) VALUES (%s, %s)"
# One tick, and the next one on New Year's Day.
SCHEDULE = """
INSERT INTO crons (name, job_name, cron, options, missed, next_tick_at)
VALUES (%s, 'soak.settle', '0 0 1 1 *', '{"queue": "bulk"}', 'all', now() + make_interval(secs => %s))
"""
# Discarded, dropped or expired as an operator and time would do it. The leader deletes what hangs on these rows. Not
# events: deleted after `reclaim`, pages of their indexes would be forgotten at the next crash.
_FORGET = """
DELETE FROM finished_jobs;
DELETE FROM stale_finishes;
DELETE FROM crons;
DELETE FROM job_events;
UPDATE idempotency_keys SET expires_at = 'epoch';
TRUNCATE wanted, effects, sent, stepped, once, cancelled, calmed, witness, changes
"""

_COUNTS = """
SELECT (SELECT count(*) FROM wanted), (SELECT count(*) FROM staged_jobs)
    + (SELECT count(*) FROM crons WHERE last_job_id IS NULL), (SELECT count(*) FROM inflight_jobs),
    (SELECT count(*) FROM finished_jobs), (SELECT count(*) FROM dead_jobs)
"""


def create(connection: Connection) -> None:
    """Create the tables, and the rules that never change."""
    connection.execute(_CREATE)
    queues.set(connection, "calls", running=RUNNING, running_per_key=RUNNING_PER_KEY, fair=True)
    queues.set(connection, "ordered", ordered=True, on_dead="skip")
    hold(connection)


def hold(connection: Connection) -> None:
    """Pause the key that is paused while faults come."""
    queues.pause(connection, key=HELD)


@contextmanager
def passing(connection: Connection) -> Iterator[None]:
    """Change jobs only while the gate is open."""
    connection.execute("SELECT pg_advisory_lock_shared(%s)", (_GATE,))
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock_shared(%s)", (_GATE,))


@contextmanager
def closed_gate(connection: Connection) -> Iterator[None]:
    """Let no application and no operator change jobs during the block."""
    connection.execute("SET lock_timeout = '60s'")
    connection.execute("SELECT pg_advisory_lock(%s)", (_GATE,))
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (_GATE,))


def forget(connection: Connection) -> None:
    """Forget all jobs; none is left to be worked."""
    with connection.transaction():
        dead.discard(connection, dead.Selection())
        connection.execute(_FORGET)


def reclaim(connection: Connection) -> None:
    """Free the space of deleted rows, and write down where it is: each crash forgets that, and pages would pile up."""
    connection.execute("VACUUM")
    connection.execute("CHECKPOINT")


def calm(connection: Connection) -> None:
    """End all pauses, and take off the rules of the operator, so that everything can come to its end."""
    with connection.transaction():
        for rules in queues.list(connection):
            if rules.queue not in ("calls", "ordered"):
                queues.unset(connection, rules.queue)
        for pause in queues.pauses(connection):
            queues.resume(connection, pause.queue, job=pause.job_name, key=pause.key)
        connection.execute("INSERT INTO calmed DEFAULT VALUES")


def counts(connection: Connection) -> dict[str, int]:
    """How many jobs were asked for, and where they are."""
    (row,) = connection.execute(_COUNTS).fetchall()
    return dict(zip(("wanted", "staged", "inflight", "finished", "dead"), row, strict=True))


def time_in(connection: Connection, seconds: float) -> datetime:
    """Return a time `seconds` from now, by the clock of PostgreSQL."""
    (time,) = postgres.fetch_one(connection, "SELECT now() + make_interval(secs => %s)", (seconds,))
    assert isinstance(time, datetime)
    return time


def value(connection: Connection, statement: str) -> int:
    """The number that a statement answers with."""
    ((number,),) = connection.execute(statement.encode()).fetchall()
    return int(number)


def ids(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> Sequence[int]:
    """The ids that a statement answers with, sorted."""
    return sorted(id_ for (id_,) in connection.execute(statement.encode(), parameters))
