"""Leases of claims in `inflight_jobs`: extended by heartbeats, or given back with the claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables import cancellations
from drain.tables.claims import Claim
from drain.tables.columns import NOT_CLAIMED, id_array, these_pairs
from drain.tables.pauses import IS_PAUSED

# Condition for the rows of these claims. A claim that was undone keeps its token; its row shows it by `claimed_at`.
THESE_CLAIMS = these_pairs("fencing_token", "tokens")
EXTEND_MANY = f"""
UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
WHERE {THESE_CLAIMS} AND next_run_at IS NULL AND claimed_at IS DISTINCT FROM failed_at
RETURNING id, lease_expires_at
"""


def extend_many(connection: Connection, claims: Sequence[Claim]) -> dict[int, datetime]:
    """Restart the leases, also those that have run out, unless another claim of the job was made since.

    One statement for all leases of one length, and most often all have one.

    Returns:
        End of each lease, by id. Claims are missing whose token is stale, that were undone, or whose job waits for its
        next attempt.
    """
    extended: dict[int, datetime] = {}
    for lease_seconds in {claim.lease_seconds for claim in claims}:
        alike = [claim for claim in claims if claim.lease_seconds == lease_seconds]
        parameters = {**ids_and_tokens(alike), "lease_seconds": lease_seconds}
        extended.update(connection.execute(EXTEND_MANY, parameters, binary=True).fetchall())
    return extended


# A job that was claimed in a batch was new, or had failed; in both cases the row gets the state from before the claim.
# A job that has been paused since is called back, or another worker would start it. The last condition: the lease has
# not been given back already.
RELEASE = f"""
UPDATE inflight_jobs AS job SET
    lease_expires_at = NULL,
    next_run_at = CASE WHEN {IS_PAUSED} THEN now() END,
    claimed_at = failed_at,
    batched = false,
    attempts = attempts - CASE WHEN batched THEN 0 ELSE 1 END
WHERE {THESE_CLAIMS} AND NOT {NOT_CLAIMED}
RETURNING id, queue, delivery
"""


class Released(NamedTuple):
    """Job whose claim was undone: it waits for a worker, under the delivery number that it had."""

    id: int
    queue: str
    delivery: int


def release(connection: Connection, ids: Sequence[int], tokens: Sequence[int]) -> list[Released]:
    """Undo claims of `claim_many` whose jobs have not begun.

    Returns:
        Jobs of the claims that were current, in the order of `ids`.
    """
    parameters = {"ids": id_array(ids), "tokens": id_array(tokens)}
    released = {row[0]: Released._make(row) for row in connection.execute(RELEASE, parameters)}
    if len(released) < len(ids):
        # Cancelled jobs among the others have not begun either.
        cancellations.confirm_ends(connection, ids, tokens)
    return [released[job_id] for job_id in ids if job_id in released]


IS_CURRENT = "SELECT EXISTS (SELECT FROM inflight_jobs WHERE id = %s AND fencing_token = %s)"


def is_current(connection: Connection, job_id: int, token: int) -> bool:
    """Return True if the job is in flight, and this token is that of its latest claim."""
    (current,) = fetch_one(connection, IS_CURRENT, (job_id, token))
    return bool(current)


def ids_and_tokens(claims: Iterable[Claim]) -> dict[str, str]:
    """Return the parameters of `THESE_CLAIMS`."""
    # In the order of the ids everywhere, so that two statements which lock the same rows do not wait for each other.
    ids, tokens = [], []
    for claim in sorted(claims, key=_id_of):
        ids.append(claim.id)
        tokens.append(claim.fencing_token)
    return {"ids": id_array(ids), "tokens": id_array(tokens)}


_id_of: Callable[[Claim], int] = itemgetter(0)
