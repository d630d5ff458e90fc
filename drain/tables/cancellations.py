"""Cancellations: staged jobs and jobs in flight move to `dead_jobs` with the reason 'cancelled'.

The statement for staged rows comes first, then that for rows in flight: under read committed, a row that the leader
moves in between is found by the second one. A job that runs gets a higher fencing token, so that its worker's outcome
is refused: the fence that every claim has. Its claim moves to `cancelled_claims`, where it keeps its place among the
running jobs until the worker has confirmed that its attempt has ended, or the lease is over.

Rows are locked in the order of their ids, as by all that lock several.
"""

from __future__ import annotations

from collections.abc import Sequence

from drain.database.postgres import Connection, fetch_one, home_of
from drain.database.qualified import within
from drain.tables.columns import ATTEMPTS, DEAD, JOB, REQUEST, id_array
from drain.tables.fences import THESE_CLAIMS, Fenced, of_many, of_one
from drain.tables.selections import Selection

# The token of a cancelled job grows, up to the largest number there is.
_VALUES = ", ".join(
    "least(fencing_token, 9223372036854775806) + 1" if column == "fencing_token" else column
    for column in JOB.split(", ")
)
# The latest request that gave way to a cancelled job is staged again, unless it is selected itself: as a new job, since
# its own has ended, and due now.
_REQUESTED = REQUEST.removeprefix("id, ")
_STAGE_REQUESTS = f"""
    INSERT INTO staged_jobs ({_REQUESTED})
    SELECT {_REQUESTED.replace("scheduled_at", "now()")} FROM (
        SELECT request.* FROM gone, LATERAL pg_catalog.jsonb_populate_record(
            (SELECT job FROM staged_jobs AS job LIMIT 0), gone.stands_for) AS request
        WHERE gone.stands_for IS NOT NULL) AS requests
    WHERE NOT coalesce({{requests}}, false)"""
_EXPLANATION = """CASE WHEN lease_expires_at IS NOT NULL THEN 'it was cancelled while ' || claimed_by || ' had it'
    WHEN claimed_at IS NOT NULL THEN 'it was cancelled between two attempts'
    ELSE 'it was cancelled before it began' END"""
_CANCEL_STAGED = f"""
WITH chosen AS (
    SELECT id AS chosen_id FROM staged_jobs WHERE {{rows}} ORDER BY id FOR UPDATE
), gone AS (
    DELETE FROM staged_jobs WHERE id = ANY (ARRAY (SELECT chosen_id FROM chosen)) RETURNING {JOB}
), buried AS (
    INSERT INTO dead_jobs ({JOB}, reason, explanation)
    SELECT {_VALUES}, 'cancelled', 'it was cancelled before it began' FROM gone
), requests AS ({_STAGE_REQUESTS})
SELECT id, false FROM gone
"""
_CANCEL_INFLIGHT = f"""
WITH chosen AS (
    SELECT id AS chosen_id FROM inflight_jobs WHERE {{rows}} ORDER BY id FOR UPDATE
), gone AS (
    DELETE FROM inflight_jobs WHERE id = ANY (ARRAY (SELECT chosen_id FROM chosen)) RETURNING *
), buried AS (
    INSERT INTO dead_jobs ({DEAD})
    SELECT {_VALUES}, {ATTEMPTS}, last_error, 'cancelled', {_EXPLANATION} FROM gone
), kept AS (
    INSERT INTO cancelled_claims (id, fencing_token, salt, queue, key, claimed_at, claimed_by, lease_expires_at)
    SELECT id, fencing_token, salt, queue, key, claimed_at, claimed_by, lease_expires_at FROM gone
    WHERE lease_expires_at > clock_timestamp()
    ON CONFLICT DO NOTHING
), requests AS ({_STAGE_REQUESTS})
SELECT id, lease_expires_at IS NOT NULL FROM gone
"""
# Those of the jobs `ids` that have ended: their ids, and 'dead' or 'finished'.
WHEREABOUTS = """
SELECT id, 'dead' FROM dead_jobs WHERE id = ANY (CAST(%(ids)s AS bigint[]))
UNION ALL
SELECT id, 'finished' FROM finished_jobs WHERE id = ANY (CAST(%(ids)s AS bigint[]))
"""
# Condition on claims that keep their places; and on those of a queue.
KEEPS_PLACE = "lease_expires_at > now()"
HAS_PLACE = f"queue = %(queue)s AND {KEEPS_PLACE}"
# A claim whose attempt has ended keeps no place.
CONFIRM_ENDS = f"DELETE FROM cancelled_claims WHERE {THESE_CLAIMS}"
_PRUNE = "DELETE FROM cancelled_claims WHERE lease_expires_at <= now()"
IS_CANCELLED = """
SELECT EXISTS (
    SELECT FROM dead_jobs WHERE id = %(id)s AND fencing_token > %(token)s
        AND salt IS NOT DISTINCT FROM %(salt)s::bigint AND reason = 'cancelled')
"""


def staged_statement(selection: Selection) -> str:
    """Build the statement that cancels staged jobs; its rows are the id, and false."""
    return _CANCEL_STAGED.format(rows=selection.condition, requests=selection.whole_condition)


def inflight_statement(selection: Selection) -> str:
    """Build the statement that cancels jobs in flight; its rows are the id, and whether a worker had the job."""
    return _CANCEL_INFLIGHT.format(rows=selection.condition, requests=selection.whole_condition)


def is_cancelled(connection: Connection, claim: Fenced) -> bool:
    """Return True if the job was cancelled after this claim."""
    (cancelled,) = fetch_one(connection, within(home_of(connection), IS_CANCELLED), of_one(claim))
    return bool(cancelled)


def confirm_end(connection: Connection, claim: Fenced) -> bool:
    """Confirm that the attempt under this claim has ended; returns True if the job was cancelled after the claim."""
    confirm_ends(connection, [claim])
    return is_cancelled(connection, claim)


def confirm_ends(connection: Connection, claims: Sequence[Fenced]) -> None:
    """Confirm that the attempts under these claims of one process have ended: their places are free."""
    connection.execute(CONFIRM_ENDS, of_many(claims))


def prune(connection: Connection) -> None:
    """Forget the claims whose lease is over: their workers have died, or do not answer."""
    connection.execute(_PRUNE)


def cancel_staged(connection: Connection, selection: Selection) -> list[tuple[int, bool]]:
    """Cancel staged jobs.

    Returns:
        Id of each job, and whether a worker had it.

    Raises:
        psycopg.errors.SerializationFailure: A scheduled row has just come due; the call may be repeated.
    """
    return connection.execute(staged_statement(selection), selection.parameters()).fetchall()


def cancel_inflight(connection: Connection, selection: Selection) -> list[tuple[int, bool]]:
    """Cancel jobs in flight; to be called after `cancel_staged`. Returns as that."""
    return connection.execute(inflight_statement(selection), selection.parameters()).fetchall()


def whereabouts(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Find those of the jobs that have ended: 'dead' or 'finished' by id."""
    rows = connection.execute(WHEREABOUTS, {"ids": id_array(ids)})
    return dict(rows.fetchall())
