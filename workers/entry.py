"""The one function that every pushed RQ job calls: claim in Postgres, run, record.

`execute` needs nothing but DRAIN_DATABASE_URL and DRAIN_JOBS, so an unmodified `rq worker` is enough. A worker that
forks for each job (RQ's default) is faster if it calls `preload` before: `rq worker --config drain.rq_settings`.

The order of writes: the claim is committed before the job runs, and the outcome is committed, under the token of the
claim, before RQ gets the result. A worker that is killed in between leaves a lease that runs out; a worker whose
job was claimed again meanwhile is refused by the token.
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

# Deliveries of older versions name this module so, and RQ finds it here even if an application has a package `workers`.
sys.modules.setdefault("workers.entry", sys.modules[__name__])

FOREIGN = "foreign"
Runner = Callable[[Attempt], Outcome]

# Executions of a statement after which psycopg prepares it; its own default.
_PREPARE_AFTER = 5


def execute(job_id: int, installation: bytes | str | None = None) -> str | Retry:
    """Claim the job, run it, and record what became of it.

    Args:
        job_id: The job.
        installation: UUID of the database that has delivered it, as 16 bytes or as text; deliveries of older
            versions name none.

    Returns:
        One word for RQ's own books: finished, retrying, interrupted, deferred, cancelled, stale, or refused. Or RQ's
        order to put the job back into its queue, after a pause: it is another database's.

    Raises:
        Exception: The job is dead: what it raised, or else a JobDeadError, so that RQ's books say failed and its
            exception handlers are called.
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or wrong. The job stays as it is.
        UnavailableError: PostgreSQL stayed away. The job is redelivered once it is back.
    """
    # RQ's own worker, which calls this function, has imported RQ; other processes that import this module need not.
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
        # To RQ this delivery is finished. RQ's worker has imported what this needs.
        from drain.wire import hold_dependents

        hold_dependents(current.connection, current.id)
    return rq_calls.give_back(job_id, queue, installation) if word == FOREIGN else word


class Worker:
    """Executes jobs one by one, on a connection of its own.

    Args:
        settings: Settings with the URL of the database.
        stores: State of PostgreSQL, to which answers and failures are reported; by default a state of its own.

    Attributes:
        database: The connection.
        recorder: Records outcomes, and knows why the last dead job is dead.
        keeps_result: The last job that was claimed keeps its result.
        unrun: Attempt at the last job, if it was claimed only to be given up; None otherwise.
    """

    def __init__(self, settings: Settings, stores: Stores | None = None) -> None:
        # A child that was forked for one job asks for no more than its claim and its finish.
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
        """Execute a job as the function of this name does.

        Args:
            job_id: The job.
            run: Runner of the attempt.
            delivery: Number of the delivery, the only one under which the job is claimed; None for a call by hand.
            queue: Queue that the delivery came from; None for any.
            installation: UUID of the database that has delivered the job; None for this one.

        Returns:
            As that function, or `FOREIGN`: the job was delivered from another database, and is untouched.
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
                "job %d was not claimed: another worker has it, or it was delivered again, or has ended",
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
                # The answer of a database that has no schema, or an older one.
                schema.check_once(connection)
                raise
            if not is_known:
                self._look_at_session(connection, has_claimed=claim is not None)
            return claim

        return self.database.ask(ask)

    def _look_at_session(self, connection: Connection, *, has_claimed: bool) -> None:
        """Find out whether statements can be prepared, and whether a first claim was refused because of the schema."""
        if not has_claimed:
            schema.check_once(connection)
            postgres.detect_pooler(connection, postgres.backend_pid(connection))
        if not postgres.is_pooled(connection):
            connection.prepare_threshold = _PREPARE_AFTER
        self._known = connection


def preload() -> Settings:
    """Do as `load`, and import all that `transaction` needs: processes that are forked afterwards need not.

    Opens no connection and starts no thread, which a fork would not survive.

    Raises:
        ConfigError: As `load`.
    """
    settings = load()
    load_sessions()
    qualified.prepare()
    return settings


@cache
def load() -> Settings:
    """Read the settings, and import the modules with jobs, once.

    Raises:
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or wrong, or a module does not import.
    """
    settings = Settings.from_environment()
    log_fields.install()
    registry.load(settings.jobs)
    prepare(settings.database_url)
    return settings


_workers: dict[int, Worker] = {}


def _worker(job_id: int, current: Job | None) -> Worker:
    """Return the worker of this process: a forked child must not share its parent's connection."""
    worker = _workers.get(os.getpid())
    if worker is None:
        # No more than this: a process that `rq worker` forks runs one job, which may ask for no session.
        settings = load()
        _workers.clear()
        django_connections.forget_inherited()
        worker = _workers[os.getpid()] = Worker(settings)
        if current is None:
            reporter.report_to(settings.redis_url, settings.namespace)
        else:
            # A worker that RQ has started need not be told of Redis and of the namespace.
            named, _, _ = current.id.rpartition(f"-{job_id}-")
            reporter.report_to(settings.redis_url, named or settings.namespace, current.connection)
    return worker
