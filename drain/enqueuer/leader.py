"""Who drains: the one session that holds an advisory lock, and how that session sleeps.

The lock belongs to the session, so it must be taken before BEGIN: under repeatable read the first
statement of a transaction fixes what it sees, and a lock that is waited for inside of it would be granted
on a picture in which the rows of the previous leader's last batch are still there. And it must be the
session that drains: when the connection dies, the lock and the batch in hand go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drain.config import process_name
from drain.database import locks
from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leader_progress
from drain.tables.leader_progress import Progress

APPLICATION_NAME = "drain run"
CHANNEL = "staged_jobs"


def try_to_lead(connection: Connection) -> Progress | None:
    """Become the leader for as long as this connection lives, or return None: there is one.

    Returns:
        Where the last leader got to.
    """
    if not locks.try_lock(connection, locks.LEADER):
        return None
    connection.execute(f"LISTEN {CHANNEL}")
    found = leader_progress.record_leader(connection, process_name())
    failpoint(FailurePoint.LEADING)
    return found


@contextmanager
def asleep(connection: Connection) -> Iterator[bool]:
    """Sleep in such a way that whoever stages knows it; see the trigger in `schema.sql`.

    Yields:
        True if every transaction that stages from now on will notify, and none is open that did not:
        what is committed by now can be seen, what comes later will wake us. False if such a
        transaction is open; then look again soon.
    """
    locked = locks.try_lock(connection, locks.ASLEEP)
    failpoint(FailurePoint.ASLEEP)
    try:
        yield locked
    finally:
        # On a broken connection there is nothing to release: the lock went with it.
        if locked and not connection.broken:
            locks.unlock(connection, locks.ASLEEP)


def wait_for_notify(connection: Connection, seconds: float) -> None:
    """Return when somebody has notified, or after `seconds`, or when a signal arrives."""
    for _ in connection.notifies(timeout=seconds, stop_after=1):
        pass
    # All that came together is answered by one look at the table.
    for _ in connection.notifies(timeout=0):
        pass
