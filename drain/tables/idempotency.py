"""Idempotency keys: a job that is staged again under the same key is the job that is there already.

`drain_stage_once` of `schema.sql` writes keys and jobs, with the rights of the owner: an application may read none of
the keys, and change none.
"""

from __future__ import annotations

from drain.database.postgres import Connection

# Stages `job`, an object of columns as JSON, unless `idempotency_key` is known; the key is kept for `seconds`. Returns
# the id of the job under that key, as a negative number if that job is another one.
STAGE_ONCE = (
    "SELECT drain_stage_once(CAST(%(idempotency_key)s AS text), CAST(%(seconds)s AS double precision), "
    "CAST(%(job)s AS jsonb))"
)
# An hour later than it might: drain_stage_once reads a key twice, and has to find it the second time.
_EXPIRED = "expires_at <= now() - interval '1 hour'"
DELETE_EXPIRED = f"""
DELETE FROM idempotency_keys WHERE {_EXPIRED} AND idempotency_key = ANY (ARRAY (
    SELECT idempotency_key FROM idempotency_keys WHERE {_EXPIRED} ORDER BY expires_at LIMIT %s))
"""


def delete_expired(connection: Connection, most: int) -> int:
    """Delete up to `most` keys whose time has been over for an hour; returns how many."""
    return connection.execute(DELETE_EXPIRED, (most,)).rowcount
