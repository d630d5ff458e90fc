"""Beside a running job: a thread that extends its lease, and tells it when the lease is lost.

The lease is written by the claim and counted by the database's clock. A third of it later, and so on, the
thread extends it, on a connection of its own that is opened only then: a job of milliseconds costs no more
than the thread. If the extension is refused, somebody else has claimed the job: the job gets a
LeaseLostError where one can be raised, which is in the main thread, and `lost` says so everywhere.

PostgreSQL may be away for longer than the lease. Then nobody else can claim either, and once it is back the
first who asks has the job: the extension of a lease that ran out is taken as long as nobody has claimed.

A job that hangs where no exception reaches it does not keep its lease for ever: some time after its
time limit the thread extends it no more, and only looks whether somebody else has claimed the job. One that
catches its LeaseLostError or its JobTimeoutError, and goes on, gets the next one every ten seconds.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import CoroutineType, FrameType
from typing import Any

from drain import postgres
from drain.crashpoints import CrashPoint, reached
from drain.job import JobOptions
from drain.postgres import Connection
from drain.transitions import inflight
from drain.transitions.inflight import Claim

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.01
# What a heartbeat may take before it is tried again on a new connection.
_LONGEST_BEAT_SECONDS = 15.0
# A worker that ends a job lets a heartbeat that is under way come to its end, for so long; then it breaks it off.
_PATIENCE_SECONDS = 0.25
_JOIN_SECONDS = 1.0
# One exception may not be enough: an event loop logs what is raised inside of its callbacks, and goes on.
_AGAIN_SECONDS = 10.0

Handler = Callable[[int, FrameType | None], None]


class Lease:
    """The lease of one claim; extended from `start` to `stop`.

    Args:
        database_url: Where.
        claim: What has been claimed.
        options: Of the job's registration.
        asked_at: When the claim was asked for, by the monotonic clock: the lease began no earlier.

    Attributes:
        lost: Somebody else has claimed the job.
        expires_at: Until when the lease holds, by the database's clock, as far as is known.
        settling: The job's outcome is being committed, or is: there is nothing to extend.
        coroutine: What is running, if the job is an `async def`.
    """

    def __init__(self, database_url: str, claim: Claim, options: JobOptions, asked_at: float) -> None:
        self.lost = False
        self.expires_at = claim.lease_expires_at
        self.settling = False
        self.coroutine: CoroutineType[Any, Any, Any] | None = None
        self._database_url = database_url
        self._claim = claim
        self._heartbeat = min(options.heartbeat, claim.lease_seconds / 2)
        self._beat_seconds = min(_LONGEST_BEAT_SECONDS, max(1.0, self._heartbeat))
        self._began = monotonic()
        self._extended = asked_at
        self._beat_at = asked_at + self._heartbeat
        self._let_go_at = self._began + claim.timeout_seconds + claim.lease_seconds
        self._tell_at = self._began + (options.max_execute_seconds or claim.timeout_seconds / 2)
        # The first time is the alarm's, unless the job has switched that off.
        self._interrupt_at = self._began + claim.timeout_seconds + _AGAIN_SECONDS
        self._handler: Handler | None = None
        self._job_thread = threading.current_thread()
        self._ended = threading.Event()
        # Held while the job is being interrupted: once `stop` has returned, nobody is.
        self._interrupting = threading.Lock()
        # Held by who opens, closes or breaks off the connection: the number of a closed one may be another's.
        self._connecting = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name=f"lease of job {claim.id}", daemon=True)
        self._connection: Connection | None = None

    def start(self, handler: Handler | None = None) -> None:
        """Watch over the lease from now on.

        Args:
            handler: What SIGALRM calls to raise in the job; None if nothing can.
        """
        self._handler = handler
        self._thread.start()

    def stop(self) -> None:
        """Extend no more, and interrupt nobody from now on; may be called again, or without `start`."""
        with self._interrupting:
            self._ended.set()
        if not self._thread.is_alive():
            return
        self._thread.join(_PATIENCE_SECONDS)
        with self._connecting:
            if self._connection is not None:
                postgres.break_off(self._connection)
        self._thread.join(_JOIN_SECONDS)

    def seconds_left(self) -> float:
        """How long the lease still holds, as far as is known; by this machine's monotonic clock."""
        return 0.0 if self.lost else max(0.0, self._extended + self._claim.lease_seconds - monotonic())

    def _watch(self) -> None:
        while not self._ended.wait(self._pause()):
            now = monotonic()
            if now >= self._tell_at:
                self._tell_where_it_is()
            if now >= self._beat_at:
                self._beat(now)
            if now >= self._interrupt_at:
                self._interrupt_at = now + _AGAIN_SECONDS
                self._interrupt()
        self._disconnect()

    def _pause(self) -> float:
        next_at = min(self._beat_at, self._tell_at, self._interrupt_at)
        return max(_SHORTEST_PAUSE_SECONDS, next_at - monotonic())

    def _beat(self, now: float) -> None:
        self._beat_at = now + self._heartbeat
        if not self.settling:
            try:
                self._extend_or_lose(now)
            # Whatever it is, a job must not lose its lease over it: the next heartbeat may succeed.
            except Exception as error:  # noqa: BLE001
                self._disconnect()
                self._beat_at = monotonic() + min(_RETRY_SECONDS, self._heartbeat)
                if not self._ended.is_set():
                    log.warning("the lease of job %d could not be extended: %s", self._claim.id, error)

    def _extend_or_lose(self, now: float) -> None:
        claim = self._claim
        with postgres.reachable(self._database_url):
            connection = self._connected()
            # Connecting may have taken longer than the job.
            if self._ended.is_set():
                return
            with postgres.time_limit(connection, self._beat_seconds):
                if now >= self._let_go_at:
                    holds = inflight.is_current(connection, claim.id, claim.fencing_token)
                else:
                    holds = self._extend(connection, now)
                # Refused may also mean finished, in a commit of the job's own whose answer never came.
                if not holds and not self.settling:
                    self.settling = inflight.is_finished(connection, claim.id, claim.fencing_token)
        if not holds and not self.settling:
            self._lose()

    def _extend(self, connection: Connection, now: float) -> bool:
        claim = self._claim
        expires_at = inflight.extend(connection, claim.id, claim.fencing_token, claim.lease_seconds)
        if expires_at is None:
            return False
        self._extended, self.expires_at = now, expires_at
        reached(CrashPoint.EXTENDED)
        return True

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = postgres.connect(self._database_url, "drain lease")
            with self._connecting:
                self._connection = connection
            with postgres.time_limit(connection, self._beat_seconds):
                # A heartbeat that waits for a lock must not stay behind on the server when it is given up here.
                seconds = max(1, int(self._beat_seconds))
                postgres.set_bounds(connection, statement_seconds=seconds, lock_seconds=seconds)
        return self._connection

    def _disconnect(self) -> None:
        with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _lose(self) -> None:
        self.lost = True
        self._beat_at = float("inf")
        self._interrupt_at = monotonic()
        log.warning(
            "job %d has been claimed by somebody else: the lease of attempt %d is lost",
            *(self._claim.id, self._claim.attempts),
            extra={"event": "lease_lost", "job_id": self._claim.id, "token": self._claim.fencing_token},
        )

    def _interrupt(self) -> None:
        with self._interrupting:
            # A job may use the alarm for itself; by default the signal would end the process.
            is_ours = self._handler is not None and signal.getsignal(signal.SIGALRM) is self._handler
            if is_ours and not self._ended.is_set():
                signal.pthread_kill(self._job_thread.ident or 0, signal.SIGALRM)

    def _tell_where_it_is(self) -> None:
        self._tell_at = float("inf")
        # The stack is of another thread, and may change while it is being read.
        with suppress(Exception):
            log.warning(
                "job %d (%s) has been running for %.0f s; it is here:\n%s",
                *(self._claim.id, self._claim.job_name, monotonic() - self._began, self._stack()),
                extra={"event": "job_slow", "job_id": self._claim.id},
            )

    def _stack(self) -> str:
        """Where the job is; of an `async def` where it waits, since its thread only shows the event loop."""
        frame = sys._current_frames().get(self._job_thread.ident or 0)
        stack = traceback.format_stack(frame) if frame else []
        coroutine: Any = self.coroutine
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            stack += traceback.format_stack(frame, limit=1)
            coroutine = coroutine.cr_await
        return "".join(stack)
