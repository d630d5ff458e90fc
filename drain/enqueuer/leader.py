"""Advisory locks of the draining session.

The leader's is taken before BEGIN: under repeatable read, waiting for it inside a transaction would keep a snapshot
with the previous leader's last batch. A dying connection takes lock and open batch with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import ceil

from psycopg import Notify

from drain.config import process_name
from drain.database import locks
from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import leader_progress, running
from drain.tables.leader_progress import Progress

APPLICATION_NAME = "drain run"
CHANNEL = "staged_jobs"
# Instead of a queue's name: jobs were staged.
STAGED = ""


def try_to_lead(connection: Connection, *, is_command: bool = False) -> Progress | None:
    """Lead for this connection's life; return the last leader's numbers, or None if another session leads.

    A command waits briefly for a session that is ending.
    """
    take = locks.lock_for_command if is_command else locks.try_lock
    if not take(connection, locks.LEADER):
        return None
    connection.execute(f"LISTEN {CHANNEL}; LISTEN {running.CHANNEL}")
    found = leader_progress.record_leader(connection, process_name())
    failpoint(FailurePoint.LEADING)
    return found


@contextmanager
def asleep(connection: Connection) -> Iterator[bool]:
    """Hold the lock that makes staging transactions notify; see the trigger in `schema.sql`.

    Yields:
        True if committed rows are visible and later ones will notify. False if an open transaction will not notify:
        scan again soon.
    """
    locked = locks.try_lock(connection, locks.ASLEEP)
    failpoint(FailurePoint.ASLEEP)
    try:
        yield locked
    finally:
        # A broken connection has lost the lock.
        if locked and not connection.broken:
            locks.unlock(connection, locks.ASLEEP)


def wait_for_notify(connection: Connection, seconds: float) -> set[str]:
    """Wait for a notification, a signal or `seconds`; return as `received`."""
    # psycopg waits for whole milliseconds, and polls without pause for the rest: a quarter of the CPU at 50 jobs/s. The
    # addend is what a call takes.
    timeout = (ceil(1000 * seconds) + 0.05) / 1000
    # One scan answers them all.
    return _names(connection.notifies(timeout=timeout, stop_after=1)) | received(connection)


def received(connection: Connection) -> set[str]:
    """Return notifications so far: `STAGED`, and names of queues where jobs may have ended.

    Any role may have sent them.
    """
    return _names(connection.notifies(timeout=0))


def _names(notices: Iterable[Notify]) -> set[str]:
    return {STAGED if each.channel == CHANNEL else each.payload for each in notices}
