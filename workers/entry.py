"""The function that every pushed RQ job calls.

An unmodified `rq worker` needs only DRAIN_DATABASE_URL and DRAIN_JOBS. One that forks per job is faster after
`preload`: `rq worker --config drain.rq_settings`.

The claim is committed before the job runs; the outcome, under the claim's token, before RQ gets the result. A killed
worker leaves a lease that expires.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from drain.config import Settings, process_name
from drain.database import postgres, qualified, schema
from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.jobs import registry
from drain.tables import claims, leader_progress
from drain.tables.claims import Claim
from drain.workers.context import django_connections, log_fields, reporter
from drain.workers.context.current import Attempt
from drain.workers.context.transaction import load_sessions
from drain.workers.execution import completion_hooks, rq_calls
from drain.workers.execution.attempt import run as run_here
from drain.workers.execution.decision import FINISHED
from drain.workers.execution.outcome import Outcome
from drain.workers.execution.recorder import Recorder, log_finished
from drain.workers.lease.database import Database, prepare
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.stores import Stores

if TYPE_CHECKING:
    from rq import Retry
    from rq.job import Job

log = logging.getLogger(__name__)

# Older deliveries name this module so; found even if an application has a package `workers`.
sys.modules.setdefault("workers.entry", sys.modules[__name__])

FOREIGN = "foreign"
Runner = Callable[[Attempt], Outcome]

_PREPARE_AFTER = 5


def execute(job_id: int, installation: bytes | str | None = None) -> str | Retry:
    """Claim the job, run it, and record its outcome.

    Args:
        installation: UUID of the delivering database, as 16 bytes or text; None in older deliveries.

    Returns:
        A word for RQ: finished, retrying, interrupted, deferred, cancelled, stale, or refused. Or RQ's order to requeue
        another database's job after a pause.

    Raises:
        Exception: The job is dead: its exception, or a JobDeadError, so that RQ records a failure.
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or invalid. The job stays as it is.
        UnavailableError: PostgreSQL stayed unavailable. The job is redelivered.
    """
    from rq import get_current_job

    if isinstance(installation, bytes):
        installation = str(UUID(bytes=installation))
    current = get_current_job()
    if current is not None:
        rq_calls.register_worker(current)
    queue = current.origin if current is not None else None
    delivery = rq_calls.delivery_of(job_id, current.id) if current is not None else None
    worker = _worker(job_id, current)
    word = worker.execute(job_id, delivery=delivery, queue=queue or None, installation=installation)
    reporter.flush()
    death = worker.recorder.last_death()
    if worker.keeps_result and current is not None:
        rq_calls.tell_of_end(current.connection, job_id)
    if death is not None:
        raise death.exception()
    if word in ("retrying", "deferred", "cancelled") and current is not None:
        # For RQ this delivery is finished.
        from drain.wire import hold_dependents

        hold_dependents(current.connection, current.id)
    return rq_calls.give_back(job_id, queue, installation) if word == FOREIGN else word


class Worker:
    """Executes jobs one at a time, on its own connection.

    Attributes:
        keeps_result: Of the last claimed job.
        unrun: Last attempt, if claimed only to be buried.
    """

    def __init__(self, settings: Settings, stores: Stores | None = None) -> None:
        # A child forked for one job asks only for its claim and finish.
        stores = stores or Stores()
        self.database = Database(settings.database_url, asks_first=False, stores=stores)
        self.recorder = Recorder(self.database)
        self.keeps_result = False
        self.unrun: Attempt | None = None
        self._known: Connection | None = None

    def execute(
        self,
        job_id: int,
        run: Runner = run_here,
        *,
        delivery: int | None = None,
        queue: str | None = None,
        installation: str | None = None,
    ) -> str:
        """Execute a job; see the function of this name.

        Args:
            delivery: Claim only this one; None for calls by hand.
            queue: Claim only from this queue.
            installation: UUID of the delivering database; None for this one.

        Returns:
            As that function, or `FOREIGN` for an untouched job of another database.
        """
        failpoint(FailurePoint.POPPED)
        self.keeps_result, self.unrun = False, None
        asked_at = monotonic()
        try:
            claim = self._claim(job_id, delivery, queue, installation)
        except psycopg.DataError as error:
            return self.recorder.bury_unclaimable(job_id, error)
        if claim is None:
            if installation and str(self.database.ask(leader_progress.installation)) != installation:
                return FOREIGN
            log.info(
                "job %d was not claimed: another worker has it, it was delivered again, or it has ended",
                job_id,
                extra={"event": "not_claimed", "job_id": job_id},
            )
            return "refused"
        failpoint(FailurePoint.CLAIMED)
        if claim.expired or claim.is_spent:
            word = self.recorder.bury_unrun(claim)
            watcher = Heartbeat(self.database.url, list, self.database.stores)
            self.unrun = Attempt(claim, asked_at, watcher, self.database.url)
            if completion_hooks.are_wanted():
                self._call_end_hooks(self.unrun, word)
            return word
        heartbeat = Heartbeat(self.database.url, lambda: [attempt], self.database.stores)
        attempt = Attempt(claim, asked_at, heartbeat, self.database.url)
        self.keeps_result = attempt.options.keeps_result
        try:
            result = run(attempt)
        finally:
            heartbeat.stop()
        took = monotonic() - attempt.interruption.began_at
        failpoint(FailurePoint.RAN)
        word = self.recorder.record(claim, result)
        failpoint(FailurePoint.RECORDED)
        if word == "finished":
            log_finished([(claim, took)])
        if completion_hooks.are_wanted():
            self._call_end_hooks(attempt, word)
        return word

    def _call_end_hooks(self, attempt: Attempt, word: str) -> None:
        death = self.recorder.death
        if death is not None:
            completion_hooks.call(attempt, death.explanation)
        elif word == FINISHED:
            completion_hooks.call(attempt)

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def _claim(
        self, job_id: int, delivery: int | None, queue: str | None, installation: str | None
    ) -> Claim | None:
        asked = False

        def ask(connection: Connection) -> Claim | None:
            nonlocal asked
            again, asked = asked, True
            is_known = connection is self._known
            try:
                claim = claims.claim(
                    connection,
                    job_id,
                    worker=process_name(),
                    limits=registry.limits(),
                    delivery=delivery,
                    queue=queue,
                    installation=installation,
                    version=None if is_known or schema.was_checked(connection) else schema.VERSION,
                    again=again,
                )
            except psycopg.errors.SyntaxErrorOrAccessRuleViolation:
                # No schema, or an older one.
                schema.check_once(connection)
                raise
            if not is_known:
                self._look_at_session(connection, has_claimed=claim is not None)
            return claim

        return self.database.ask(ask)

    def _look_at_session(self, connection: Connection, *, has_claimed: bool) -> None:
        """Detect whether statements can be prepared, and a wrong schema after a refused claim."""
        if not has_claimed:
            schema.check_once(connection)
            postgres.detect_pooler(connection, postgres.backend_pid(connection))
        if not postgres.is_pooled(connection):
            connection.prepare_threshold = _PREPARE_AFTER
        self._known = connection


def preload() -> Settings:
    """Load, and import what `transaction` needs, for processes forked later; opens no connection or thread."""
    settings = load()
    load_sessions()
    qualified.prepare()
    return settings


@cache
def load() -> Settings:
    """Read the settings and import job modules, once.

    Raises:
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or invalid, or a module cannot be imported.
    """
    settings = Settings.from_environment()
    log_fields.install()
    registry.load(settings.jobs)
    prepare(settings.database_url)
    return settings


_workers: dict[int, Worker] = {}


def _worker(job_id: int, current: Job | None) -> Worker:
    """Return this process' worker: a forked child must not share its parent's connection."""
    worker = _workers.get(os.getpid())
    if worker is None:
        settings = load()
        _workers.clear()
        django_connections.forget_inherited()
        worker = _workers[os.getpid()] = Worker(settings)
        if current is None:
            reporter.report_to(settings.redis_url, settings.namespace)
        else:
            named, _, _ = current.id.rpartition(f"-{job_id}-")
            reporter.report_to(settings.redis_url, named or settings.namespace, current.connection)
    return worker
