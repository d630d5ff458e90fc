"""Proof, on a live system, that no job is lost, duplicated or stuck.

    tables    one snapshot: each id in one table, no finish without a claim, tokens only grow
    rules     conditions that no row may meet
    recheck   repeated looks, because moving jobs may look wrong
    overdue   rows that should have left long ago
    obstacles excuses for an overdue row
    blocked   blocked and parked jobs that wait for nothing, or for what has come
    admission limits and unique keys
    ticks     missing ticks of schedules
    lists     delivered jobs compared with the Redis lists
    orphans   list entries without a job or delivery
    attended  queues with jobs but no worker
    report    counts and breaches

An audit changes nothing and delays only vacuum. It cannot find rows missing from all tables: rollbacks also leave gaps
in the ids.
"""

from __future__ import annotations

from collections.abc import Callable

from drain.audit import tables
from drain.audit.admission import AdmissionCheck
from drain.audit.attended import AttendedCheck
from drain.audit.blocked import BlockedCheck
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

OVERDUE_SECONDS = 60
# Longer than a deploy.
UNATTENDED_SECONDS = 300
# A delivery counts as lost after 15 s; redelivery takes up to 15 s more.
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
    """Read all tables once, then recheck suspects.

    Reading 100 million rows needs a longer `statement_timeout` than other commands.

    Args:
        connection: In autocommit mode, outside a transaction.
        redis: None skips lists and workers.
        overdue_seconds: Grace for a due row, and for a blocked job whose predecessor ended.
        patience_seconds: Time for suspicions to clear; 0 only suits an idle system.
        unattended_seconds: Grace for a queue without a worker.
        progress: Called with each step.

    Raises:
        psycopg.Error: The database failed. An unavailable Redis only skips checks (`Report.unchecked`).
    """
    counts, breaches = tables.check(connection, progress)
    live_checks: list[LiveCheck] = [
        OverdueCheck(connection, overdue_seconds),
        BlockedCheck(connection, overdue_seconds),
        AdmissionCheck(connection),
        TicksCheck(connection, overdue_seconds),
    ]
    if redis is not None:
        live_checks += [ListsCheck(connection, redis), AttendedCheck(connection, redis, unattended_seconds)]
    progress("looking for overdue and missing jobs")
    look_until_clear(live_checks, patience_seconds, progress)
    breaches += (breach for check in live_checks for breach in check.breaches())
    order = list(CHECKS)
    return Report(
        counts=counts,
        breaches=tuple(sorted(breaches, key=lambda breach: order.index(breach.check))),
        redis_asked=redis is not None,
        unchecked={name: why for check in live_checks for name, why in check.unchecked().items()},
    )
