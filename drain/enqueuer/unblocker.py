"""Unblocks jobs whose predecessors have ended.

A look finds the jobs and edges of transactions that the last look did not see. So an edge is compared when it is new,
unless its awaited job is unfinished, and when that job ends, whichever commits first. Findings stay in memory until
they are worked off; a new leader walks over all edges instead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

import psycopg

from drain import metrics
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer.comparison import Compared, compare
from drain.enqueuer.objectives import FlowObjectives
from drain.enqueuer.transaction_rate import TransactionRate
from drain.tables import edge_looks, edges
from drain.tables.edge_looks import Findings
from drain.tables.edges import PAGE_OF_ALL, PAGE_OF_AWAITED, PAGE_OF_CHILDREN, Meets, Page

log = logging.getLogger(__name__)

# Between looks while edges wait: doubled after each, once none has found anything for a while. A look takes 0.2 ms, or
# 5 ms for 100,000 edges met since a session took the snapshot that it still holds. With 2 ms and a tenth of the time,
# a link of a chain takes 7 ms instead of 5.
_SHORTEST_SECONDS = 0.001
_LONGEST_SECONDS = 0.016
_LONGEST_SHARE = 0.2
_EAGER_SECONDS = 0.02
# Part of a look that found jobs, for each: it is work, not waiting.
_FOUND_SECONDS = 0.000_02
_MOST_SOURCES = 8
# While none has waited for a while.
_IDLE_SECONDS = 0.1
_RECENT_SECONDS = 10.0
# After a failure, doubled each time.
_FAILED_SECONDS = 1.0
_LONGEST_FAILED_SECONDS = 30.0
# For children locked by other sessions.
_LEFT_SECONDS = 0.1
# Of a table in use, or two transactions that changed the same rows.
_CONFLICTS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
)
# Finds rows that were deleted by hand.
_WALK_SECONDS = 300.0
# Edges per transaction, and ids per page: the drain waits for 30 ms.
_MOST = 2000
# Shorter pages follow one another for this long, so that their jobs leave in one batch.
_SECONDS = 0.02


@dataclass
class _Source:
    """Edges to compare, page by page.

    Attributes:
        ids: None twice.
        first: Index of the first id left.
        finished: The awaited jobs are known to have finished.
        was_left: Of jobs that were left before.
        page: The last one; None at the end.
    """

    statement: str
    ids: Sequence[int] = ()
    first: int = 0
    finished: bool = False
    was_left: bool = False
    after: tuple[int, int] = (0, 0)
    page: Page | None = None

    def compare(self, connection: Connection, most: int) -> Compared:
        """Compare a page in the open transaction."""
        self.page = None
        meets: Meets = "all" if self.finished else "finished"
        if most < _MOST:
            # After a failure.
            meets = "none"
        ids = self.ids[self.first : self.first + _MOST]
        self.page = edges.read_page(connection, self.statement, ids, self.after, most, meets=meets)
        return compare(connection, self.page) if self.page else Compared()

    def pass_over(self, most: int) -> None:
        """Leave out what the page has; clear `statement` at the end."""
        if self.page is None or self.page.number < most:
            self.first, self.after = self.first + _MOST, (0, 0)
            if self.first >= len(self.ids):
                self.statement = ""
            return
        child, parent, awaited = self.page.last
        self.after = child, parent
        if self.ids:
            reached = awaited if self.statement is PAGE_OF_AWAITED else child
            self.first = self.ids.index(reached, self.first)


class Unblocker:
    """Looks and compares on the leader's connection, between batches."""

    # One thing: the edges left to compare.

    def __init__(
        self,
        connection: Connection,
        alive: Callable[[], None] = lambda: None,
        flow_objectives: FlowObjectives | None = None,
    ) -> None:
        self.transactions = TransactionRate()
        self._connection = connection
        self._alive = alive
        self._flow_objectives = flow_objectives or FlowObjectives()
        self._last: Findings | None = None
        self._sources: deque[_Source] = deque()
        self._left: set[int] = set()
        self._left_awaited: set[int] = set()
        self._left_until = -inf
        self._looked_at = self._retry_at = -inf
        self._walk_at = 0.0
        self._eager_until = self._recent_until = -inf
        self._pause = _SHORTEST_SECONDS
        self._failed_pause = _FAILED_SECONDS
        self._most = _MOST
        self._reported = ""
        self._look_at = inf

    @property
    def has_more(self) -> bool:
        """True while edges are left to compare."""
        return bool(self._sources)

    @property
    def waits(self) -> bool:
        """True if some edge waits, as far as is known."""
        return self._last is None or self._last.waits

    @property
    def next_look_at(self) -> float:
        """Time of `monotonic()` of the next work, even if no job arrives; infinity while no edge waits."""
        return -inf if self._sources else self._look_at

    def run_once(self) -> bool:
        """Look if due, and compare a page or several short ones; return whether jobs came free or more is left."""
        now = monotonic()
        if now < self._retry_at:
            return False
        changed = False
        try:
            self._look_when_due(now)
            while self._sources:
                changed |= self._compare_page()
                if monotonic() >= now + _SECONDS:
                    break
            return changed or self.has_more
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError) and not isinstance(error, _CONFLICTS):
                raise
            self._report(error)
        # Found again by a walk.
        self._sources.clear()
        self._last, self._walk_at, self._left_until = None, 0.0, -inf
        self._retry_at = self._look_at = monotonic() + self._failed_pause
        self._failed_pause = min(2 * self._failed_pause, _LONGEST_FAILED_SECONDS)
        return changed

    def run_all(self) -> None:
        """Compare all edges, until none is left to change."""
        changed = True
        while changed:
            changed = False
            self._sources = deque([_Source(PAGE_OF_ALL)])
            while self._sources:
                changed |= self._compare_page()
                self._alive()

    def _look_when_due(self, now: float) -> None:
        if any(source.finished for source in self._sources) or len(self._sources) > _MOST_SOURCES:
            # They would pile up.
            return
        pause = self._pause if self.waits or now < self._recent_until else _IDLE_SECONDS
        if now < self._looked_at + pause:
            # Jobs may have arrived, and edges with them.
            self._look_at = self._looked_at + pause
            return
        self._last = findings = edge_looks.look(self._connection, self._last)
        self.transactions.note(findings.snapshot.xmax)
        self._failed_pause = _FAILED_SECONDS
        now, took = monotonic(), monotonic() - now
        self._looked_at = now
        found = [
            _Source(PAGE_OF_AWAITED, _once(findings.finished), finished=True),
            _Source(PAGE_OF_AWAITED, _once(findings.ended)),
            _Source(PAGE_OF_CHILDREN, _once([*findings.children, *findings.died])),
        ]
        found = [source for source in found if source.ids]
        if now >= self._walk_at:
            found.append(_Source(PAGE_OF_ALL))
            self._walk_at = now + _WALK_SECONDS
        if (self._left or self._left_awaited) and now >= self._left_until:
            left = (PAGE_OF_CHILDREN, self._left), (PAGE_OF_AWAITED, self._left_awaited)
            found += [_Source(statement, _once(ids), was_left=True) for statement, ids in left if ids]
            self._left, self._left_awaited, self._left_until = set(), set(), inf
        self._sources += found
        if found:
            self._eager_until = now + _EAGER_SECONDS
        if findings.waits:
            self._recent_until = now + _RECENT_SECONDS
        pause = _SHORTEST_SECONDS if now < self._eager_until else min(2 * self._pause, _LONGEST_SECONDS)
        took -= _FOUND_SECONDS * sum(len(source.ids) for source in found)
        self._pause = max(pause, took / _LONGEST_SHARE)
        self._look_at = now + self._pause if findings.waits else inf

    def _compare_page(self) -> bool:
        source, most = self._sources[0], self._most
        compared = Compared()
        try:
            with postgres.transaction(self._connection, psycopg.IsolationLevel.READ_COMMITTED):
                compared = source.compare(self._connection, most)
        except psycopg.Error as error:
            is_conflict = isinstance(error, _CONFLICTS)
            if isinstance(error, psycopg.OperationalError) and not is_conflict:
                raise
            # Smaller pages find the edge that fails.
            self._most = max(1, most // 2)
            if most > 1:
                return False
            if not source.page:
                raise
            (edge,) = source.page.edges
            self._report(error, edge.child)
            if is_conflict:
                self._left.add(edge.child)
        else:
            self._most = min(2 * most, _MOST)
        source.pass_over(most)
        self._sources.rotate(-1)
        if not source.statement:
            self._sources.remove(source)
            if source.was_left:
                self._left_until = monotonic() + _LEFT_SECONDS
        if compared.cancelled:
            # Their own deaths, before a look finds them.
            self._sources.append(_Source(PAGE_OF_AWAITED, compared.cancelled))
        self._left |= compared.left
        self._left_awaited |= compared.awaited
        cancelled = len(compared.cancelled)
        metrics.UNBLOCKED.inc(compared.unblocked + cancelled + compared.superseded)
        metrics.DEAD.labels("cancelled").inc(cancelled)
        metrics.SUPERSEDED.inc(compared.superseded)
        self._flow_objectives.ended(self._connection, compared.ended)
        return compared.changed

    def _report(self, error: psycopg.Error, job_id: int | None = None) -> None:
        reason = error.diag.message_primary or str(error).partition("\n")[0]
        level = logging.INFO if isinstance(error, _CONFLICTS) else logging.WARNING
        if reason != self._reported:
            which = "jobs that wait for others stay" if job_id is None else f"job {job_id} stays"
            log.log(
                level, "%s blocked: %s", which, reason, extra={"event": "not_unblocked", "job_id": job_id}
            )
        self._reported = reason


def _once(ids: Collection[int]) -> Sequence[int]:
    # In order: neighbours wait for the same jobs, and a page looks each up once.
    return sorted(set(ids))
