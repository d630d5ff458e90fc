"""A thread beside the jobs: it extends the leases that a worker holds, and tells a job when its own is lost.

A third of a lease after the claim, and so on, it extends all that are held, in one statement, on a connection of its
own. The thread starts and the connection is opened only then: a job of milliseconds costs nothing. If an extension is
refused, somebody else has claimed the job.

PostgreSQL may be away for longer than the lease. Then nobody else can claim either, and once it is back the
first who asks has the job: the extension of a lease that ran out is taken as long as nobody has claimed.

A job that hangs where no exception reaches it does not keep its lease for ever: some time after its
time limit the thread extends it no more, and only looks whether somebody else has claimed the job. One that
catches its LeaseLostError or its JobTimeoutError, and goes on, gets the next one every ten seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from drain.database import postgres
from drain.database.deadline import call_at
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leases, outcomes
from workers.lease import lease as lease_module
from workers.lease.database import session
from workers.lease.lease import NEVER, Lease
from workers.stores import POSTGRES, Stores, is_outage, is_stale

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.01
# What a heartbeat may take before it is tried again on a new connection.
_LONGEST_BEAT_SECONDS = 15.0
# A worker that ends a job lets a heartbeat that is under way come to its end, for so long; then it breaks it off.
_PATIENCE_SECONDS = 0.25
_JOIN_SECONDS = 1.0


class Heartbeat:
    """Extends leases, from the first `watch` to `stop`.

    Args:
        database_url: Where.
        held: The leases that are held now; called in the keeper's thread.
        stores: Where is said whether PostgreSQL answers; by default a state of its own.

    Attributes:
        interrupting: Held while a job is being interrupted: whoever has taken it is not.
    """

    def __init__(
        self, database_url: str, held: Callable[[], Sequence[Lease]], stores: Stores | None = None
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
        # The calls of _start to come: what each of them returned that forgets it.
        self._starts: list[Callable[[], object]] = []
        self._has_failed = False
        # Held by who opens, closes or breaks off the connection: the number of a closed one may be another's.
        self._connecting = threading.Lock()
        self._connection: Connection | None = None

    def watch(self, lease: Lease) -> None:
        """Take care of a lease that is held from now on, or whose job begins."""
        next_at = min(lease.beat_at, lease.tell_at, lease.interrupt_at)
        if next_at < self._wakes_at:
            # An earlier start is not forgotten: another thread may be here too, and a start too many does nothing.
            if self._thread is None:
                self._starts.append(call_at(next_at, self._start))
            # Only now, for whoever finds it relies on the start.
            self._wakes_at = next_at
            # In both cases, since the thread may have been started in between.
            self._woken.set()

    def stop(self) -> None:
        """Extend no more; may be called again, or without `watch`. Raises nothing."""
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
        # One of them is enough, or each that fails would go on for itself.
        self._forget_starts()
        self._starts.append(call_at(monotonic() + _RETRY_SECONDS, self._start))

    def _forget_starts(self) -> None:
        while self._starts:
            self._starts.pop()()

    def _keep(self) -> None:
        while not self._ended:
            now = monotonic()
            held = self._held()
            for lease in held:
                if now >= lease.tell_at:
                    _tell_where_it_is(lease)
            if any(now >= lease.beat_at for lease in held):
                self._beat(held, now)
            for lease in held:
                if now >= lease.interrupt_at:
                    lease.interrupt_at = now + lease_module.AGAIN_SECONDS
                    lease.interrupt()
            self._sleep()
        self._disconnect()

    def _sleep(self) -> None:
        # From here on whoever watches a lease that needs care earlier wakes us.
        self._woken.clear()
        self._wakes_at = NEVER
        next_at = min(
            (min(lease.beat_at, lease.tell_at, lease.interrupt_at) for lease in self._held()), default=NEVER
        )
        self._wakes_at = min(self._wakes_at, next_at)
        if not self._ended:
            pause = max(_SHORTEST_PAUSE_SECONDS, next_at - monotonic())
            self._woken.wait(None if pause == NEVER else min(pause, threading.TIMEOUT_MAX))

    def _beat(self, held: Sequence[Lease], now: float) -> None:
        """One heartbeat for all."""
        heeded = [lease for lease in held if lease.beat_at < NEVER]
        for lease in heeded:
            lease.beat_at = now + lease.heartbeat
        kept = [lease for lease in heeded if not lease.settling]
        if not kept:
            return
        seconds = min(_LONGEST_BEAT_SECONDS, max(1.0, min(lease.heartbeat for lease in kept)))
        began, was_open = monotonic(), self._connection is not None
        try:
            self._extend_or_lose(kept, now, seconds)
            self._stores.answered(POSTGRES, began)
        # Whatever it is, a job must not lose its lease over it: the next heartbeat may succeed.
        except Exception as error:  # noqa: BLE001
            self._disconnect()
            for lease in heeded:
                lease.beat_at = monotonic() + min(_RETRY_SECONDS, lease.heartbeat)
            if not self._ended:
                self._report(error, kept, is_stale=was_open and is_stale(began))

    def _report(self, error: Exception, kept: Sequence[Lease], *, is_stale: bool) -> None:
        if not isinstance(error, UnavailableError) or not is_outage(error):
            log.warning(
                "the leases of %d jobs, such as %d, could not be extended: %s",
                len(kept),
                kept[0].claim.id,
                error,
            )
        elif not is_stale:
            self._stores.failed(error)

    def _extend_or_lose(self, held: Sequence[Lease], now: float, seconds: float) -> None:
        with postgres.reachable(self._database_url):
            connection = self._connected(seconds)
            # Connecting may have taken longer than the job.
            if self._ended:
                return
            with postgres.time_limit(connection, seconds):
                claims = [lease.claim for lease in held if now < lease.let_go_at]
                extended = leases.extend_many(connection, claims) if claims else {}
                refused = []
                for lease in held:
                    claim = lease.claim
                    if claim.id in extended:
                        lease.extended, lease.expires_at = now, extended[claim.id]
                    elif now < lease.let_go_at or not leases.is_current(
                        connection, claim.id, claim.fencing_token
                    ):
                        refused.append(lease)
                if extended:
                    failpoint(FailurePoint.EXTENDED)
                for lease in refused:
                    # Refused may also mean finished, in a commit of the job's own whose answer never came.
                    claim = lease.claim
                    if not lease.settling and outcomes.is_finished(connection, claim.id, claim.fencing_token):
                        lease.settling = True
        for lease in refused:
            if not lease.settling:
                _lose(lease)

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


def _lose(lease: Lease) -> None:
    claim = lease.claim
    lease.lost = True
    lease.beat_at = NEVER
    lease.interrupt_at = monotonic()
    log.warning(
        "job %d has been claimed by somebody else: the lease of attempt %d is lost",
        *(claim.id, claim.attempts),
        extra={"event": "lease_lost", "job_id": claim.id, "token": claim.fencing_token},
    )


def _tell_where_it_is(lease: Lease) -> None:
    lease.tell_at = NEVER
    # The stack is of another thread, and may change while it is being read.
    with suppress(Exception):
        log.warning(
            "job %d (%s) has been running for %.0f s; it is here:\n%s",
            *(lease.claim.id, lease.claim.job_name, monotonic() - lease.began, lease.stack()),
            extra={"event": "job_slow", "job_id": lease.claim.id},
        )
