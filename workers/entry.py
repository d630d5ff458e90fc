"""The one function that every pushed RQ job calls: claim in Postgres, run, finish.

It needs nothing but DRAIN_DATABASE_URL and DRAIN_JOBS, so an unmodified `rq worker` does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

import psycopg

from drain import postgres, schema
from drain.config import Settings, process_name
from drain.crashpoints import CrashPoint, reached
from drain.errors import UnavailableError
from drain.job import JobOptions
from drain.postgres import Connection
from drain.transitions import inflight, stale, state
from drain.transitions.inflight import Claim
from workers import attempt, outcome, registry
from workers.current import CurrentJob, running
from workers.errors import TransactionError
from workers.lease import Lease
from workers.outcome import Deferred, Failed, Finished, GaveUp, Lost, Outcome, Unreadable

log = logging.getLogger(__name__)
T = TypeVar("T")

# How long PostgreSQL may be away before a claim or an outcome is left to redelivery.
_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.25
_STATEMENT_SECONDS = 10
# Longer than any statement may take: the server, or what stands between, has stopped answering.
_STALLED_SECONDS = 15.0
_LEASE_RAN_OUT = "its worker died or stalled on the last attempt, and the lease ran out"
_EXPIRED = "its expires_at had passed before a worker could start it"
_NO_REASON = "the job gave up, and gave no reason"
_LEFT_OPEN = "the function returned while its transaction() was still open; what that wrote is rolled back"


def execute(job_id: int) -> str:
    """Claim the job, run it, and record what became of it.

    Returns:
        One word for RQ's own books: finished, retrying, deferred, dead, stale, or refused.

    Raises:
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or wrong. The job stays as it is.
        UnavailableError: PostgreSQL stayed away. The job is redelivered once it is back.
    """
    return _worker().execute(job_id)


@dataclass(slots=True)
class Worker:
    """One process that executes jobs, with a connection of its own.

    Attributes:
        settings: Where the database is.
        connection: Opened when it is needed, and anew after it broke.
        installation: What tells this database's jobs from all others; known once it has been connected.
    """

    settings: Settings
    connection: Connection | None = None
    installation: UUID | None = None

    def execute(self, job_id: int) -> str:
        """As the function of this name."""
        reached(CrashPoint.POPPED)
        asked_at = monotonic()
        claim = self._claim(job_id)
        if claim is None:
            log.info("job %d is not to be claimed: claimed, finished or not due", job_id)
            return "refused"
        reached(CrashPoint.CLAIMED)
        if claim.expired:
            return self._bury(claim, "expired", _EXPIRED, ran=False)
        if claim.is_spent:
            return self._bury(claim, "lease", _LEASE_RAN_OUT, ran=False)
        return self._run(claim, asked_at)

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _claim(self, job_id: int) -> Claim | None:
        asked = False

        def ask(connection: Connection) -> Claim | None:
            nonlocal asked
            again, asked = asked, True
            return inflight.claim(
                connection,
                job_id,
                worker=process_name(),
                limits=registry.limits(),
                again=again,
            )

        return self._patiently(ask)

    def _run(self, claim: Claim, asked_at: float) -> str:
        job = registry.find(claim.job_name)
        options = job.job_options if job else JobOptions()
        lease = Lease(self.settings.database_url, claim, options, asked_at)
        current = CurrentJob.of(claim, self._key(claim.id), lease, self.settings.database_url)
        with running(current):
            result = attempt.run(claim, lease)
        reached(CrashPoint.RAN)
        if current.finished:
            _tell_of_the_rest(claim, result)
            return "finished"
        if current.in_transaction and isinstance(result, Finished):
            result = Failed(outcome.describe(TransactionError(_LEFT_OPEN)), options)
        word = self._record(claim, result)
        reached(CrashPoint.RECORDED)
        return word

    def _key(self, job_id: int) -> str:
        return str(uuid5(self.installation or NAMESPACE_OID, str(job_id)))

    def _record(self, claim: Claim, result: Outcome) -> str:
        try:
            return self._record_as_it_is(claim, result)
        except psycopg.DataError:
            # The database's encoding lacks a character of the texts.
            return self._record_as_it_is(claim, outcome.in_ascii(result))

    def _record_as_it_is(self, claim: Claim, result: Outcome) -> str:
        match result:
            case Finished():
                return self._finish(claim)
            case Failed():
                return self._retry_or_bury(claim, result)
            case Deferred():
                return self._defer(claim, result)
            case GaveUp():
                return self._bury(claim, "gave up", result.error["message"] or _NO_REASON, result.error)
            case Unreadable():
                return self._bury(claim, "unreadable", result.explanation)

    def _finish(self, claim: Claim) -> str:
        try:
            done = self._patiently(lambda c: inflight.finish(c, claim.id, claim.fencing_token))
        except psycopg.IntegrityError:
            # Ids are given out once, unless somebody set the sequence back.
            return self._bury(claim, "unreadable", "it ran, but another job with its id is finished already")
        return "finished" if done else self._stale(claim, "finished")

    def _defer(self, claim: Claim, deferred: Deferred) -> str:
        waits = self._patiently(lambda c: inflight.defer(c, claim.id, claim.fencing_token, deferred.when))
        return "deferred" if waits else self._stale(claim, "deferred")

    def _retry_or_bury(self, claim: Claim, failed: Failed) -> str:
        if claim.max_attempts and claim.attempts >= claim.max_attempts:
            explanation = f"failed {claim.attempts} times; last: {failed.line}"
            wanted = "nothing" if isinstance(failed, Lost) else "dead"
            return self._bury(claim, "failed", explanation, failed.error, wanted=wanted)
        wait = outcome.wait_seconds(claim.attempts, failed.options)
        waits = self._patiently(
            lambda c: inflight.retry_later(c, claim.id, claim.fencing_token, wait, failed.error)
        )
        if not waits:
            return self._stale(claim, "nothing" if isinstance(failed, Lost) else "retrying")
        log.warning(
            "job %d (%s) failed on attempt %d, next one in %.1f s: %s",
            *(claim.id, claim.job_name, claim.attempts, wait, failed.line),
            extra={"event": "job_failed", "job_id": claim.id, "tag": claim.tag},
        )
        return "retrying"

    def _bury(
        self,
        claim: Claim,
        reason: str,
        explanation: str,
        error: dict[str, str] | None = None,
        *,
        ran: bool = True,
        wanted: str = "dead",
    ) -> str:
        buried = self._patiently(
            partial(
                inflight.bury_claimed,
                job_id=claim.id,
                token=claim.fencing_token,
                reason=reason,
                explanation=explanation,
                error=error,
                ran=ran,
            )
        )
        if not buried:
            return self._stale(claim, wanted)
        log.error(
            "job %d (%s) is dead: %s",
            *(claim.id, claim.job_name, explanation),
            extra={"event": "job_dead", "job_id": claim.id, "tag": claim.tag},
        )
        return "dead"

    def _stale(self, claim: Claim, wanted: str) -> str:
        """The token is not the current one any more: leave a row about it, and change nothing."""
        # Unless it is this very attempt that finished the job, in a commit whose answer never came.
        if self._patiently(lambda c: inflight.is_finished(c, claim.id, claim.fencing_token)):
            return "finished"
        log.warning(
            "job %d: the outcome of attempt %d came too late and was not recorded",
            *(claim.id, claim.attempts),
            extra={"event": "stale_finish", "job_id": claim.id, "token": claim.fencing_token},
        )
        reached(CrashPoint.REFUSED)
        self._patiently(
            lambda c: stale.record(c, claim.id, claim.fencing_token, worker=process_name(), outcome=wanted)
        )
        return "stale"

    def _patiently(self, statement: Callable[[Connection], T]) -> T:
        """Execute one statement, on a new connection if the old one broke, until patience ends."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with postgres.reachable(self.settings.database_url):
                    connection = self._connected()
                    with postgres.time_limit(connection, _STALLED_SECONDS):
                        return statement(connection)
            except UnavailableError as error:
                self.close()
                if monotonic() > deadline:
                    raise
                log.warning("%s; trying again", error)
                sleep(_PAUSE_SECONDS)

    def _connected(self) -> Connection:
        if self.connection is None or self.connection.closed:
            connection = postgres.connect(self.settings.database_url, "drain work")
            with postgres.time_limit(connection, _STALLED_SECONDS):
                postgres.set_bounds(
                    connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_STATEMENT_SECONDS
                )
                schema.check(connection)
                self.installation = state.installation(connection)
            self.connection = connection
        return self.connection


def _tell_of_the_rest(claim: Claim, result: Outcome) -> None:
    """Log what a job wanted that was finished already, since nobody will see it in a table."""
    match result:
        case Failed(error) | GaveUp(error):
            told = error["traceback"]
        case Deferred():
            told = "it asked to be run later"
        case _:
            return
    log.error(
        "job %d (%s) is finished, and what it did after its transaction failed: %s",
        *(claim.id, claim.job_name, told),
        extra={"event": "failed_after_finish", "job_id": claim.id, "tag": claim.tag},
    )


_workers: dict[int, Worker] = {}


def _worker() -> Worker:
    """The worker of this process: a forked child must not share its parent's connection."""
    worker = _workers.get(os.getpid())
    if worker is None:
        settings = Settings.from_environment()
        registry.load(settings.jobs)
        _workers.clear()
        worker = _workers[os.getpid()] = Worker(settings)
    return worker
