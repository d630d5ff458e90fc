"""The leader: its statements, which are in `drain/tables/edges.py`, and their order, of `drain/enqueuer/comparison.py`.

Others' commits can come between a page's snapshot and its locks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Commit, Execute, RollBack, Select
from proof.checker import Program, Violation, World
from proof.flows.statements import (
    CANCEL,
    DEAD,
    EDGES,
    FINISHED,
    HOLD,
    IDLE,
    MET,
    ONLY,
    RUN,
    STAGED,
    WAITING,
    Commands,
    Edge,
    Job,
    dead_member,
    earlier_deaths,
    edges_of,
    find,
    is_blocked,
)
from proof.postgres import READ_COMMITTED, Rows, Seen, Statement, Writer, Xid

# The leader's memory, as a row: the snapshot of its last look.
MARK = ("the leader's memory", 1)
# A ruling is a new state, "cancel", "supersede", nothing, or this and another job's id.
AWAIT = "await "
SUPERSEDE = "supersede"
XMIN = "look only at what ended below the oldest open transaction"
XMIN_ALONE = "look again at all since the oldest open transaction"


class Lead(NamedTuple):
    """Wait for the advisory lock of the leader; a new leader remembers nothing. Returns True if it must walk."""

    keeps_memory: bool = False

    def step(self, world: World, process: str) -> list[Any]:
        """Take the lock."""
        database = world.database
        database.require_connection(process)
        if database.leader is not None:
            return []
        database.leader = process
        if self.keeps_memory and MARK in database.committed:
            return [False]
        database.committed = {key: row for key, row in database.committed.items() if key != MARK}
        return [True]


def rule(rows: Rows, edge: Edge, broken: str = "") -> str:
    """Return what follows from the awaited job's place: a new state, `cancel`, another job to wait for, or nothing."""
    place, row = find(rows, edge.awaited)
    if place == FINISHED:
        if row.superseded_by and broken != "a superseded job has finished":
            return f"{AWAIT}{row.superseded_by}"
        return SUPERSEDE if edge.on_failure == ONLY and broken != "a finish is a death" else MET
    if place == DEAD and edge.on_failure == HOLD:
        return MET if broken == "a dead job holds no one" else ""
    if place not in (DEAD, None):
        return ""
    runs = edge.on_failure in (RUN, ONLY) or (place is None and broken == "a discarded job has finished")
    return MET if runs else CANCEL


class Look:
    """`drain.tables.edge_looks.LOOK`: find what the last snapshot did not see, and remember this one.

    If no edge waited, `drain.tables.edge_looks.LOOK_FOR_EDGES`, since no end matters then.

    Looks that find nothing are a bounded fault.
    """

    def __init__(self, broken: str, *, is_first: bool, is_due: bool) -> None:
        self.broken = broken
        self.is_first = is_first
        self.is_due = is_due

    def __repr__(self) -> str:
        return "LOOK"

    def step(self, world: World, process: str) -> list[Any]:
        """Look, if there is something to find."""
        database = world.database
        database.require_connection(process)
        rows, now = database.committed, database.seen_by(process)
        assert now is not None
        if self.broken in (XMIN, XMIN_ALONE):
            now = Seen(now.xmin)
        found = () if self.is_first else tuple(sorted(self._unseen(rows, rows[MARK], now)))
        if not (found or self.is_first or self.is_due):
            nothing_is_left(rows)
            if not world.faults.get("vain"):
                return []
            world.spend("vain")
        if self.broken != "remember a later snapshot" or self.is_first:
            database.committed = {**rows, MARK: now}
        return [found]

    def _unseen(self, rows: Rows, last: Seen, now: Seen) -> Iterator[int]:
        def is_unseen(xid: Xid | None) -> bool:
            if xid is None or (self.broken == XMIN and not now.sees(xid)):
                return False
            if self.broken == "forget the transactions that were open":
                return xid >= last.xmax
            return not last.sees(xid)

        for at, edge in edges_of(rows):
            place, awaited = find(rows, edge.awaited)
            child = rows.get((DEAD, at % 10))
            if edge.state == WAITING and (
                (
                    is_unseen(edge.xid)
                    and self.broken != "look at no new edges"
                    and (rule(rows, edge) or not is_blocked(rows, at % 10))
                )
                or (place in (FINISHED, DEAD) and is_unseen(awaited.xid))
                or (child and is_unseen(child.xid) and self.broken != "look at no dead children")
            ):
                yield at


def nothing_is_left(rows: Rows) -> None:
    """Require, when the leader has nothing to do, that every waiting edge must wait."""
    for at, edge in edges_of(rows):
        place, _ = find(rows, at % 10)
        if edge.state != WAITING or place is None:
            continue
        if not is_blocked(rows, at % 10):
            raise Violation(f"an edge waits, but job {at % 10} is not blocked")
        if rule(rows, edge) or (edge.on_failure == ONLY and dead_member(rows, edge.awaited)):
            raise Violation(f"job {at % 10} is stuck, although job {edge.awaited} has ended")


class Unblocker:
    """The statements, at most one of them broken; a page has at most `most` edges, and may fail."""

    def __init__(self, broken: str = "", most: int = 9, *, may_fail: bool = False) -> None:
        self.broken = broken
        self.most = most
        self.may_fail = may_fail

    def look(self, *, is_first: bool = False, is_due: bool = False) -> Look:
        """Find what ended since the last look."""
        return Look(self.broken, is_first=is_first, is_due=is_due)

    def next_page(self, last: int) -> Select:
        """Read the next waiting edges, by `drain.tables.edges.PAGE_OF_ALL`, for the walk of a new leader."""

        def choose(rows: Rows) -> tuple[int, ...]:
            waiting = sorted(at for at, edge in edges_of(rows) if at > last and edge.state == WAITING)
            return tuple(waiting[: self.most])

        return Select("next page", choose)

    def judge(self, page: Collection[int]) -> Act:
        """Judge the page's waiting edges, and keep what the snapshot has of them.

        The code reads the edges by `drain.tables.edges.PAGE_OF_AWAITED` or `drain.tables.edges.PAGE_OF_CHILDREN`. The
        same statement locks the children of finished jobs, and meets their edges. Then the code reads the other ends by
        `drain.tables.edges.OUTCOMES`; locked rows have not changed since the first of these snapshots. Then it reads
        the edges to flows with a dead member, by `drain.tables.edges.ALARMED`.

        Returns the rulings, and the edges of dead members by those that they alarm.
        """

        def judge(world: World, process: str) -> list[Any]:
            rows = world.database.read(process)
            alarmed = {} if self.broken == "hear no death in a flow" else dict(_alarmed(rows, page))
            edges = [*page, *(at for at in alarmed if at not in page)]
            children = {at % 10 for at in edges}
            world.database.transactions[process].snapshot = {
                (table, at): row
                for (table, at), row in rows.items()
                if (table == EDGES and at in edges) or (table == STAGED and at in children)
            }
            rulings = []
            for at in edges:
                edge = rows.get((EDGES, at))
                if edge and edge.state == WAITING:
                    if is_blocked(rows, at % 10):
                        rulings.append((at, MET if at in alarmed else rule(rows, edge, self.broken)))
                    elif self.broken != "edges of other jobs stay as they are":
                        rulings.append((at, IDLE))
            return [(tuple(rulings), tuple(alarmed.items()))]

        return Act("snapshot of a page", judge)

    def lock(self, children: Collection[int]) -> Execute:
        """Lock the blocked jobs that the snapshot has; return them. Locked ones are left out."""

        def lock(writer: Writer, child: int, row: Job) -> int | None:
            is_current = _snapshot(writer).get((STAGED, child)) == row
            return child if is_current or self.broken == "lock jobs that were blocked again" else None

        where = lambda at, row, lapsed: at in children and row.is_blocked  # noqa: E731
        is_unlocked = self.broken == "lock no jobs"
        return Execute(
            Statement(
                "drain.tables.edges.LOCK_CHILDREN",
                STAGED,
                where,
                lock,
                reads=is_unlocked,
                skips_locked=not is_unlocked,
            )
        )

    def mark(self, rulings: Mapping[int, str]) -> Execute:
        """Update edges, by `drain.tables.edges.MEET`, `drain.tables.edges.FOLLOW` and `drain.tables.edges.IDLE`.

        An edge that has changed since the snapshot does not become idle.
        """

        def mark(writer: Writer, at: int, edge: Edge) -> None:
            if rulings[at] == MET:
                writer.update(EDGES, at, edge._replace(state=MET))
            elif rulings[at] == IDLE:
                is_current = _snapshot(writer)[EDGES, at].xid == edge.xid
                if is_current or self.broken == "edges become idle although they changed":
                    writer.update(EDGES, at, edge._replace(state=IDLE))
            else:
                awaited = int(rulings[at].removeprefix(AWAIT))
                xid = edge.xid if self.broken == "an edge to another job is not new" else writer.xid
                deaths = earlier_deaths(writer.snapshot, awaited)
                writer.update(EDGES, at, edge._replace(xid=xid, awaited=awaited, deaths=deaths))

        where = lambda at, row, lapsed: at in rulings and row.state == WAITING  # noqa: E731
        return Execute(Statement("change edges", EDGES, where, mark))

    def unblock(self, children: Collection[int]) -> Execute:
        """Unblock jobs without a waiting edge, and finish the ends of flows."""

        def unblock(writer: Writer, child: int, row: Job) -> None:
            states = [edge.state for _, edge in edges_of(writer.snapshot, child)]
            if WAITING in states and self.broken != "unblock at the first met edge":
                return
            if row.is_marker:
                writer.delete(STAGED, child)
                writer.insert(FINISHED, child, Job(writer.xid, deaths=row.deaths))
            else:
                writer.update(STAGED, child, row._replace(xid=None, is_blocked=False))

        where = lambda at, row, lapsed: at in children and row.is_blocked  # noqa: E731
        return Execute(Statement("drain.tables.staged.UNBLOCK", STAGED, where, unblock))

    def cancel(self, children: Collection[int]) -> Execute:
        """Move blocked jobs to `dead_jobs`."""

        def bury(writer: Writer, child: int, row: Job) -> None:
            writer.delete(STAGED, child)
            writer.insert(DEAD, child, Job(writer.xid, deaths=row.deaths + 1, was_cancelled=True))

        where = lambda at, row, lapsed: at in children and row.is_blocked  # noqa: E731
        return Execute(Statement("drain.tables.cancellations.CANCEL_BLOCKED", STAGED, where, bury))

    def supersede(self, stands: Mapping[int, int]) -> Execute:
        """Move blocked jobs to `finished_jobs`, each superseded by the job that finished."""

        def finish(writer: Writer, child: int, row: Job) -> None:
            writer.delete(STAGED, child)
            writer.insert(FINISHED, child, Job(writer.xid, superseded_by=stands[child], deaths=row.deaths))

        where = lambda at, row, lapsed: at in stands and row.is_blocked  # noqa: E731
        return Execute(Statement("drain.tables.unique.SUPERSEDE_STAGED", STAGED, where, finish))

    def idle(self, children: Collection[int]) -> Execute:
        """Let no edge of a cancelled or superseded job wait."""
        where = lambda at, row, lapsed: at % 10 in children and row.state == WAITING  # noqa: E731
        idle = lambda writer, at, row: writer.update(EDGES, at, row._replace(state=IDLE))  # noqa: E731
        return Execute(Statement("drain.tables.edges.IDLE", EDGES, where, idle))


def _alarmed(rows: Rows, page: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the edges to flows with a dead member of the page, and that one's edge."""
    for cause in page:
        edge = rows.get((EDGES, cause))
        if not edge or (edge.state, edge.on_failure) != (WAITING, HOLD) or (DEAD, edge.awaited) not in rows:
            continue
        flow = rows.get((STAGED, cause % 10))
        for at, other in edges_of(rows) if flow and flow.is_marker else ():
            if (other.awaited, other.state, other.on_failure) == (cause % 10, WAITING, ONLY):
                yield at, cause


def _snapshot(writer: Writer) -> Rows:
    """Return the page's rows as its snapshot has them."""
    snapshot = writer.database.transactions[writer.process].snapshot
    assert snapshot is not None
    return snapshot


def leader(statements: Unblocker) -> Program:
    """Look, walk over all waiting edges, then look and settle."""
    broken = statements.broken
    walks_first = broken == "walk before the first look"

    def run() -> Commands:
        left: Sequence[int] = ()
        if (yield Lead(keeps_memory=broken == "a new leader keeps the last mark")):
            if walks_first:
                left = yield from walk()
            yield statements.look(is_first=True)
            if not walks_first:
                left = yield from walk()
        while True:
            found = yield statements.look(is_due=bool(left))
            if broken == "remember a later snapshot":
                yield statements.look(is_first=True)
            edges, left = sorted({*found, *left}), ()
            for at in range(0, len(edges), statements.most):
                left += yield from _settle(statements, edges[at : at + statements.most])

    def walk() -> Commands:
        left, last = (), 0
        while page := (yield statements.next_page(last)):
            left += yield from _settle(statements, page)
            last = page[-1]
        return left

    return run


def _settle(statements: Unblocker, page: Sequence[int]) -> Commands:
    """Settle a page in one transaction; return the edges to try again: those of locked jobs, or all if it fails."""
    yield Begin(READ_COMMITTED)
    judged, alarmed = yield statements.judge(page)
    rulings, causes = dict(judged), dict(alarmed)
    children = {at % 10 for at, ruling in rulings.items() if ruling != IDLE}
    locked = (yield statements.lock(children)) if children else ()
    held = {at: ruling for at, ruling in rulings.items() if ruling == IDLE or at % 10 in locked}
    changes = {at: ruling for at, ruling in held.items() if ruling not in ("", CANCEL, SUPERSEDE)}
    if changes:
        yield statements.mark(changes)
    if statements.broken == "unblock in another transaction":
        yield Commit(is_durable=False)
        yield Begin(READ_COMMITTED)
    doomed = {at % 10 for at, ruling in held.items() if ruling == CANCEL}
    stands = {
        at % 10: at // 10 for at, ruling in held.items() if ruling == SUPERSEDE and at % 10 not in doomed
    }
    if freed := {at % 10 for at, ruling in changes.items() if ruling == MET} - stands.keys():
        yield statements.unblock(freed)
    if doomed:
        yield statements.cancel(doomed)
    if stands:
        yield statements.supersede(stands)
    if (doomed or stands) and statements.broken != "edges of a cancelled job wait on":
        yield statements.idle({*doomed, *stands})
    if statements.may_fail and (yield Act("execute", _may_fail)):
        yield Act("fail", _fail)
        yield RollBack()
        return () if statements.broken == "a failed page is forgotten" else tuple(rulings)
    yield Commit(is_durable=False)
    if statements.broken == "locked jobs are forgotten":
        return ()
    if statements.broken == "look at a locked callback alone":
        causes = {}
    return tuple(causes.get(at, at) for at in rulings if at not in held)


def _may_fail(world: World, process: str) -> list[Any]:
    return [False, *[True] * bool(world.faults.get("error"))]


def _fail(world: World, process: str) -> list[Any]:
    world.spend("error")
    return [None]
