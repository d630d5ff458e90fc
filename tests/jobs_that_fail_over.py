"""Jobs that a test holds up by files while it moves the database to a replica."""

import os

import sqlalchemy

from drain.workers import job, transaction
from tests.jobs_in_batches import wait_for_file

MODULE = "tests.jobs_that_fail_over"
_LEAVE = sqlalchemy.text("INSERT INTO effects (label, worker) VALUES (:label, :worker)")


@job(lease_seconds=2.0, max_attempts=9)
def settle(path: str) -> None:
    """Leave the effect in the transaction of the finish, once there is a file of this path."""
    wait_for_file.function(path)
    with transaction() as session:
        session.execute(_LEAVE, {"label": path, "worker": os.getpid()})


@job(lease_seconds=600.0, max_attempts=9)
def settle_slowly(path: str) -> None:
    """The same; no heartbeat notices that the claim is lost."""
    settle.function(path)


@job(commit="grouped", lease_seconds=600.0, max_attempts=9)
def settle_and_wait(path: str) -> None:
    """The same in a grouped commit; return once there is another file, long after the commit."""
    settle.function(path)
    wait_for_file.function(f"{path}-committed")
