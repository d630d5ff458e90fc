"""The audit: proves on a live system that no job is lost, doubled or stuck.

    tables    one snapshot: each id in exactly one table, no finish without a claim, no token gone backwards
    rules     conditions that no row of a table may meet, for `tables`
    recheck   repeated looks, since jobs under way may seem wrong at one look; for those that follow
    overdue   rows that should have been drained or delivered again long ago
    obstacles what explains that a row is overdue: pauses, limits, rates, full lists
    admission what the leader admits: limits, unique keys
    ticks     schedules whose tick should have been staged
    lists     delivered jobs compared with the lists in Redis
    orphans   entries of a list that belong to no job or no delivery, for `lists`
    attended  queues with jobs and without a worker
    report    the result: counts and breaches

What always holds: an audit changes nothing, and no job, worker or enqueuer waits for it; only vacuum is delayed while
it reads. An audit cannot find rows that are in no table at all: ids have gaps, since transactions roll back.
"""

from __future__ import annotations

from collections.abc import Callable

from drain.audit import tables
from drain.audit.admission import AdmissionCheck
from drain.audit.attended import AttendedCheck
from drain.audit.lists import ListsCheck
from drain.audit.overdue import OverdueCheck
from drain.audit.recheck import LiveCheck, look_until_clear
from drain.audit.report import CHECKS, Breach, Report
from drain.audit.ticks import TicksCheck
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

# Time that a row may be due, in seconds.
OVERDUE_SECONDS = 60
# Time that jobs may wait in a queue without a worker, in seconds: a deploy has replaced its workers by then.
UNATTENDED_SECONDS = 300
# Time in which what seems wrong may clear, in seconds. The leader takes 15 s to be sure that a popped delivery is lost;
# a delivery that is lost during these has its own 15 s after them.
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
    """Check everything that must always hold.

    Reads all tables once; and, while something is overdue or missing in Redis, looks again for up to
    `patience_seconds`. Reading 100 million rows needs a longer `statement_timeout` than other commands have.

    Args:
        connection: In autocommit mode, with no transaction open.
        redis: Redis that the leader pushes into; None leaves the lists and the workers out.
        overdue_seconds: Time that a row may be due before it is overdue.
        patience_seconds: Time in which what seems overdue, missing or orphaned may clear. 0 is for a system that
            stands still: jobs under way would be breaches.
        unattended_seconds: Time that jobs may wait in a queue without a worker.
        progress: Called with the name of each step as it begins.

    Raises:
        psycopg.Error: The database failed. If Redis does not answer, its checks are not made: see `Report.unchecked`.
    """
    counts, breaches = tables.check(connection, progress)
    live_checks: list[LiveCheck] = [
        OverdueCheck(connection, overdue_seconds),
        AdmissionCheck(connection),
        TicksCheck(connection, overdue_seconds),
    ]
    if redis is not None:
        live_checks += [ListsCheck(connection, redis), AttendedCheck(connection, redis, unattended_seconds)]
    progress("looking for what is overdue or missing")
    look_until_clear(live_checks, patience_seconds, progress)
    breaches += (breach for check in live_checks for breach in check.breaches())
    order = list(CHECKS)
    return Report(
        counts=counts,
        breaches=tuple(sorted(breaches, key=lambda breach: order.index(breach.check))),
        redis_asked=redis is not None,
        unchecked={name: why for check in live_checks for name, why in check.unchecked().items()},
    )
