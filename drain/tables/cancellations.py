"""Cancellations: jobs move to `dead_jobs`.

Staged rows first: at read committed, the second statement finds rows just moved in flight. A raised token fences off
the worker. Its claim keeps its place, in `cancelled_claims`, until it confirms the end or the lease expires. Rows are
locked in id order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drain.database.postgres import Connection, fetch_one, home_of
from drain.database.qualified import within
from drain.tables.columns import ATTEMPTS, DEAD, IS_BLOCKED, JOB, REQUEST, START_IF_BLOCKED, id_array
from drain.tables.fences import THESE_CLAIMS, Fenced, of_many, of_one
from drain.tables.selections import Selection

# The token grows, up to the largest bigint.
_VALUES = ", ".join(
    "least(fencing_token, 9223372036854775806) + 1" if column == "fencing_token" else column
    for column in JOB.split(", ")
)
_VALUES_OF_STAGED = _VALUES.replace("scheduled_at", START_IF_BLOCKED)
# The latest request that gave way to a cancelled job is staged again, due now, unless selected too.
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
    DELETE FROM staged_jobs WHERE id = ANY (ARRAY (SELECT chosen_id FROM chosen)) RETURNING {JOB}, starts_at
), buried AS (
    INSERT INTO dead_jobs ({JOB}, reason, explanation)
    SELECT {_VALUES_OF_STAGED}, 'cancelled', {{explanation}} FROM gone
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
CANCEL_BLOCKED = _CANCEL_STAGED.format(
    rows=f"id = ANY (%(ids)s::bigint[]) AND ({IS_BLOCKED}) IS TRUE",
    requests="false",
    explanation="""
        (SELECT why.text FROM unnest(%(ids)s::bigint[], %(texts)s::text[]) AS why (id, text) WHERE why.id = gone.id)""",
)
WHEREABOUTS = """
SELECT id, 'dead' FROM dead_jobs WHERE id = ANY (CAST(%(ids)s AS bigint[]))
UNION ALL
SELECT id, 'finished' FROM finished_jobs WHERE id = ANY (CAST(%(ids)s AS bigint[]))
"""
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
    """Build the statement; it returns id and false."""
    return _CANCEL_STAGED.format(
        rows=selection.condition,
        requests=selection.whole_condition,
        explanation="'it was cancelled before it began'",
    )


def inflight_statement(selection: Selection) -> str:
    """Build the statement; it returns id and whether claimed."""
    return _CANCEL_INFLIGHT.format(rows=selection.condition, requests=selection.whole_condition)


def is_cancelled(connection: Connection, claim: Fenced) -> bool:
    """Return True if the job was cancelled after this claim."""
    (cancelled,) = fetch_one(connection, within(home_of(connection), IS_CANCELLED), of_one(claim))
    return bool(cancelled)


def confirm_end(connection: Connection, claim: Fenced) -> bool:
    """Confirm the attempt's end; return whether the job was cancelled."""
    confirm_ends(connection, [claim])
    return is_cancelled(connection, claim)


def confirm_ends(connection: Connection, claims: Sequence[Fenced]) -> None:
    """Confirm the ends of one process's attempts."""
    connection.execute(CONFIRM_ENDS, of_many(claims))


def prune(connection: Connection) -> None:
    """Delete cancelled claims with expired leases."""
    connection.execute(_PRUNE)


def cancel_staged(connection: Connection, selection: Selection) -> list[tuple[int, bool]]:
    """Cancel staged jobs; return each id, and whether claimed.

    Raises:
        psycopg.errors.SerializationFailure: A scheduled row came due; call again.
    """
    return connection.execute(staged_statement(selection), selection.parameters()).fetchall()


def cancel_inflight(connection: Connection, selection: Selection) -> list[tuple[int, bool]]:
    """Cancel jobs in flight, after `cancel_staged`; return the same."""
    return connection.execute(inflight_statement(selection), selection.parameters()).fetchall()


def cancel_blocked(connection: Connection, explanations: Mapping[int, str]) -> list[int]:
    """Cancel blocked jobs, each with an explanation; return which."""
    parameters = {"ids": id_array(explanations), "texts": list(explanations.values())}
    return [id_ for id_, _ in connection.execute(CANCEL_BLOCKED, parameters)]


def whereabouts(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Map ended jobs to 'dead' or 'finished'."""
    rows = connection.execute(WHEREABOUTS, {"ids": id_array(ids)})
    return dict(rows.fetchall())
