"""The rows, and the statements of applications, workers and users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, NamedTuple

from proof.atoms import Execute, ids, nothing
from proof.checker import Atom
from proof.postgres import Rows, Statement, Writer, Xid

Commands = Generator[Atom, Any, Any]
STAGED, INFLIGHT, FINISHED, DEAD = "staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs"
PLACES = (STAGED, INFLIGHT, FINISHED, DEAD)
EDGES, REQUESTS = "job_edges", "requests"
# Row of `requests` that is always there.
ONE = 0
WAITING, MET, IDLE = "waiting", "met", "idle"
CANCEL, RUN, HOLD, ONLY = "cancel", "run", "hold", "only"


class Job(NamedTuple):
    """Row of any table of jobs.

    Attributes:
        xid: Transaction of the finish or death, or the one that inserted a blocked row.
        is_marker: The end of a flow, which the leader finishes itself.
        deaths, was_cancelled: For the invariants; cancelled because of a job that it waits for.
    """

    xid: Xid | None = None
    is_blocked: bool = False
    is_marker: bool = False
    superseded_by: int | None = None
    deaths: int = 0
    was_cancelled: bool = False


class Edge(NamedTuple):
    """Row of `job_edges`.

    Attributes:
        deaths, is_waived: For the invariants: earlier deaths of the awaited job, and met by a retry without it.
    """

    xid: Xid
    awaited: int
    on_failure: str
    state: str = WAITING
    deaths: int = 0
    is_waived: bool = False


def edge_id(parent: int, child: int) -> int:
    """Return the key of an edge."""
    return parent * 10 + child


def edges_of(rows: Rows, child: int | None = None) -> Iterator[tuple[int, Edge]]:
    """Yield all edges, or those of a child."""
    return ((at, row) for (table, at), row in rows.items() if table == EDGES and child in (None, at % 10))


def find(rows: Rows, job: int) -> tuple[str | None, Any]:
    """Return a job's table and row."""
    return next(((table, rows[table, job]) for table in PLACES if (table, job) in rows), (None, None))


def dead_member(rows: Rows, flow: int) -> int | None:
    """Return the edge of a dead member of a flow that has not ended."""
    if not is_blocked(rows, flow) or not rows[STAGED, flow].is_marker:
        return None
    held = (at for at, edge in edges_of(rows, flow) if (edge.state, edge.on_failure) == (WAITING, HOLD))
    return next((at for at in held if (DEAD, rows[EDGES, at].awaited) in rows), None)


def is_blocked(rows: Rows, job: int) -> bool:
    """Return True if the job waits for others."""
    return (STAGED, job) in rows and rows[STAGED, job].is_blocked


def earlier_deaths(rows: Rows, job: int) -> int:
    """Return how often a job had died before it came to where it is."""
    place, row = find(rows, job)
    return row.deaths - (place == DEAD) if row else 0


def insert(table: str, row_id: int, row: Callable[[Writer], Any]) -> Execute:
    """Insert a row."""
    once = ids([ONE])
    return Execute(
        Statement("", REQUESTS, once, lambda w, at, _: w.insert(table, row_id, row(w)), reads=True)
    )


class Flows:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def stage(self, child: int) -> Execute:
        """Insert a blocked job, unless that has committed already."""

        def insert(writer: Writer, row_id: int, row: Any) -> bool:
            writer.update(REQUESTS, row_id, "staged")
            writer.insert(STAGED, row_id, Job(writer.xid, is_blocked=True))
            return True

        return Execute(Statement("", REQUESTS, lambda at, row, lapsed: at == child and row == "new", insert))

    def after(self, child: int, parents: Mapping[int, str]) -> Execute:
        """Insert the edges, by `schema.sql: drain_after`; no answer if the statement's snapshot has not all parents."""

        def insert(writer: Writer, row_id: int, row: Any) -> bool | None:
            rows = writer.snapshot
            if not all(self._is_known(rows, parent) for parent in parents):
                return None
            for parent, on_failure in parents.items():
                edge = Edge(writer.xid, parent, on_failure, deaths=earlier_deaths(rows, parent))
                writer.insert(EDGES, edge_id(parent, child), edge)
            return True

        return Execute(Statement("", STAGED, ids([child]), insert))

    def lock_end(self, flow: int) -> Execute:
        """Lock the end of a flow that has not ended, by `schema.sql: drain_join`; return it.

        Others that join share the lock, but the leader waits for it.
        """
        where = lambda at, row, lapsed: at == flow and row.is_blocked  # noqa: E731
        is_unlocked = self.broken == "join without a lock"
        return Execute(Statement("", STAGED, where, lambda w, at, _: at, reads=is_unlocked))

    def join(self, flow: int, job: int) -> Execute:
        """Insert the edge of a new member."""
        return insert(EDGES, edge_id(job, flow), lambda writer: Edge(writer.xid, job, HOLD))

    def _is_known(self, rows: Rows, parent: int) -> bool:
        place, _ = find(rows, parent)
        if place == DEAD and self.broken == "a dead job is unknown":
            return False
        return place is not None or self.broken == "an unknown job is accepted"

    def give_up(self, child: int, end: str) -> Execute:
        """Note that a job is not staged."""
        return Execute(Statement("", REQUESTS, ids([child]), lambda w, at, row: w.update(REQUESTS, at, end)))

    def move(self, job: int) -> Execute:
        """Move a job in flight."""

        def move(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(STAGED, row_id)
            writer.insert(INFLIGHT, row_id, row)

        return Execute(Statement("", STAGED, ids([job]), move))

    def in_table(self, table: str, jobs: Collection[int]) -> Execute:
        """Read which jobs are in a table."""
        return Execute(Statement("", table, ids(jobs), lambda w, at, row: at, reads=True))

    def end(self, job: int, table: str) -> Execute:
        """Finish or bury a claimed job."""

        def end(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(INFLIGHT, row_id)
            writer.insert(table, row_id, Job(writer.xid, deaths=row.deaths + (table == DEAD)))

        return Execute(Statement("", INFLIGHT, ids([job]), end))

    def cancel_by_user(self, job: int) -> Execute:
        """Cancel a staged job, by `drain.tables.cancellations._CANCEL_STAGED`."""

        def bury(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(STAGED, row_id)
            writer.insert(DEAD, row_id, Job(writer.xid, deaths=row.deaths + 1))

        return Execute(Statement("", STAGED, ids([job]), bury))

    def touch(self, job: int) -> Execute:
        """Lock a staged job, such as to change it."""
        return Execute(Statement("", STAGED, ids([job]), nothing))

    def supersede(self, job: int, by: int) -> Execute:
        """Finish a staged job that gives way to one that is not blocked, by `drain.tables.unique.SUPERSEDE_STAGED`."""

        def finish(writer: Writer, row_id: int, row: Job) -> None:
            if self.broken == "give way to a blocked job" or not is_blocked(writer.snapshot, by):
                writer.delete(STAGED, row_id)
                writer.insert(FINISHED, row_id, Job(writer.xid, superseded_by=by, deaths=row.deaths))

        return Execute(Statement("drain.tables.unique.SUPERSEDE_STAGED", STAGED, ids([job]), finish))

    def remove_dead(self, job: int) -> Execute:
        """Delete a dead job, by `drain.tables.dead.DISCARD` or as part of `drain.tables.dead.REVIVE`."""

        def remove(writer: Writer, row_id: int, row: Job) -> int:
            writer.delete(DEAD, row_id)
            return row.deaths

        return Execute(Statement("", DEAD, ids([job]), remove))

    def wait_again(self, job: int) -> Execute:
        """Let the edges of a retried job wait again, unless they are met, or the awaited job is in no table."""

        def wait(writer: Writer, at: int, edge: Edge) -> bool | None:
            rows = writer.snapshot
            if find(rows, edge.awaited)[0] is None:
                writer.update(EDGES, at, edge._replace(state=MET, is_waived=True))
                return None
            xid = edge.xid if self.broken == "edges of a retried job are not new" else writer.xid
            deaths = earlier_deaths(rows, edge.awaited)
            writer.update(EDGES, at, edge._replace(xid=xid, state=WAITING, deaths=deaths))
            return True

        where = lambda at, row, lapsed: at % 10 == job and row.state != MET  # noqa: E731
        return Execute(Statement("", EDGES, where, wait))

    def stage_again(self, job: int, deaths: int, *, waits: bool) -> Execute:
        """Insert a retried job, as blocked if it waits."""

        def row(writer: Writer) -> Job:
            waits_ = waits and self.broken != "a retried job is staged at once"
            return Job(writer.xid if waits_ else None, waits_, deaths=deaths)

        return insert(STAGED, job, row)

    def renew(self, job: int) -> Execute:
        """Let the leader look at the edges that wait for a discarded job."""
        where = lambda at, row, lapsed: row.awaited == job and row.state == WAITING  # noqa: E731
        renew = lambda writer, at, row: writer.update(EDGES, at, row._replace(xid=writer.xid))  # noqa: E731
        return Execute(Statement("", EDGES, where, renew))
