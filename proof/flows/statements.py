"""The statements of a design: there are no constants yet that they model."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any, NamedTuple

from proof.atoms import Execute, ids
from proof.checker import Atom
from proof.postgres import (
    Rows,
    Seen,
    Statement,
    Writer,
    Xid,
)

Steps = Generator[Atom, Any, Any]
STAGED, INFLIGHT, FINISHED, DEAD = "staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs"
BLOCKED, EDGES, STATE, REQUESTS = "blocked_jobs", "job_edges", "drain_state", "requests"
# The mark as the design had it: below it no transaction is open. Correct, but a transaction elsewhere stops all flows.
XMIN = "count what ended below the oldest open transaction"
XMIN_ALONE = "count all again since the oldest open transaction"
PLACES = (STAGED, INFLIGHT, FINISHED, DEAD, BLOCKED)


class Job(NamedTuple):
    """Row of any table but `blocked_jobs`; `xid` of the finish or death, `deaths` for the invariants."""

    deaths: int = 0
    xid: Xid | None = None
    superseded_by: int | None = None


class Blocked(NamedTuple):
    """Row of `blocked_jobs`; `unmet` edges, written by the leader, and when the job is staged or retried."""

    unmet: int


class Edge(NamedTuple):
    """Row of `job_edges`, by (parent, child); `xid` of the transaction that made it new."""

    xid: Xid
    on_failure: str
    is_met: bool = False


def edge_id(parent: int, child: int) -> int:
    """Key of an edge."""
    return parent * 10 + child


def place_of(rows: Rows, job: int) -> str | None:
    """Return the table of a job."""
    return next((table for table in PLACES if (table, job) in rows), None)


class Flows:
    """The statements, at most one of them broken; a tick takes at most so many edges."""

    def __init__(self, broken: str = "", most: int = 9) -> None:
        self.broken = broken
        self.most = most

    def stage(self, child: int, parents: Mapping[int, str]) -> Execute:
        """Stage a job that waits for others; nothing if one of them is in no table of this statement's snapshot.

        One statement looks into all tables, since a job moves between them:

            INSERT INTO job_edges (parent_id, child_id, on_failure, edge_xid)
            SELECT given.id, %(child)s, given.on_failure, pg_current_xact_id() FROM given
            WHERE EXISTS (SELECT FROM staged_jobs ...) OR EXISTS (SELECT FROM blocked_jobs ...) OR ...
        """

        def insert(writer: Writer, row_id: int, row: Any) -> bool:
            known = [place_of(writer.snapshot, parent) for parent in parents]
            if self.broken == "a dead parent is unknown":
                known = [place if place != DEAD else None for place in known]
            if not all(known) and self.broken != "an unknown parent is accepted and counts as finished":
                writer.update(REQUESTS, row_id, "refused")
                return False
            writer.update(REQUESTS, row_id, "staged")
            writer.insert(BLOCKED, row_id, Blocked(len(parents)))
            for parent, on_failure in parents.items():
                writer.insert(EDGES, edge_id(parent, child), Edge(writer.xid, on_failure))
            return True

        return Execute(Statement("", REQUESTS, lambda at, row, lapsed: at == child and row == "new", insert))

    def find(self, table: str, jobs: Collection[int]) -> Execute:
        """Read which jobs are in a table."""
        return Execute(Statement("", table, ids(jobs), lambda w, at, row: at, reads=True))

    def refuse(self, child: int) -> Execute:
        """Refuse a job with an unknown parent."""
        return Execute(
            Statement("", REQUESTS, ids([child]), lambda w, at, row: w.update(REQUESTS, at, "refused"))
        )

    def look(self) -> Execute:
        """Find the edges that are met or failed, and remember this statement's snapshot.

        A large tick is done in parts of `most` edges; only the last part remembers its snapshot.

            WITH ended AS (
                SELECT id, superseded_by FROM finished_jobs WHERE finished_xid >= %(xmax)s
                UNION ALL SELECT id, superseded_by FROM finished_jobs WHERE finished_xid = ANY (%(xip)s)
                ...  -- and so for dead_jobs by died_xid
            ), pairs AS (
                SELECT job_edges.* FROM ended JOIN job_edges ON parent_id = ended.id WHERE NOT is_met
                UNION SELECT * FROM job_edges WHERE (edge_xid >= %(xmax)s OR edge_xid = ANY (%(xip)s)) AND NOT is_met
                    AND parent_id IN (finished_jobs, dead_jobs, or none of the five tables)
            ) ...
            UPDATE drain_state SET xmax = pg_snapshot_xmax(pg_current_snapshot()), xip = ...
        """

        def compare(writer: Writer, row_id: int, last: Seen) -> Any:
            now = writer.seen
            if self.broken in (XMIN, XMIN_ALONE, "a met edge is counted again by an older mark"):
                now = Seen(now.xmin)
            if self.broken == "the mark is the newest transaction":
                now = Seen(now.xmax)
            found = self._compare(writer.snapshot, last, now)
            if len(found) <= self.most or self.broken == "a part of a tick moves the mark":
                writer.update(STATE, 1, now)
            return found[: self.most]

        return Execute(Statement("", STATE, ids([1]), compare))

    def _compare(self, rows: Rows, last: Seen, now: Seen) -> Any:
        found = []
        for (table, at), edge in rows.items():
            parent, child = divmod(at, 10)
            if table != EDGES or (BLOCKED, child) not in rows:
                continue
            if edge.is_met and not self.broken.startswith("a met edge is counted again"):
                continue
            is_new = not last.sees(edge.xid) and self.broken != "new edges are not checked"
            place = place_of(rows, parent)
            row = rows[place, parent] if place else None
            is_up_to = self.broken != XMIN
            if place in (FINISHED, DEAD):
                assert row is not None
                is_recent = not last.sees(row.xid) and (is_up_to or now.sees(row.xid))
                if not is_new and not is_recent:
                    continue
                if (
                    place == FINISHED
                    and row.superseded_by
                    and self.broken != "a superseded parent is finished"
                ):
                    is_known = (EDGES, edge_id(row.superseded_by, child)) in rows
                    found.append((at, "met" if is_known else f"wait for {row.superseded_by}"))
                elif place == FINISHED or edge.on_failure == "run":
                    found.append((at, "met"))
                elif edge.on_failure == "cancel":
                    found.append((at, "failed"))
            elif place is None and is_new:
                is_accepted = self.broken == "an unknown parent is accepted and counts as finished"
                found.append((at, "met" if is_accepted else "failed"))
        return tuple(found)

    def unblock(self, found: tuple[tuple[int, str], ...]) -> Execute:
        """Count met edges of each child, move zeros to `staged_jobs`, and cancel; return the children found.

        A child that was cancelled or retried meanwhile is not found, and its edges stay as they are. A row cannot be
        updated and deleted in one statement, so the count is known before either:

            children AS (SELECT id, unmet FROM blocked_jobs WHERE id IN (SELECT child_id FROM pairs)
                ORDER BY id FOR UPDATE),
            sums AS (SELECT id, unmet - count(*) FILTER (WHERE is_ok) AS rest, bool_or(failed) AS failed ...),
            met AS (UPDATE job_edges SET is_met = true FROM pairs JOIN children ON children.id = pairs.child_id ...),
            lowered AS (UPDATE blocked_jobs SET unmet = rest FROM sums WHERE rest > 0 AND NOT failed),
            freed AS (DELETE FROM blocked_jobs USING sums WHERE rest = 0 OR failed RETURNING ...),
            released AS (INSERT INTO staged_jobs SELECT ... FROM freed WHERE NOT failed),
            buried AS (INSERT INTO dead_jobs SELECT ... FROM freed WHERE failed)
        """
        children = {at % 10 for at, _ in found}

        def count(writer: Writer, child: int, row: Blocked) -> int:
            verdicts = [verdict for at, verdict in found if at % 10 == child]
            left = row.unmet - verdicts.count("met")
            if "failed" in verdicts:
                writer.delete(BLOCKED, child)
                writer.insert(DEAD, child, Job(1, writer.xid))
            elif left <= 0:
                writer.delete(BLOCKED, child)
                writer.insert(STAGED, child, Job())
            else:
                writer.update(BLOCKED, child, Blocked(left))
            return child

        return Execute(Statement("", BLOCKED, ids(children), count))

    def mark_edges(self, found: tuple[tuple[int, str], ...], children: tuple[int, ...]) -> Execute:
        """Mark met edges of the children that were found; let others wait for the job that superseded their parent."""
        verdicts = dict(found)
        if self.broken != "edges of a child that is gone are met":
            verdicts = {at: verdict for at, verdict in found if at % 10 in children}

        def mark(writer: Writer, at: int, edge: Edge) -> None:
            verdict = verdicts[at]
            if verdict == "met":
                writer.update(EDGES, at, edge._replace(is_met=True))
            elif verdict.startswith("wait for "):
                writer.delete(EDGES, at)
                writer.insert(EDGES, edge_id(int(verdict[9:]), at % 10), edge._replace(xid=writer.xid))

        return Execute(Statement("", EDGES, ids(verdicts), mark))

    def remember(self) -> Execute:
        """Take the mark in a later statement, which its own transaction's id is not new to."""
        return Execute(
            Statement("", STATE, ids([1]), lambda writer, at, row: writer.update(STATE, 1, writer.seen))
        )

    def end(self, job: int, outcome: str) -> Execute:
        """Finish or bury a claimed job, as `drain_finish` does; deaths need an xid, too."""

        def end(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(INFLIGHT, row_id)
            table = FINISHED if outcome == "finish" else DEAD
            deaths = row.deaths + (table == DEAD)
            writer.insert(table, row_id, Job(deaths, writer.xid))

        return Execute(Statement("", INFLIGHT, ids([job]), end))

    def cancel(self, job: int) -> Execute:
        """Cancel a blocked job."""

        def bury(writer: Writer, row_id: int, row: Blocked) -> None:
            writer.delete(BLOCKED, row_id)
            writer.insert(DEAD, row_id, Job(1, writer.xid))

        return Execute(Statement("", BLOCKED, ids([job]), bury))

    def revive(self, job: int) -> Execute:
        """Retry a dead job: with unmet edges it is blocked again, and these are new again."""

        def revive(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(DEAD, row_id)
            newest = writer.database.see(writer.process)
            unmet = [
                at
                for (table, at), edge in newest.items()
                if table == EDGES and at % 10 == job and not edge.is_met
            ]
            if not unmet or self.broken == "a retried child is staged":
                writer.insert(STAGED, row_id, Job(row.deaths))
                return
            edges = [at for table, at in newest if table == EDGES and at % 10 == job]
            count = len(edges if self.broken == "a retried child counts all its edges" else unmet)
            writer.insert(BLOCKED, row_id, Blocked(count))
            for at in unmet:
                if self.broken != "edges of a retried child are not new":
                    writer.update(EDGES, at, newest[EDGES, at]._replace(xid=writer.xid))

        return Execute(Statement("", DEAD, ids([job]), revive))

    def supersede(self, job: int, by: int) -> Execute:
        """Finish a waiting job as superseded, by `drain.tables.unique.SUPERSEDE_STAGED`."""

        def finish(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(STAGED, row_id)
            writer.insert(FINISHED, row_id, Job(row.deaths, writer.xid, by))

        return Execute(Statement("drain.tables.unique.SUPERSEDE_STAGED", STAGED, ids([job]), finish))
