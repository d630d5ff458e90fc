"""What a running job can ask of its own claim."""

from __future__ import annotations

from contextvars import ContextVar, Token
from datetime import datetime
from uuid import uuid5

from drain.tables.claims import Claim
from workers.errors import NoCurrentJobError
from workers.lease.lease import Lease


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
        finished: Its `transaction()` has committed.
        in_transaction: Its `transaction()` is open, or was thrown away without having been ended.
    """

    __slots__ = (
        *("id", "name", "queue", "tag", "context", "attempt", "fencing_token", "finished", "in_transaction"),
        *("_lease", "_database_url"),
    )

    def __init__(self, claim: Claim, lease: Lease, database_url: str) -> None:
        self.id = claim.id
        self.name = claim.job_name
        self.queue = claim.queue
        self.tag = claim.tag
        self.context = claim.context
        self.attempt = claim.attempts
        self.fencing_token = claim.fencing_token
        self.finished = False
        self.in_transaction = False
        self._lease = lease
        self._database_url = database_url

    def __repr__(self) -> str:
        return f"<job {self.id} ({self.name}), attempt {self.attempt}>"

    @property
    def key(self) -> str:
        """The same for every attempt, and no other job has it: for services that take an idempotency key.

        Not even one that gets the same id, after a failover to an older replica or in a restored copy of the database:
        the key is made of the installation, the id, and a random value that the job was staged with.
        """
        claim = self._lease.claim
        # Rows that were staged before version 2 of the schema have none, and keep the keys that they have shown.
        salt = "" if claim.salt is None else f" {claim.salt}"
        return str(uuid5(claim.installation, f"{claim.id}{salt}"))

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


def begin(job: CurrentJob) -> Token[CurrentJob | None]:
    """Make `job` the current one, until `end`."""
    return _current.set(job)


def end(token: Token[CurrentJob | None]) -> None:
    """Make the one current that was so before."""
    _current.reset(token)
