"""Batches of short jobs that share a transaction; see `SharedTransaction`."""

from __future__ import annotations

from time import monotonic

import psycopg

from drain.failpoints import FailurePoint, failpoint
from drain.jobs.options import SHARED
from drain.workers.context.shared import SharedTransaction
from drain.workers.errors import INTERRUPTIONS, Dead
from drain.workers.execution.outcome import FINISHED, AlreadyFinished, Finished, Outcome
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob, Item

_MOST = 50
_LONGEST_SECONDS = 0.02
# Jobs with a longer average run time hold up the others.
_LONG_SECONDS = 0.01
# Of chained exceptions.
_DEEPEST = 10
# Of the latest run in the average.
_WEIGHT = 0.2


class Sharing:
    """The main thread's batch.

    A job takes part in its first attempt, and once its name is known to be short.
    """

    def __init__(self, inbox: Inbox, database_url: str) -> None:
        self._inbox = inbox
        self._transaction = SharedTransaction(database_url)
        self._ran: list[tuple[ClaimedJob, Outcome, float]] = []
        self._began_at = 0.0
        self._averages: dict[str, float] = {}

    def admits(self, item: Item | None) -> bool:
        """Return True if a job may take part; otherwise commit before it runs."""
        return (
            isinstance(item, ClaimedJob)
            and item.may_share
            and not item.lease.lost
            and self._averages.get(item.claim.job_name, _LONG_SECONDS) < _LONG_SECONDS
        )

    def begin(self, job: ClaimedJob) -> None:
        """Let a job take part if it opens a transaction."""
        if not self._ran:
            self._began_at = monotonic()
        job.shared = self._transaction

    def end(self, job: ClaimedJob, outcome: Outcome, seconds: float) -> None:
        """Note a job's outcome, and commit unless another one follows."""
        if job.options.commit == SHARED:
            # Slow commits are why to share.
            self._observe(job.claim.job_name, seconds - job.commit_seconds)
        if job not in self._transaction.members:
            self._inbox.add_outcome(job, outcome, seconds)
        else:
            # The database knows whether it is finished.
            self._inbox.journal.commit(job.slot)
            self._ran.append((job, outcome, seconds))
            self._inbox.count_run(seconds)
            if self._transaction.lent_to is not None:
                self._transaction.close()
        if self._ran and (self._is_full() or not self.admits(self._inbox.first_waiting)):
            self.commit()

    def commit(self) -> None:
        """Commit, if jobs have taken part; those whose run may be the others' fault run again, alone."""
        ran, self._ran = self._ran, []
        if not ran:
            return
        results: dict[int, str] = {}
        for job, _, _ in ran:
            if job.finished:
                job.lease.ending = True
                if (result := job.result or job.late_result) is not None:
                    results[job.claim.id] = result
        is_committed = self._transaction.commit(results, min(job.claim.timeout_seconds for job, _, _ in ran))
        if is_committed is not False:
            failpoint(FailurePoint.FINISHED_AND_COMMITTED)
        again = []
        for job, outcome, seconds in ran:
            if _runs_again(job, outcome, undone=is_committed is False):
                again.append(job)
                continue
            if isinstance(outcome, AlreadyFinished):
                # The result is kept.
                rest = FINISHED if isinstance(outcome.rest, Finished) else outcome.rest
                outcome = AlreadyFinished(rest, is_durable=is_committed is True)  # noqa: PLW2901
            self._inbox.add_outcome(job, outcome, seconds, is_counted=True)
        self._inbox.return_first(again)

    def close(self) -> None:
        """Close the connection."""
        self._transaction.close()

    def _is_full(self) -> bool:
        return (
            len(self._ran) >= _MOST
            or monotonic() >= self._began_at + _LONGEST_SECONDS
            or self._transaction.is_spent
        )

    def _observe(self, name: str, seconds: float) -> None:
        average = self._averages.get(name, seconds)
        self._averages[name] = average + _WEIGHT * (seconds - average)


def _runs_again(job: ClaimedJob, outcome: Outcome, *, undone: bool) -> bool:
    """Return True if the job runs again, alone, in the same attempt."""
    if job.finished:
        return undone
    cause = getattr(outcome, "cause", None)
    return not _is_interruption(job, cause) and (undone or _is_from_database(cause))


def _is_interruption(job: ClaimedJob, error: BaseException | None) -> bool:
    """Return True if raised in the job from outside; its own code may raise `Dead` too."""
    is_own = isinstance(error, Dead) and not isinstance(job.interruption.ordered, Dead)
    return isinstance(error, INTERRUPTIONS) and not is_own


def _is_from_database(error: BaseException | None) -> bool:
    """Return True if the job might not have failed without the locks, cursors and tables of the others."""
    for _ in range(_DEEPEST):
        if error is None or isinstance(error, psycopg.Error):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, psycopg.Error)
