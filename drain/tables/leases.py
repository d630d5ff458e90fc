"""Leases, extended by heartbeats or given back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one, home_of
from drain.database.qualified import within
from drain.tables import cancellations
from drain.tables.claims import Claim
from drain.tables.columns import NOT_CLAIMED
from drain.tables.fences import THESE_CLAIMS, THIS_CLAIM, Fenced, of_many, of_one
from drain.tables.pauses import IS_PAUSED

EXTEND_MANY = f"""
UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
WHERE {THESE_CLAIMS} AND next_run_at IS NULL AND claimed_at IS DISTINCT FROM failed_at
RETURNING id, lease_expires_at
"""


def extend_many(connection: Connection, claims: Sequence[Claim]) -> dict[int, datetime]:
    """Restart leases, even expired ones; return their ends by id, without lost claims."""
    extended: dict[int, datetime] = {}
    for lease_seconds in {claim.lease_seconds for claim in claims}:
        alike = [claim for claim in claims if claim.lease_seconds == lease_seconds]
        parameters = {**of_many(alike), "lease_seconds": lease_seconds}
        extended.update(connection.execute(EXTEND_MANY, parameters, binary=True).fetchall())
    return extended


# Restores a row from before its batch claim. A job paused since, or of a queue with a rate, is called back. The last
# condition: not released.
_HAS_RATE = (
    "EXISTS (SELECT FROM queues WHERE queues.queue = job.queue AND coalesce(rate, rate_per_key) IS NOT NULL)"
)
RELEASE = f"""
UPDATE inflight_jobs AS job SET
    lease_expires_at = NULL,
    next_run_at = CASE WHEN {IS_PAUSED} OR {_HAS_RATE} THEN now() END,
    claimed_at = failed_at,
    batched = false,
    attempts = attempts - CASE WHEN batched THEN 0 ELSE 1 END
WHERE {THESE_CLAIMS} AND NOT {NOT_CLAIMED}
RETURNING id, queue, delivery
"""


class Released(NamedTuple):
    """Job of an undone claim, waiting under its previous delivery."""

    id: int
    queue: str
    delivery: int


def release(connection: Connection, claims: Sequence[Fenced]) -> list[Released]:
    """Undo batch claims of one process, not begun; return current ones."""
    released = {row[0]: Released._make(row) for row in connection.execute(RELEASE, of_many(claims))}
    if len(released) < len(claims):
        # Cancelled jobs have not begun either.
        cancellations.confirm_ends(connection, claims)
    return [released[claim.id] for claim in claims if claim.id in released]


IS_CURRENT = f"SELECT EXISTS (SELECT FROM inflight_jobs WHERE {THIS_CLAIM})"


def is_current(connection: Connection, claim: Fenced) -> bool:
    """Return True if the job is in flight under this claim."""
    (current,) = fetch_one(connection, within(home_of(connection), IS_CURRENT), of_one(claim))
    return bool(current)
