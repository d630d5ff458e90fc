"""Idempotency keys: a job that is staged again under the same key is the job that is there already.

`drain_stage_once` of `schema.sql` writes keys and jobs, with the rights of the owner: an application may read none of
the keys, and change none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drain.database.postgres import Connection


def stage_once_statement(_columns: Sequence[str], placeholder: Callable[[str], str]) -> str:
    """Build the call that stages `job` unless `idempotency_key` is known.

    Its result is the id of the job under that key, as a negative number if that job is another one.

    Args:
        placeholder: Spells the placeholder of a parameter in the parameter style of the driver; the parameters are
            `idempotency_key`, `seconds` (for which the key is kept) and `job`, an object of columns as JSON.
    """
    return (
        f"SELECT drain_stage_once(CAST({placeholder('idempotency_key')} AS text), "
        f"CAST({placeholder('seconds')} AS double precision), CAST({placeholder('job')} AS jsonb))"
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
