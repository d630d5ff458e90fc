"""The proof, on a live system, that what must always hold does.

    tables    one snapshot: each id in exactly one table, no finish without a claim, no token gone backwards
    rules     what no row of a table may be, for `tables`
    overdue   what should have been drained or delivered again long ago
    lists     what has been delivered against the lists in Redis
    strays    what is in a list and should be in none, for `lists`
    attended  queues whose jobs wait though no worker takes them
    watch     looking again, since both of these may show what is just under way
    report    what was found

Nothing is changed, and nobody waits for an audit; only vacuum is held up while it reads. What it cannot know
of are rows that are in no table at all: ids have gaps, since transactions roll back.
"""

from __future__ import annotations

from collections.abc import Callable

from drain.audit import tables
from drain.audit.attended import Attended
from drain.audit.lists import Lists
from drain.audit.overdue import Overdue
from drain.audit.recheck import Watch, settle
from drain.audit.report import CHECKS, Breach, Report
from drain.database.postgres import Connection
from drain.wire import Producer

__all__ = [
    "CHECKS",
    "OVERDUE_SECONDS",
    "PATIENCE_SECONDS",
    "UNATTENDED_SECONDS",
    "Breach",
    "Report",
    "audit",
]

OVERDUE_SECONDS = 60
# Workers that a deploy replaces are back by then.
UNATTENDED_SECONDS = 300
# The leader takes 15 s to be sure that a popped delivery is lost. One that is lost while it is waiting for
# another has its 15 s after those.
PATIENCE_SECONDS = 35


def _ignore(_step: str) -> None:
    pass


def audit(
    connection: Connection,
    redis: Producer | None = None,
    *,
    overdue_seconds: float = OVERDUE_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
    unattended_seconds: float = UNATTENDED_SECONDS,
    progress: Callable[[str], None] = _ignore,
) -> Report:
    """Look for everything that must not be.

    Takes as long as it takes to read the tables once; and, while something is overdue or missing in Redis, up
    to `patience_seconds` more. Reads of 100 million rows want a `statement_timeout` of their own.

    Args:
        connection: In autocommit mode, with no transaction open.
        redis: Where the leader pushes; None leaves the lists out.
        overdue_seconds: For how long something may be due before it is overdue.
        patience_seconds: For how long what seems overdue, missing or astray may take to clear. 0 is for a
            system that stands still: it takes what is under way for a breach.
        unattended_seconds: For how long jobs may wait in a queue that has no worker.
        progress: Called with the name of each step as it begins.

    Raises:
        psycopg.Error: The database. A Redis that does not answer leaves its checks unmade; see `Report.unchecked`.
    """
    counts, breaches = tables.check(connection, progress)
    watches: list[Watch] = [Overdue(connection, overdue_seconds)]
    if redis is not None:
        watches += [Lists(connection, redis), Attended(connection, redis, unattended_seconds)]
    progress("looking for what is overdue or missing")
    settle(watches, patience_seconds, progress)
    breaches += (breach for watch in watches for breach in watch.breaches())
    order = list(CHECKS)
    return Report(
        counts=counts,
        breaches=tuple(sorted(breaches, key=lambda breach: order.index(breach.check))),
        redis_asked=redis is not None,
        unchecked={name: why for watch in watches for name, why in watch.unchecked().items()},
    )
