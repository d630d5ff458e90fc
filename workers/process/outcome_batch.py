"""Outcomes recorded together."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from drain.errors import UnavailableError
from drain.tables import finishes
from drain.workers.execution.outcome import FINISHED, AlreadyFinished, Finished, Outcome, undone_by_crash
from drain.workers.lease.database import Database
from drain.workers.process.jobs import ClaimedJob


class OutcomeBatch:
    """Ended jobs, by how they are recorded.

    Attributes:
        finished: Durably recorded.
        alone: To be recorded singly.
        left: For redelivery, as PostgreSQL is unavailable.
    """

    def __init__(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> None:
        self.finished: list[ClaimedJob] = []
        self.alone: list[tuple[ClaimedJob, Outcome]] = []
        self.left: list[ClaimedJob] = []
        self._returned: list[ClaimedJob] = []
        self._results: dict[int, str] = {}
        self._committed: list[tuple[ClaimedJob, AlreadyFinished]] = []
        for job, outcome in ended:
            job.lease.ending = True
            if isinstance(outcome, Finished):
                self._returned.append(job)
                if outcome.result is not None:
                    self._results[job.claim.id] = outcome.result
            elif isinstance(outcome, AlreadyFinished) and not outcome.is_durable:
                self._committed.append((job, outcome))
            elif isinstance(outcome, AlreadyFinished) and outcome.rest == FINISHED:
                self.finished.append(job)
            else:
                self.alone.append((job, outcome))

    def record(self, database: Database) -> None:
        """Record outcomes, as far as possible."""
        if self._returned:
            self._finish(database)
        if self._committed:
            self._make_durable(database)

    def _finish(self, database: Database) -> None:
        jobs, results = self._returned, self._results
        claims = [job.claim for job in jobs]
        try:
            recorded = database.ask(lambda c: finishes.finish_many(c, claims, results))
        except psycopg.Error:
            # One cannot be finished, so none was.
            recorded = set()
        except UnavailableError as error:
            self._leave(jobs, database, error)
            return
        for job in jobs:
            if job.claim.id in recorded:
                self.finished.append(job)
            else:
                self.alone.append((job, Finished(results.get(job.claim.id))))

    def _make_durable(self, database: Database) -> None:
        claims = [job.claim for job, _ in self._committed]
        try:
            undone = database.ask(lambda c: finishes.undone_by_crash(c, claims))
        except UnavailableError as error:
            self._leave([job for job, _ in self._committed], database, error)
            return
        for job, outcome in self._committed:
            if job.claim.id in undone:
                self.alone.append((job, undone_by_crash(job.options)))
            elif outcome.rest == FINISHED:
                self.finished.append(job)
            else:
                self.alone.append((job, outcome))

    def _leave(self, jobs: Sequence[ClaimedJob], database: Database, error: UnavailableError) -> None:
        database.stores.leave(len(jobs), error)
        self.left += jobs
