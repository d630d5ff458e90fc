"""Advisory locks: all of them by name, and the calls that take one for a session.

An advisory lock is two numbers that PostgreSQL attaches no meaning to, so every program of ours has to know the same
ones. They never change: programs of two versions work side by side during an upgrade. The functions of `schema.sql`
spell theirs themselves; tests/unit/test_locks.py compares both.
"""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one

_ENDING_SECONDS = 2.0
_LOOK_SECONDS = 0.05


class Lock(NamedTuple):
    """Numbers of an advisory lock; `str()` spells them as the two arguments of a lock function.

    Attributes:
        first: A literal.
        second: SQL: a literal, or the hash of a name, for a lock that exists once for each name.
    """

    first: int
    second: str

    def __str__(self) -> str:
        return f"{self.first}, {self.second}"


# "jobd" in ASCII.
_FIRST = 0x6A6F6264

# Held by the leader's session for as long as it leads.
LEADER = Lock(_FIRST, "1")
# Held by the leader while it sleeps. Each transaction that stages tries for a share of it, in `drain_wake_enqueuer`.
ASLEEP = Lock(_FIRST, "2")
# Held by the transaction that applies the schema or a migration.
SCHEMA = Lock(_FIRST, "3")
# Held by the transaction that makes partitions of `finished_jobs`, in `drain_make_days_of`.
MAKE_DAYS = Lock(_FIRST, "4")
# Held by the session of `drain archive`, and by the transaction of `drain_drop_old_day_of`.
ARCHIVE = Lock(_FIRST, "6")
# Shared by the transactions that stage by the million.
BULK_STAGING = Lock(_FIRST, "7")
# Held by a task of a bulk run while it copies: one lock for each of a few places, whose name Python's format() puts in.
BULK_PLACE = Lock(_FIRST + 5, "hashtext('{name}')")
# Held by the session that drives a bulk run; the parameter is the id of the run.
BULK_RUN = Lock(_FIRST + 6, "hashtext(%s)")
# Held by the session of `drain reconcile`; the parameter is the name of the job.
RECONCILE = Lock(_FIRST + 7, "hashtext(%s)")


def try_lock(connection: Connection, lock: Lock, *names: Any) -> bool:
    """Take a lock for as long as the session lives; False if another session has it.

    Args:
        connection: Connection of the session.
        lock: Constant of this module.
        names: Parameter of the lock, if it has one.
    """
    (taken,) = fetch_one(connection, f"SELECT pg_try_advisory_lock({lock})", names)
    return bool(taken)


def lock_for_command(connection: Connection, lock: Lock, *names: Any) -> bool:
    """Take a lock as `try_lock` does, and wait a moment for a session that is ending.

    The server still has the locks of a command just after its process has exited: of two commands in a script, the
    second would sometimes find the first at work.
    """
    deadline = monotonic() + _ENDING_SECONDS
    while not (taken := try_lock(connection, lock, *names)) and monotonic() < deadline:
        sleep(_LOOK_SECONDS)
    return taken


def unlock(connection: Connection, lock: Lock) -> None:
    """Give a lock of the session back."""
    connection.execute(f"SELECT pg_advisory_unlock({lock})".encode())
