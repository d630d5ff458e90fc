"""Extension of all leases of a process, in one statement.

It is refused once the job was claimed elsewhere, cancelled, or finished in a commit whose answer was lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import cancellations, finishes, leases
from drain.workers.lease.database import session
from drain.workers.lease.interruption import Interruption
from drain.workers.lease.lease import NEVER, Lease
from drain.workers.stores import POSTGRES, Stores, is_outage, is_stale

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
# On the server; retried on a new connection.
_LONGEST_SECONDS = 10.0
# This side waits longer: a lock wait that the server cannot report looks like an outage.
_STALLED_RATIO = 1.5


class Watched(Protocol):
    """Attempt, as the heartbeat sees it."""

    lease: Lease
    interruption: Interruption


class Extender:
    """Extends leases, for one thread.

    Args:
        lost: Called for each lease that another worker has.

    Attributes:
        ended: No lease may be extended any more.
    """

    def __init__(self, database_url: str, stores: Stores, lost: Callable[[], object] | None = None) -> None:
        self.ended = False
        self._database_url = database_url
        self._stores = stores
        self._lost = lost
        # Held to open, close or break the connection: a closed descriptor may be reused.
        self._connecting = threading.Lock()
        self._connection: Connection | None = None

    def break_off(self) -> None:
        """Break off a running extension; for other threads."""
        with self._connecting:
            if self._connection is not None:
                postgres.break_off(self._connection)

    def extend(self, held: Sequence[Watched], now: float) -> None:
        """Extend all leases; report a failure, and retry soon."""
        watched = [each for each in held if each.lease.beat_at < NEVER]
        for each in watched:
            each.lease.beat_at = now + each.lease.heartbeat_seconds
        kept = [each for each in watched if not each.lease.ending]
        if not kept:
            return
        seconds = max(1, int(min(_LONGEST_SECONDS, *(each.lease.heartbeat_seconds for each in kept))))
        began, was_open = monotonic(), self._connection is not None
        try:
            self._extend_or_lose(kept, now, seconds)
            self._stores.answered(POSTGRES, began)
        # No error may cost a job its lease.
        except Exception as error:  # noqa: BLE001
            self.close()
            for each in watched:
                each.lease.beat_at = monotonic() + min(_RETRY_SECONDS, each.lease.heartbeat_seconds)
            if not self.ended:
                self._report(error, kept, is_stale=was_open and is_stale(began))

    def _report(self, error: Exception, kept: Sequence[Watched], *, is_stale: bool) -> None:
        if not isinstance(error, UnavailableError) or not is_outage(error):
            log.warning(
                "the leases of %d jobs, such as %d, could not be extended: %s",
                len(kept),
                kept[0].lease.claim.id,
                error,
                extra={"event": "leases_not_extended"},
            )
        elif not is_stale:
            self._stores.failed(error)

    def _extend_or_lose(self, held: Sequence[Watched], now: float, seconds: int) -> None:
        with postgres.reachable(self._database_url):
            connection = self._connected(seconds)
            # Connecting may have outlasted the job.
            if self.ended:
                return
            with postgres.time_limit(connection, seconds * _STALLED_RATIO):
                refused = _extend(connection, held, now)
        for each in refused:
            if not each.lease.ending:
                _lose(each)
                if self._lost is not None and not each.lease.cancelled:
                    self._lost()

    def _connected(self, seconds: int) -> Connection:
        if self._connection is None:
            # A heartbeat given up while waiting for a lock must end on the server too.
            connection = postgres.connect(self._database_url, "drain lease", settings=session(seconds))
            with self._connecting:
                self._connection = connection
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def _extend(connection: Connection, held: Sequence[Watched], now: float) -> list[Watched]:
    """Return attempts whose lease another worker may have."""
    claims = [each.lease.claim for each in held if now < each.lease.let_go_at]
    extended = leases.extend_many(connection, claims) if claims else {}
    refused = []
    for each in held:
        lease, claim = each.lease, each.lease.claim
        if claim.id in extended:
            lease.extended_at, lease.expires_at = now, extended[claim.id]
        elif now < lease.let_go_at or not leases.is_current(connection, claim):
            refused.append(each)
    if extended:
        failpoint(FailurePoint.EXTENDED)
    for each in refused:
        lease, claim = each.lease, each.lease.claim
        if lease.ending:
            continue
        if finishes.is_finished(connection, claim):
            lease.ending = True
        else:
            lease.cancelled = cancellations.is_cancelled(connection, claim)
    return refused


def _lose(watched: Watched) -> None:
    lease, claim = watched.lease, watched.lease.claim
    lease.lost = True
    lease.beat_at = NEVER
    watched.interruption.due_at = monotonic()
    if lease.cancelled:
        log.info(
            "job %d was cancelled: attempt %d is interrupted",
            claim.id,
            claim.attempts,
            extra={"event": "attempt_cancelled", "job_id": claim.id},
        )
        return
    log.warning(
        "job %d has been claimed by another worker: the lease of attempt %d is lost",
        claim.id,
        claim.attempts,
        extra={"event": "lease_lost", "job_id": claim.id, "token": claim.fencing_token},
    )
