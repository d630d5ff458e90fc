"""The attempt that is running here, and `CurrentJob`, the part of it that a job may see."""

from __future__ import annotations

import json
from contextvars import ContextVar, Token
from datetime import datetime
from typing import Any
from uuid import uuid5

from drain.jobs import registry
from drain.jobs.options import JobOptions
from drain.tables.claims import Claim
from drain.workers.context import reporter
from drain.workers.context.report import MOST, Report, checked
from drain.workers.context.written_result import written
from drain.workers.errors import NoCurrentJobError, UnfitResultError
from drain.workers.lease.interruption import Interruption, Watcher
from drain.workers.lease.lease import Lease

_DEFAULT_OPTIONS = JobOptions()


class Attempt:
    """One attempt at a job, made where its claim is made.

    Args:
        claim: The claim.
        asked_at: When the claim was asked for, by the monotonic clock.
        watcher: Extends the lease, and interrupts the job when its time is over.
        database_url: URL of the job's database.

    Attributes:
        claim: The claim.
        job: The registered job; None if no function is registered under its name.
        options: Of the registration; the defaults if there is none.
        lease: Lease of the claim.
        interruption: When and why the running job is interrupted.
        database_url: URL of the job's database, in which its `transaction()` is executed.
        groups_commit: The commit of the job's `transaction()` need not wait for the disk, since whoever records the
            outcome waits.
        finished: The job's `transaction()` has committed.
        in_transaction: The job's `transaction()` is open, or was thrown away without having been ended.
        result: Result of the job as JSON, if the job keeps one and has given it before its finish; None otherwise.
        late_result: Result as JSON that the job has returned after its `transaction()` had finished it; None otherwise.
        progress: What the job has reported last of its progress; None before.
        has_ended: The function of the job has ended.
    """

    __slots__ = (
        *(
            "claim",
            "database_url",
            "finished",
            "groups_commit",
            "in_transaction",
            "interruption",
            "job",
            "lease",
        ),
        *("_current", "has_ended", "late_result", "options", "progress", "result"),
    )

    def __init__(self, claim: Claim, asked_at: float, watcher: Watcher, database_url: str) -> None:
        self.claim = claim
        self.job = job = registry.find(claim.job_name)
        self.options = options = _DEFAULT_OPTIONS if job is None else job.job_options
        self.lease = lease = Lease(claim, options, asked_at)
        self.interruption = Interruption(lease, options, watcher)
        self.database_url = database_url
        self.groups_commit = self.finished = self.in_transaction = self.has_ended = False
        self.result: str | None = None
        self.late_result: str | None = None
        self.progress: Report | None = None
        self._current: CurrentJob | None = None

    @property
    def current(self) -> CurrentJob:
        """The part of this attempt that the job may see."""
        # Made when a job asks for it, which most do not.
        if self._current is None:
            self._current = CurrentJob(self)
        return self._current

    def keep_returned(self, value: Any) -> None:
        """Keep the value that the function of a job which keeps its result has returned, unless the job has set one.

        Raises:
            UnfitResultError: The value cannot be kept.
        """
        if self.result is not None:
            return
        if not self.finished:
            self.result = written(self.claim.id, value)
        elif value is not None:
            self.late_result = written(self.claim.id, value)


class CurrentJob:
    """The job that is running here.

    Attributes:
        id: Its id in the tables.
        name: The name that it was staged under.
        queue: Its queue.
        tag: Tag that it was staged with.
        context: JSON text of what its stager gave along; None if nothing.
        attempt: 1 for the first. Deferrals do not count.
        max_attempts: Upper bound of the attempts that may fail; 0 for none.
        fencing_token: Grows with each claim. A store that keeps the highest one it has seen, and refuses
            lower ones, is safe from workers that come back late.
    """

    __slots__ = (
        *("_attempt", "attempt", "context", "fencing_token", "id", "max_attempts"),
        *("name", "queue", "tag"),
    )

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
        """Set the result of this job, which is registered with `result="keep"`; the last call counts.

        For a job that finishes itself: its `transaction()` commits the result with the finish, while a returned value
        is added afterwards. A returned value is not kept if the job has set its result.

        Args:
            value: Numbers, texts, lists and objects, up to 64 KiB of JSON.

        Raises:
            UnfitResultError: The value is no JSON, or too large; or the job keeps no result, or is finished already.
                Unless the job catches this, it is dead.
        """
        attempt = self._attempt
        if not attempt.options.keeps_result:
            raise UnfitResultError(
                f'job {self.id} ({self.name}) keeps no result: register it with @job(result="keep")'
            )
        if attempt.finished:
            raise UnfitResultError(
                f"job {self.id} is finished already: set its result within its transaction"
            )
        attempt.result = written(self.id, value)

    def progress(self, done: float, total: float | None = None, text: str | None = None) -> None:
        """Report how far the job is, for `drain.progress` and `drain show`.

        Cheap enough for a loop: the latest report is kept, and a thread of the worker carries it to Redis, twice a
        second at most. While Redis is away nobody sees it, and the job goes on. Each attempt begins anew.

        Args:
            done: Number of steps that are done, or of bytes, or whatever the job counts.
            total: Number of all steps, as far as is known.
            text: A word about the present step; its first 200 characters are kept.

        Raises:
            ProgressError: A number is none, is negative, or is larger than the total.
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
        """Positional arguments as they were staged: JSON values, a new list each time."""
        return list(json.loads(self._attempt.claim.job_args))

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments as they were staged: JSON values, a new dictionary each time."""
        return dict(json.loads(self._attempt.claim.job_kwargs))

    @property
    def finished(self) -> bool:
        """True once its `transaction()` has committed."""
        return self._attempt.finished

    @property
    def in_transaction(self) -> bool:
        """True while its `transaction()` is open, or was thrown away without having been ended."""
        return self._attempt.in_transaction

    @property
    def key(self) -> str:
        """Idempotency key: the same for every attempt, and no other job has it.

        Not even one that gets the same id, after a failover to an older replica or in a restored copy of the database:
        the key is made of the installation, the id, and a random value that the job was staged with.
        """
        claim = self._attempt.claim
        # Rows that were staged before version 2 of the schema have none, and keep the keys that they have shown.
        salt = "" if claim.salt is None else f" {claim.salt}"
        return str(uuid5(claim.installation, f"{claim.id}{salt}"))

    @property
    def lease_expires_at(self) -> datetime:
        """End of the lease by the database's clock; each heartbeat moves it on."""
        return self._attempt.lease.expires_at

    @property
    def lease_seconds_left(self) -> float:
        """Seconds for which the lease holds, as far as is known; 0 once it is lost or has run out."""
        return self._attempt.lease.seconds_left()

    @property
    def lease_lost(self) -> bool:
        """True once another worker has claimed the job, or it was cancelled: stop, nothing can finish it any more."""
        return self._attempt.lease.lost

    @property
    def cancelled(self) -> bool:
        """True once a heartbeat has noticed that the job was cancelled: stop, nothing can finish it any more."""
        return self._attempt.lease.cancelled


_running: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


def current_job() -> CurrentJob:
    """Return the job that is running in this context.

    Raises:
        NoCurrentJobError: None is. A thread that a job starts by itself has a context of its own.
    """
    return current_attempt().current


def current_attempt() -> Attempt:
    """Return the attempt that is running in this context.

    Raises:
        NoCurrentJobError: As `current_job`.
    """
    attempt = _running.get()
    if attempt is None:
        raise NoCurrentJobError("no job is running here; this can be asked only inside of a job's function")
    return attempt


def job_fields() -> tuple[int, str, int] | None:
    """Return id, name and number of the attempt that is running in this context; None if none is."""
    attempt = _running.get()
    if attempt is None:
        return None
    claim = attempt.claim
    return claim.id, claim.job_name, claim.attempts


def begin(attempt: Attempt) -> Token[Attempt | None]:
    """Make an attempt the one that is running in this context, until `end`."""
    return _running.set(attempt)


def end(token: Token[Attempt | None]) -> None:
    """Make the attempt that was running before `begin` the one that is running."""
    _running.reset(token)
