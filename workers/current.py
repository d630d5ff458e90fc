"""What a running job can ask of its own claim."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime

from drain.transitions.inflight import Claim
from workers.errors import NoCurrentJobError
from workers.lease import Lease


@dataclass(slots=True)
class CurrentJob:
    """The job that is running here.

    Attributes:
        id: Its id in the tables.
        name: The name that it was staged under.
        queue: Its queue.
        tag: Where it was staged.
        context: JSON text of what its stager gave along; None if nothing.
        attempt: 1 for the first. Deferrals do not count.
        fencing_token: Grows with each claim. A store that keeps the highest one it has seen, and refuses
            lower ones, is safe from workers that come back late.
        key: The same for every attempt, and no other job has it: for services that take an idempotency key.
        finished: Its `transaction()` has committed.
        in_transaction: Its `transaction()` is open, or was thrown away without having been ended.
    """

    id: int
    name: str
    queue: str
    tag: str | None
    context: str | None
    attempt: int
    fencing_token: int
    key: str
    finished: bool
    in_transaction: bool
    _lease: Lease = field(repr=False)
    _database_url: str = field(repr=False)

    @classmethod
    def of(cls, claim: Claim, key: str, lease: Lease, database_url: str) -> CurrentJob:
        """The job of a claim that was taken a moment ago."""
        return cls(
            id=claim.id,
            name=claim.job_name,
            queue=claim.queue,
            tag=claim.tag,
            context=claim.context,
            attempt=claim.attempts,
            fencing_token=claim.fencing_token,
            key=key,
            finished=False,
            in_transaction=False,
            _lease=lease,
            _database_url=database_url,
        )

    @property
    def lease_expires_at(self) -> datetime:
        """Until when the lease holds by the database's clock; the heartbeat moves it on."""
        return self._lease.expires_at

    @property
    def lease_seconds_left(self) -> float:
        """For how long the lease holds, as far as is known; 0 once it is lost or has run out."""
        return self._lease.seconds_left()

    @property
    def lease_lost(self) -> bool:
        """Whether somebody else has claimed the job: then stop, nothing that you do can finish it."""
        return self._lease.lost


_current: ContextVar[CurrentJob | None] = ContextVar("current_job", default=None)


def current_job() -> CurrentJob:
    """The job that is running in this context.

    Raises:
        NoCurrentJobError: None is. A thread that a job starts by itself has a context of its own.
    """
    job = _current.get()
    if job is None:
        raise NoCurrentJobError("no job is running here; this can be asked only inside of a job's function")
    return job


@contextmanager
def running(job: CurrentJob) -> Iterator[None]:
    """Make `job` the current one for as long as the block runs."""
    token = _current.set(job)
    try:
        yield
    finally:
        _current.reset(token)
