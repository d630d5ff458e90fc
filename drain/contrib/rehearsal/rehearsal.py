"""Rehearsal of one job by the workers' runner."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic, perf_counter

from drain.config import process_name
from drain.contrib.rehearsal.lending import RehearsalLender
from drain.contrib.rehearsal.past import End, PastJob
from drain.contrib.rehearsal.session import GuardedSession, Written, guarded_session
from drain.contrib.testing.worker import Watcher
from drain.jobs import registry
from drain.tables.claims import Claim
from drain.workers.context.current import Attempt
from drain.workers.context.lent_connections import lender
from drain.workers.execution.attempt import run
from drain.workers.execution.outcome import (
    AlreadyFinished,
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Outcome,
    Unreadable,
    Waiting,
)


@dataclass(frozen=True)
class Rehearsed:
    """Past job, new end, and the rows written and rolled back."""

    job: PastJob
    end: End
    written: Written = field(default_factory=Written)


def rehearse(database_url: str, job: PastJob, timeout: float | None = None) -> Rehearsed:
    """Run an ended job with the registered code, and roll back its writes.

    Args:
        timeout: Seconds, effective only in the main thread; None for the job's own.
    """
    with guarded_session(database_url) as session:
        attempt = Attempt(_claim(job, session, timeout), monotonic(), Watcher(), database_url)
        token = lender.set(RehearsalLender(session.pgconn))
        began = perf_counter()
        try:
            # Keep the job's output out of the results.
            with redirect_stdout(sys.stderr):
                outcome = run(attempt)
        finally:
            lender.reset(token)
        seconds = perf_counter() - began
        written = session.written()
    end = _end(outcome, seconds, attempt.result or attempt.late_result)
    if written.has_left:
        end = End("left its transaction", end.error, end.message, seconds)
    return Rehearsed(job, end, written)


def _claim(job: PastJob, session: GuardedSession, timeout: float | None) -> Claim:
    options = registry.options(job.job_name)
    limit = job.timeout_seconds or options.timeout_seconds
    return Claim(
        *(job.id, job.job_name, job.job_args, job.job_kwargs, job.queue, job.tag, job.context),
        attempts=max(1, job.attempts),
        max_attempts=options.max_attempts if job.max_attempts is None else job.max_attempts,
        # Fractions of a second are allowed.
        timeout_seconds=limit if timeout is None else timeout,  # type: ignore[arg-type]
        lease_seconds=options.lease_seconds,
        fencing_token=job.fencing_token,
        lease_expires_at=datetime.now(UTC) + timedelta(seconds=options.lease_seconds),
        expired=False,
        failed_before=False,
        salt=job.salt,
        installation=session.installation,
        worker=process_name(),
    )


def _end(outcome: Outcome, seconds: float, result: str | None) -> End:
    if isinstance(outcome, AlreadyFinished | Finished):
        return End("returned", seconds=seconds, result=result)
    if isinstance(outcome, Deferred | Waiting):
        return End("deferred", seconds=seconds)
    if isinstance(outcome, Failed | GaveUp):
        return End("raised", outcome.error["type"], outcome.error["message"], seconds)
    explanation = outcome.explanation if isinstance(outcome, Unreadable) else str(outcome)
    return End("raised", "unreadable", explanation, seconds)
