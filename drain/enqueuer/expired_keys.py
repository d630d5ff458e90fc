"""Idempotency keys whose time is over: they are deleted, some thousand at a time."""

from __future__ import annotations

from psycopg import errors

from drain.enqueuer.chores import Chore
from drain.tables import idempotency

# Upper bound of the keys of one statement.
_MOST_KEYS = 5000


class ExpiredKeys(Chore):
    """Deletes idempotency keys whose time is over; counts keys."""

    pause_seconds = 60.0
    goes_on = True
    in_use = (errors.LockNotAvailable, errors.QueryCanceled)
    refused_text = "expired idempotency keys are kept"
    refused_event = "keys_not_deleted"

    def _work(self) -> int:
        return idempotency.delete_expired(self._connection, _MOST_KEYS)
