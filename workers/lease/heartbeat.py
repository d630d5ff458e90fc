"""A thread beside the jobs: it extends the leases that a worker holds, and interrupts a job whose lease is lost.

Every third of a lease after the claim, the thread extends all leases that are held, in one statement, on a connection
of its own. The thread starts and the connection is opened only then: a job of milliseconds costs nothing. If an
extension is refused, another worker has claimed the job.

PostgreSQL may be away for longer than the lease. Then no other worker can claim either, and once PostgreSQL is back the
first worker that asks has the job: a lease that ran out is extended as long as no other worker has claimed the job.

A job that hangs where no exception reaches it does not keep its lease for ever: one lease after its time limit the
thread extends it no more, and only looks whether another worker has claimed the job. A job that catches its
LeaseLostError or its JobTimeoutError, and goes on, gets the next one every ten seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Protocol

from drain.database import postgres
from drain.database.deadline import call_at
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import inflight
from workers.lease import interruption
from workers.lease.database import session
from workers.lease.interruption import Interruption
from workers.lease.lease import NEVER, Lease
from workers.stores import POSTGRES, Stores, is_outage, is_stale

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.01
# Timeout for one heartbeat, which is then tried again on a new connection.
_LONGEST_BEAT_SECONDS = 15.0
# Patience with a heartbeat that is under way when the worker ends; then the heartbeat is broken off.
_PATIENCE_SECONDS = 0.25
_JOIN_SECONDS = 1.0


class Watched(Protocol):
    """An attempt, as the heartbeat sees it.

    Attributes:
        lease: Extended when that is due.
        interruption: Of the job, which is interrupted, or logged as slow, when that is due.
    """

    lease: Lease
    interruption: Interruption


class Heartbeat:
    """Extends leases and interrupts jobs, from the first `wake_by` to `stop`.

    Args:
        database_url: Where the jobs are.
        held: Returns the attempts whose leases are held now; called in the heartbeat's thread.
        stores: State of PostgreSQL, to which failures are reported; by default a state of its own.

    Attributes:
        interrupting: Lock that is held while a job is being interrupted: a thread that has taken it is not.
    """

    def __init__(
        self, database_url: str, held: Callable[[], Sequence[Watched]], stores: Stores | None = None
    ) -> None:
        self.interrupting = threading.Lock()
        self._database_url = database_url
        self._held = held
        self._stores = stores or Stores()
        self._wakes_at = NEVER
        self._woken = threading.Event()
        self._ended = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        # For each call of _start to come, the function that cancels it.
        self._starts: list[Callable[[], object]] = []
        self._has_failed = False
        # Held by the thread that opens, closes or breaks off the connection: the number of a closed one may be reused.
        self._connecting = threading.Lock()
        self._connection: Connection | None = None

    def wake_by(self, at: float) -> None:
        """Look at all attempts again at this time of the monotonic clock, or earlier."""
        if at < self._wakes_at:
            # An earlier start is not forgotten: another thread may be here too, and a start too many does nothing.
            if self._thread is None:
                self._starts.append(call_at(at, self._start))
            # Only now, for a thread that finds this time relies on the start.
            self._wakes_at = at
            # In both cases, since the thread may have been started in between.
            self._woken.set()

    def stop(self) -> None:
        """Extend no more; may be called again, or without `wake_by`. Raises nothing."""
        self._ended = True
        with self._starting:
            self._forget_starts()
            thread = self._thread
        if thread is None:
            return
        self._woken.set()
        thread.join(_PATIENCE_SECONDS)
        with self._connecting:
            if thread.is_alive() and self._connection is not None:
                postgres.break_off(self._connection)
        thread.join(_JOIN_SECONDS)

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._ended:
                return
            thread = threading.Thread(target=self._keep, name="leases", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._start_later(error)
            else:
                self._thread = thread

    def _start_later(self, error: RuntimeError) -> None:
        if not self._has_failed:
            log.warning("no lease is extended until a thread can be started: %s", error)
        self._has_failed = True
        # One further start is enough, or each that fails would go on for itself.
        self._forget_starts()
        self._starts.append(call_at(monotonic() + _RETRY_SECONDS, self._start))

    def _forget_starts(self) -> None:
        while self._starts:
            self._starts.pop()()

    def _keep(self) -> None:
        while not self._ended:
            now = monotonic()
            held = self._held()
            for each in held:
                if now >= each.interruption.slow_at:
                    _log_slow(each)
            if any(now >= each.lease.beat_at for each in held):
                self._beat(held, now)
            for each in held:
                if now >= each.interruption.due_at:
                    each.interruption.due_at = now + interruption.AGAIN_SECONDS
                    each.interruption.interrupt()
            self._sleep()
        self._disconnect()

    def _sleep(self) -> None:
        # From here on a thread that calls wake_by() with an earlier time wakes this one.
        self._woken.clear()
        self._wakes_at = NEVER
        next_at = min((_next_at(each) for each in self._held()), default=NEVER)
        self._wakes_at = min(self._wakes_at, next_at)
        if not self._ended:
            pause = max(_SHORTEST_PAUSE_SECONDS, next_at - monotonic())
            self._woken.wait(None if pause == NEVER else min(pause, threading.TIMEOUT_MAX))

    def _beat(self, held: Sequence[Watched], now: float) -> None:
        """Extend all leases that are held, whenever one of them is due."""
        heeded = [each for each in held if each.lease.beat_at < NEVER]
        for each in heeded:
            each.lease.beat_at = now + each.lease.heartbeat_seconds
        kept = [each for each in heeded if not each.lease.ending]
        if not kept:
            return
        seconds = min(_LONGEST_BEAT_SECONDS, max(1.0, min(each.lease.heartbeat_seconds for each in kept)))
        began, was_open = monotonic(), self._connection is not None
        try:
            self._extend_or_lose(kept, now, seconds)
            self._stores.answered(POSTGRES, began)
        # A job must not lose its lease because of any error here: the next heartbeat may succeed.
        except Exception as error:  # noqa: BLE001
            self._disconnect()
            for each in heeded:
                each.lease.beat_at = monotonic() + min(_RETRY_SECONDS, each.lease.heartbeat_seconds)
            if not self._ended:
                self._report(error, kept, is_stale=was_open and is_stale(began))

    def _report(self, error: Exception, kept: Sequence[Watched], *, is_stale: bool) -> None:
        if not isinstance(error, UnavailableError) or not is_outage(error):
            log.warning(
                "the leases of %d jobs, such as %d, could not be extended: %s",
                len(kept),
                kept[0].lease.claim.id,
                error,
            )
        elif not is_stale:
            self._stores.failed(error)

    def _extend_or_lose(self, held: Sequence[Watched], now: float, seconds: float) -> None:
        with postgres.reachable(self._database_url):
            connection = self._connected(seconds)
            # Connecting may have taken longer than the job.
            if self._ended:
                return
            with postgres.time_limit(connection, seconds):
                refused = _extend(connection, held, now)
        for each in refused:
            if not each.lease.ending:
                _lose(each)

    def _connected(self, seconds: float) -> Connection:
        if self._connection is None:
            # A heartbeat that waits for a lock must not stay behind on the server when it is given up here.
            settings = session(max(1, int(seconds)))
            connection = postgres.connect(self._database_url, "drain lease", settings=settings)
            with self._connecting:
                self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def _next_at(watched: Watched) -> float:
    return min(watched.lease.beat_at, watched.interruption.slow_at, watched.interruption.due_at)


def _extend(connection: Connection, held: Sequence[Watched], now: float) -> list[Watched]:
    """Extend leases; return the attempts whose lease another worker may have."""
    claims = [each.lease.claim for each in held if now < each.lease.let_go_at]
    extended = inflight.extend_many(connection, claims) if claims else {}
    refused = []
    for each in held:
        lease, claim = each.lease, each.lease.claim
        if claim.id in extended:
            lease.extended_at, lease.expires_at = now, extended[claim.id]
        elif now < lease.let_go_at or not inflight.is_current(connection, claim.id, claim.fencing_token):
            refused.append(each)
    if extended:
        failpoint(FailurePoint.EXTENDED)
    for each in refused:
        # Refused may also mean finished, in a commit of the job's own whose answer never came.
        lease, claim = each.lease, each.lease.claim
        if not lease.ending and inflight.is_finished(connection, claim.id, claim.fencing_token):
            lease.ending = True
    return refused


def _lose(watched: Watched) -> None:
    lease, claim = watched.lease, watched.lease.claim
    lease.lost = True
    lease.beat_at = NEVER
    watched.interruption.due_at = monotonic()
    log.warning(
        "job %d has been claimed by another worker: the lease of attempt %d is lost",
        claim.id,
        claim.attempts,
        extra={"event": "lease_lost", "job_id": claim.id, "token": claim.fencing_token},
    )


def _log_slow(watched: Watched) -> None:
    claim, running = watched.lease.claim, watched.interruption
    running.slow_at = NEVER
    # The stack is of another thread, and may change while it is being read.
    with suppress(Exception):
        log.warning(
            "job %d (%s) has been running for %.0f s; it is here:\n%s",
            claim.id,
            claim.job_name,
            monotonic() - running.began_at,
            running.stack(),
            extra={"event": "job_slow", "job_id": claim.id},
        )
