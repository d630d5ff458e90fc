"""Leadership: one session holds an advisory lock and drains; and the lock under which that session sleeps.

The lock belongs to the session, so it must be acquired before BEGIN: under repeatable read the first
statement of a transaction fixes its snapshot, and a lock that is waited for inside of the transaction would be
granted on a snapshot that still has the rows of the previous leader's last batch. And it must be the session
that drains: when the connection dies, the lock and the open batch go together.
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
    """Become the leader for as long as this connection lives, if there is no other leader.

    Returns:
        Numbers that the last leader has recorded; None if another session leads.
    """
    if not locks.try_lock(connection, locks.LEADER):
        return None
    connection.execute(f"LISTEN {CHANNEL}")
    found = leader_progress.record_leader(connection, process_name())
    failpoint(FailurePoint.LEADING)
    return found


@contextmanager
def asleep(connection: Connection) -> Iterator[bool]:
    """Hold the lock that makes transactions notify when they stage; see the trigger in `schema.sql`.

    Yields:
        True if every transaction that stages from now on will notify, and none is open that did not: rows that
        are committed by now can be seen, later ones will wake this session. False if such a transaction is open;
        then scan again soon.
    """
    locked = locks.try_lock(connection, locks.ASLEEP)
    failpoint(FailurePoint.ASLEEP)
    try:
        yield locked
    finally:
        # On a broken connection there is nothing to release: the lock went with it.
        if locked and not connection.broken:
            locks.unlock(connection, locks.ASLEEP)


def wait_for_notify(connection: Connection, seconds: float) -> bool:
    """Wait for a notification, for `seconds`, or until a signal arrives; returns True if one has come."""
    notified = False
    for _ in connection.notifies(timeout=seconds, stop_after=1):
        notified = True
    # One scan of the table answers all notifications that came together.
    for _ in connection.notifies(timeout=0):
        pass
    return notified
