"""The running attempt, and the part of it that its job sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar, Token
from datetime import datetime
from typing import Any
from uuid import uuid5

from drain.jobs import registry
from drain.jobs.dependencies import FlowOfJob
from drain.jobs.options import JobOptions
from drain.tables.claims import Claim
from drain.tables.steps import Undoable
from drain.workers.context import reporter
from drain.workers.context.recorded_steps import Steps
from drain.workers.context.related import RelatedJobs
from drain.workers.context.report import MOST, Report, checked
from drain.workers.context.written_result import written
from drain.workers.errors import NoCurrentJobError, UnfitResultError
from drain.workers.lease.interruption import Interruption, Watcher
from drain.workers.lease.lease import Lease

_DEFAULT_OPTIONS = JobOptions()
_NOTHING: Mapping[str, Undoable] = {}


class Attempt:
    """Attempt at a job, created where it is claimed.

    Args:
        asked_at: Request of the claim, by `monotonic()`.

    Attributes:
        commit_seconds: Time for its commit, once it has one.
        job: None if its name is not registered.
        groups_commit: The commit of its `transaction()` need not wait for the disk, since recording does.
        finished: Its `transaction()` has committed, or will with those it shares the transaction with.
        in_transaction: Its `transaction()` is open, or was abandoned.
        result: JSON to keep, if given before the finish.
        late_result: JSON returned after `transaction()` finished the job.
        shared: `SharedTransaction` that it may join, if any.
        steps: Its steps, once it has called one.
        results: JSON of its predecessors' results by id or node, once read.
        flow: Its batch or flow, once read.
        undoes: The steps that its own steps undo, by name.
    """

    __slots__ = (
        *(
            "claim",
            "commit_seconds",
            "database_url",
            "finished",
            "groups_commit",
            "in_transaction",
            "interruption",
            "job",
            "lease",
        ),
        *(
            "_current",
            "flow",
            "has_ended",
            "late_result",
            "options",
            "progress",
            "result",
            "results",
            "shared",
            "steps",
            "undoes",
        ),
    )

    def __init__(self, claim: Claim, asked_at: float, watcher: Watcher, database_url: str) -> None:
        self.claim = claim
        self.job = job = registry.find(claim.job_name)
        self.options = options = _DEFAULT_OPTIONS if job is None else job.job_options
        self.lease = lease = Lease(claim, options, asked_at)
        self.interruption = Interruption(lease, options, watcher)
        self.database_url = database_url
        self.groups_commit = False
        self.reset()

    def reset(self) -> None:
        """Forget that the job has run."""
        self.finished = self.in_transaction = self.has_ended = False
        self.commit_seconds = 0.0
        self.shared: object | None = None
        self.result: str | None = None
        self.late_result: str | None = None
        self.progress: Report | None = None
        self.steps: Steps | None = None
        self.results: dict[int | str, str] | None = None
        self.flow: FlowOfJob | None = None
        self.undoes = _NOTHING
        self._current: CurrentJob | None = None

    @property
    def current(self) -> CurrentJob:
        """Part that the job may see."""
        if self._current is None:
            self._current = CurrentJob(self)
        return self._current

    def keep_returned(self, value: Any) -> None:
        """Keep the returned value of a job with `result="keep"`, unless it has set one."""
        if self.result is not None:
            return
        if not self.finished:
            self.result = written(self.claim.id, value)
        elif value is not None:
            self.late_result = written(self.claim.id, value)


class CurrentJob(RelatedJobs):
    """Running job.

    Attributes:
        context: JSON text from staging, if any.
        attempt: From 1; deferrals do not count.
        max_attempts: Attempts that may fail; 0 for no limit.
        fencing_token: Grows with each claim: a store that refuses tokens below the highest seen is safe from late
            workers.
    """

    __slots__ = (
        *("_attempt", "attempt", "context", "fencing_token", "id", "max_attempts"),
        *("name", "queue", "tag"),
    )
    _attempt: Attempt

    def __init__(self, attempt: Attempt) -> None:
        claim = attempt.claim
        self.id = claim.id
        self.name = claim.job_name
        self.queue = claim.queue
        self.tag = claim.tag
        self.context = claim.context
        self.attempt = claim.attempts
        self.max_attempts = claim.max_attempts
        self.fencing_token = claim.fencing_token
        self._attempt = attempt

    def __repr__(self) -> str:
        return f"<job {self.id} ({self.name}), attempt {self.attempt}>"

    def set_result(self, value: Any) -> None:
        """Set the result of a job registered with `result="keep"`; the last call wins, even over a returned value.

        For a job that finishes itself: its `transaction()` commits the result with the finish.

        Args:
            value: Numbers, strings, lists and objects, up to 64 KiB of JSON.

        Raises:
            UnfitResultError: The value is not JSON or too large; or the job keeps no result, or is finished. Kills
                the job unless caught.
        """
        attempt = self._attempt
        if not attempt.options.keeps_result:
            raise UnfitResultError(
                f'job {self.id} ({self.name}) does not keep results: register it with @job(result="keep")'
            )
        if attempt.finished:
            raise UnfitResultError(
                f"job {self.id} has already finished: set its result within its transaction"
            )
        attempt.result = written(self.id, value)

    def progress(self, done: float, total: float | None = None, text: str | None = None) -> None:
        """Report progress, for `drain.progress` and `drain show`.

        Cheap enough for a loop: a thread sends the latest report to Redis at most twice a second. Each attempt starts
        over.

        Args:
            done: Steps, bytes or other units.
            total: All of them, if known.
            text: Present step; 200 characters are kept.

        Raises:
            ProgressError: A value is not a number, is negative, or exceeds the total.
        """
        kind, of, attempt = type(done), type(total), self._attempt
        if (
            (kind is int or kind is float)
            and (
                0 <= done <= MOST
                if total is None
                else (of is int or of is float) and 0 <= done <= total <= MOST
            )
            and (text is None or type(text) is str)
        ):
            report: Report = (done, total, text)
        else:
            report = checked(done, total, text)
        is_first = attempt.progress is None
        attempt.progress = report
        if is_first:
            reporter.follow(attempt)

    @property
    def args(self) -> list[Any]:
        """Positional arguments as staged, in a new list."""
        return list(json.loads(self._attempt.claim.job_args))

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments as staged, in a new dictionary."""
        return dict(json.loads(self._attempt.claim.job_kwargs))

    @property
    def finished(self) -> bool:
        """True once its `transaction()` has committed; with `commit="shared"`, once the block has ended."""
        return self._attempt.finished

    @property
    def in_transaction(self) -> bool:
        """True while its `transaction()` is open, or after it was abandoned."""
        return self._attempt.in_transaction

    @property
    def key(self) -> str:
        """Idempotency key: the same for all attempts, and unique to the job.

        From the installation, the id and a random value, so that ids repeated after a failover or in a copy differ.
        """
        claim = self._attempt.claim
        # Rows older than schema version 2 keep their keys.
        salt = "" if claim.salt is None else f" {claim.salt}"
        return str(uuid5(claim.installation, f"{claim.id}{salt}"))

    @property
    def lease_expires_at(self) -> datetime:
        """End of the lease by the database's clock; heartbeats extend it."""
        return self._attempt.lease.expires_at

    @property
    def lease_seconds_left(self) -> float:
        """Known remaining seconds of the lease; 0 once lost or expired."""
        return self._attempt.lease.seconds_left()

    @property
    def lease_lost(self) -> bool:
        """True once the job was claimed elsewhere or cancelled: stop, it cannot finish."""
        return self._attempt.lease.lost

    @property
    def cancelled(self) -> bool:
        """True once a heartbeat has noticed a cancellation: stop, it cannot finish."""
        return self._attempt.lease.cancelled


_running: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def current_job() -> CurrentJob:
    """Return the job running in this context.

    Raises:
        NoCurrentJobError: There is none. A thread started by a job has its own context.
    """
    return current_attempt().current


def current_attempt() -> Attempt:
    """Return the running attempt, or raise NoCurrentJobError."""
    attempt = _running.get()
    if attempt is None:
        raise NoCurrentJobError("no job is running here; call this inside a job's function")
    return attempt


def job_fields() -> tuple[int, str, int] | None:
    """Return the running job's id, name and attempt number."""
    attempt = _running.get()
    if attempt is None:
        return None
    claim = attempt.claim
    return claim.id, claim.job_name, claim.attempts


def begin(attempt: Attempt) -> Token[Attempt | None]:
    """Make an attempt the running one."""
    return _running.set(attempt)


def end(token: Token[Attempt | None]) -> None:
    """Restore the attempt from before `begin`."""
    _running.reset(token)
