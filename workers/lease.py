"""Beside a running job: a thread that extends its lease, and tells it when the lease is lost.

The lease is written by the claim and counted by the database's clock. A third of it later, and so on, the
thread extends it, on a connection of its own that is opened only then: a job of milliseconds costs no more
than the thread. If the extension is refused, somebody else has claimed the job: the job gets a
LeaseLostError where one can be raised, which is in the main thread, and `lost` says so everywhere.

PostgreSQL may be away for longer than the lease. Then nobody else can claim either, and once it is back the
first who asks has the job: the extension of a lease that ran out is taken as long as nobody has claimed.

A job that hangs where no exception reaches it does not keep its lease for ever: some time after its
time limit the thread extends it no more.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import traceback
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import Self

from drain import postgres
from drain.crashpoints import CrashPoint, reached
from drain.errors import UnavailableError
from drain.job import JobOptions
from drain.postgres import Connection
from drain.transitions import inflight
from drain.transitions.inflight import Claim

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.01
# A worker that is ending a job waits no longer than this for a heartbeat that is under way.
_JOIN_SECONDS = 1.0


class Lease:
    """The lease of one claim; extended while the block runs.

    Args:
        database_url: Where.
        claim: What has been claimed, a moment ago.
        options: Of the job's registration.

    Attributes:
        lost: Somebody else has claimed the job.
        expires_at: Until when the lease holds, by the database's clock, as far as is known.
        settling: The job's outcome is being committed, so that a refused extension means nothing.
    """

    def __init__(self, database_url: str, claim: Claim, options: JobOptions) -> None:
        self.lost = False
        self.expires_at = claim.lease_expires_at
        self.settling = False
        self._database_url = database_url
        self._claim = claim
        self._heartbeat = min(options.heartbeat, claim.lease_seconds / 2)
        self._began = self._extended = monotonic()
        self._beat_at = self._began + self._heartbeat
        self._let_go_at = self._began + claim.timeout_seconds + claim.lease_seconds
        self._tell_at = self._began + (options.max_execute_seconds or claim.timeout_seconds / 2)
        self._job_thread = threading.current_thread()
        self._ended = threading.Event()
        # Held while the job is being interrupted: once the block has ended, nobody is.
        self._interrupting = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name=f"lease of job {claim.id}", daemon=True)
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Extend no more, and interrupt nobody from now on; may be called again."""
        with self._interrupting:
            self._ended.set()
        if self._connection is not None:
            postgres.break_off(self._connection)
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def seconds_left(self) -> float:
        """How long the lease still holds, as far as is known; by this machine's monotonic clock."""
        return 0.0 if self.lost else max(0.0, self._extended + self._claim.lease_seconds - monotonic())

    def _watch(self) -> None:
        while not self._ended.wait(self._pause()):
            now = monotonic()
            if now >= self._tell_at:
                self._tell_where_it_is()
            if now >= self._let_go_at:
                self._beat_at = float("inf")
            elif now >= self._beat_at:
                self._beat()
        if self._connection is not None:
            self._connection.close()

    def _pause(self) -> float | None:
        next_at = min(self._beat_at, self._tell_at)
        return None if next_at == float("inf") else max(_SHORTEST_PAUSE_SECONDS, next_at - monotonic())

    def _beat(self) -> None:
        began = monotonic()
        try:
            expires_at = self._extend()
        except UnavailableError as error:
            if not self._ended.is_set():
                log.warning("the lease of job %d could not be extended: %s", self._claim.id, error)
            self._connection = None
            self._beat_at = monotonic() + min(_RETRY_SECONDS, self._heartbeat)
            return
        if expires_at is not None:
            self._extended, self.expires_at = began, expires_at
            self._beat_at = began + self._heartbeat
            reached(CrashPoint.EXTENDED)
        elif not self.settling:
            self._lose()

    def _extend(self) -> datetime | None:
        seconds = max(1.0, self._claim.lease_seconds / 2)
        with postgres.reachable(self._database_url):
            if self._connection is None or self._connection.closed:
                self._connection = postgres.connect(self._database_url, "drain lease")
            with postgres.time_limit(self._connection, seconds):
                claim = self._claim
                return inflight.extend(self._connection, claim.id, claim.fencing_token, claim.lease_seconds)

    def _lose(self) -> None:
        self._beat_at = float("inf")
        self.lost = True
        log.warning(
            "job %d has been claimed by somebody else: the lease of attempt %d is lost",
            *(self._claim.id, self._claim.attempts),
            extra={"event": "lease_lost", "job_id": self._claim.id, "token": self._claim.fencing_token},
        )
        with self._interrupting:
            if not self._ended.is_set() and self._job_thread is threading.main_thread():
                signal.pthread_kill(self._job_thread.ident or 0, signal.SIGALRM)

    def _tell_where_it_is(self) -> None:
        self._tell_at = float("inf")
        frame = sys._current_frames().get(self._job_thread.ident or 0)
        with suppress(Exception):
            log.warning(
                "job %d (%s) has been running for %.0f s; it is here:\n%s",
                *(self._claim.id, self._claim.job_name, monotonic() - self._began),
                "".join(traceback.format_stack(frame)) if frame else "unknown",
                extra={"event": "job_slow", "job_id": self._claim.id},
            )
