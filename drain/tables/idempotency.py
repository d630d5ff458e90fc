"""Idempotency keys: staging again returns the first job.

`drain_stage_once` runs as the owner: applications cannot access keys.
"""

from __future__ import annotations

from drain.database.postgres import Connection

# Returns the id; negative if known.
STAGE_ONCE = (
    "SELECT drain_stage_once(CAST(%(idempotency_key)s AS text), CAST(%(seconds)s AS double precision), "
    "CAST(%(job)s AS jsonb))"
)
# An hour of slack: drain_stage_once reads a key twice.
_EXPIRED = "expires_at <= now() - interval '1 hour'"
DELETE_EXPIRED = f"""
DELETE FROM idempotency_keys WHERE {_EXPIRED} AND idempotency_key = ANY (ARRAY (
    SELECT idempotency_key FROM idempotency_keys WHERE {_EXPIRED} ORDER BY expires_at LIMIT %s))
"""


def delete_expired(connection: Connection, most: int) -> int:
    """Delete up to `most` keys expired for an hour; return how many."""
    return connection.execute(DELETE_EXPIRED, (most,)).rowcount
