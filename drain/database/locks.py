"""All advisory locks, by name.

The numbers never change, since versions run side by side during an upgrade. `schema.sql` repeats some; tests compare
them.
"""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one

_ENDING_SECONDS = 2.0
_LOOK_SECONDS = 0.05


class Lock(NamedTuple):
    """Advisory lock; `second` is SQL."""

    first: int
    second: str

    def __str__(self) -> str:
        return f"{self.first}, {self.second}"


# "jobd" in ASCII.
_FIRST = 0x6A6F6264

# Held by the leader's session.
LEADER = Lock(_FIRST, "1")
# Held by the sleeping leader; staging tries for a share, in `drain_wake_enqueuer`.
ASLEEP = Lock(_FIRST, "2")
# Held while the schema or a migration is applied.
SCHEMA = Lock(_FIRST, "3")
# Held while partitions of `finished_jobs` are created, in `drain_make_days_of`.
MAKE_DAYS = Lock(_FIRST, "4")
# Held by `drain archive` and the transaction of `drain_drop_old_day_of`.
ARCHIVE = Lock(_FIRST, "6")
# Shared by bulk staging transactions.
BULK_STAGING = Lock(_FIRST, "7")
# Held by a bulk task while it copies.
BULK_PLACE = Lock(_FIRST + 5, "hashtext('{name}')")
# Held while a bulk run is driven.
BULK_RUN = Lock(_FIRST + 6, "hashtext(%s)")
# Held by `drain reconcile`.
RECONCILE = Lock(_FIRST + 7, "hashtext(%s)")


def try_lock(connection: Connection, lock: Lock, *names: Any) -> bool:
    """Take a session lock; False if another session holds it."""
    (taken,) = fetch_one(connection, f"SELECT pg_try_advisory_lock({lock})", names)
    return bool(taken)


def lock_for_command(connection: Connection, lock: Lock, *names: Any) -> bool:
    """Take a session lock, but wait briefly for a session that is ending.

    The server may hold a command's locks just after its process exits.
    """
    deadline = monotonic() + _ENDING_SECONDS
    while not (taken := try_lock(connection, lock, *names)) and monotonic() < deadline:
        sleep(_LOOK_SECONDS)
    return taken


def unlock(connection: Connection, lock: Lock) -> None:
    """Release a session lock."""
    connection.execute(f"SELECT pg_advisory_unlock({lock})".encode())
