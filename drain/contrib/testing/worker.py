"""The worker's part in a test: claim, run and record one attempt at a time.

Unlike with a worker, the recorder's statements are savepoints, no heartbeat extends the lease, and isolated jobs run in
this process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus

from drain.config import process_name
from drain.contrib.testing.adopted import Adopted
from drain.contrib.testing.lending import Lender
from drain.contrib.testing.nested import LeaderConnection
from drain.jobs import registry
from drain.tables import claims
from drain.tables.claims import Claim
from drain.workers.context.current import Attempt
from drain.workers.context.lent_connections import lender
from drain.workers.execution.attempt import run, run_in_loop
from drain.workers.execution.outcome import AlreadyFinished, Outcome
from drain.workers.execution.recorder import Recorder
from drain.workers.lease.database import Database

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of one attempt; or of a job that ended without one.

    Attributes:
        state: "finished", "retrying", "deferred", "dead", "cancelled" or "superseded"; "stale" if the job has been
            claimed again.
        attempt: Its number; 0 for a job that ended without one.
        error: The job's exception; None without one, or if it only defers the job.
        explanation: Why the job is dead or superseded.
    """

    id: int
    job_name: str
    state: str
    attempt: int = 0
    error: BaseException | None = field(default=None, compare=False)
    explanation: str | None = None


class Watcher:
    """Stands for a worker's heartbeat: no other session sees the lease."""

    def __init__(self) -> None:
        self.interrupting = threading.Lock()

    def wake_by(self, at: float) -> None:
        """Do nothing."""


class InlineDatabase:
    """Stands for a worker's connection: statements are savepoints."""

    url = ""

    def __init__(self, connection: LeaderConnection) -> None:
        self._connection = connection

    def ask(self, statement: Callable[[LeaderConnection], T]) -> T:
        """Execute a statement."""
        with self._connection.transaction():
            return statement(self._connection)


class InlineWorker:
    """Executes delivered jobs one by one."""

    def __init__(self, connection: LeaderConnection, adopted: Adopted) -> None:
        self._connection = connection
        self._adopted = adopted
        self._lender = Lender(adopted.pgconn)
        self._database = InlineDatabase(connection)
        self._recorder = Recorder(cast(Database, self._database))

    def execute(self, job_id: int, delivery: int) -> Ran | None:
        """Attempt a job; None if not claimable."""
        attempt = self._begin(job_id, delivery)
        if not isinstance(attempt, Attempt):
            return attempt
        with self._around():
            result = run(attempt)
        return self._record(attempt.claim, result)

    async def aexecute(self, job_id: int, delivery: int) -> Ran | None:
        """Do as `execute`; an `async def` is awaited in the running loop."""
        attempt = self._begin(job_id, delivery)
        if not isinstance(attempt, Attempt):
            return attempt
        with self._around():
            if attempt.job is not None and attempt.job.runs_in_loop:
                # A task has its own context, where this attempt is current.
                result = await asyncio.create_task(_in_time(attempt))
            else:
                result = run(attempt)
        return self._record(attempt.claim, result)

    def _begin(self, job_id: int, delivery: int) -> Attempt | Ran | None:
        asked_at = monotonic()
        try:
            claim = self._database.ask(
                lambda connection: claims.claim(
                    connection,
                    job_id,
                    worker=process_name(),
                    limits=registry.limits(),
                    delivery=delivery,
                )
            )
        except psycopg.DataError as error:
            word = self._recorder.bury_unclaimable(job_id, error)
            death = self._recorder.last_death()
            return Ran(job_id, "", word, explanation=None if death is None else death.explanation)
        if claim is None:
            return None
        if claim.expired or claim.is_spent:
            return self._ran(claim, self._recorder.bury_unrun(claim), None, attempt=claim.attempts - 1)
        return Attempt(claim, asked_at, Watcher(), self._database.url)

    @contextmanager
    def _around(self) -> Iterator[None]:
        """Lend the session to the job; its failed statements do not spoil the test's transaction."""
        guard = LeaderConnection(self._adopted.pgconn)
        guard.begin()
        token = lender.set(self._lender)
        try:
            yield
        finally:
            lender.reset(token)
            if self._adopted.pgconn.transaction_status == TransactionStatus.INERROR:
                guard.undo()
                self._adopted.repair()
            else:
                guard.end()

    def _record(self, claim: Claim, result: Outcome) -> Ran:
        word = self._recorder.record(claim, result)
        if isinstance(result, AlreadyFinished):
            result = result.rest
        return self._ran(claim, word, getattr(result, "cause", None), attempt=claim.attempts)

    def _ran(self, claim: Claim, word: str, error: BaseException | None, *, attempt: int) -> Ran:
        death: Any = self._recorder.last_death()
        explanation = None if death is None else death.explanation
        return Ran(claim.id, claim.job_name, word, attempt, error, explanation)


async def _in_time(attempt: Attempt) -> Outcome:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(attempt.claim.timeout_seconds, attempt.interruption.interrupt)
    try:
        return await run_in_loop(attempt)
    finally:
        timer.cancel()
