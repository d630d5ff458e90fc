"""Flows, a design: blocked jobs, edges to the jobs that they wait for, and the leader's tick that unblocks them.

The leader remembers the snapshot of its last tick. A tick looks at what that snapshot did not see: new edges, against
all finishes and deaths, and new finishes and deaths, against all edges. So it finds each pair in the first tick that
sees both, whichever commits first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Commit, Execute, RollBack, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    Database,
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
    """Row of `blocked_jobs`; `unmet` edges, written by the leader and by whoever stages or retries the job."""

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


class Lead(NamedTuple):
    """Wait for the advisory lock of the leader."""

    def step(self, world: World, process: str) -> list[Any]:
        """Take the lock."""
        database = world.database
        database.require_connection(process)
        if database.leader is not None:
            return []
        database.leader = process
        return [None]


class Tick(NamedTuple):
    """Wait until the last tick's snapshot misses something; ticks in vain are a bounded fault."""

    def step(self, world: World, process: str) -> list[Any]:
        """Wait."""
        rows = world.database.committed
        seen = rows[STATE, 1]
        news = (row.xid for (table, _), row in rows.items() if table in (EDGES, FINISHED, DEAD))
        if any(xid is not None and not seen.sees(xid) for xid in news):
            return [None]
        if not world.faults.get("vain"):
            return []
        world.spend("vain")
        return [None]


class Flows:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def stage(self, child: int, parents: Mapping[int, str]) -> Execute:
        """Stage a job that waits for others; nothing if one of them is in no table of this statement's snapshot.

        One statement looks into all tables, since a job moves between them:

            INSERT INTO job_edges (parent_id, child_id, on_failure, xid) SELECT …, pg_current_xact_id()
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
        """Remember this statement's snapshot, and find the edges that are met or failed.

        SELECT … FROM job_edges JOIN finished_jobs ON id = parent_id WHERE finished_xid >= last.xmax
            OR finished_xid = ANY (last.xip)   -- the finishes that the last snapshot did not see
        UNION … edges.xid >= last.xmax OR edges.xid = ANY (last.xip)   -- new edges, by all finishes and deaths
        """

        def compare(writer: Writer, row_id: int, last: Seen) -> Any:
            now = writer.seen
            if self.broken in (XMIN, XMIN_ALONE, "a met edge is counted again by an older mark"):
                now = Seen(now.xmin)
            if self.broken == "the mark is the newest transaction":
                now = Seen(now.xmax)
            writer.update(STATE, 1, now)
            return self._compare(writer.snapshot, last, now)

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
                is_news = not last.sees(row.xid) and (is_up_to or now.sees(row.xid))
                if not is_new and not is_news:
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

        A child that was cancelled or retried meanwhile is not found, and its edges stay as they are.
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


def application(flows: Flows, child: int, parents: Mapping[int, str]) -> Program:
    """Stage a job with its edges, in a transaction that may stay open for long."""

    def run() -> Steps:
        yield Begin(READ_COMMITTED)
        if flows.broken == "parents are looked up table by table":
            found: set[int] = set()
            for table in PLACES:
                found |= set((yield flows.find(table, parents)))
            if found != set(parents):
                yield flows.refuse(child)
        yield flows.stage(child, parents)
        yield Commit()

    return run


def predecessor(job: int) -> Program:
    """Stage a job whose id another transaction knows already, or roll back."""

    def stage(writer: Writer, row_id: int, row: Any) -> None:
        writer.insert(STAGED, job, Job())

    def run() -> Steps:
        yield Begin(READ_COMMITTED)
        yield Execute(Statement("", STATE, ids([1]), stage, reads=True))
        if (yield Act("decide", lambda world, process: [True, False])):
            yield Commit()
        else:
            yield RollBack()

    return run


def bystander() -> Steps:
    """Write something, and never end."""
    yield Begin(READ_COMMITTED)
    yield Execute(
        Statement("", STATE, ids([1]), lambda w, at, row: w.insert("elsewhere", 1, "row"), reads=True)
    )
    yield Act("stay open", lambda world, process: [])


def leader(flows: Flows) -> Program:
    """Tick: count what the last snapshot did not see, and remember this one, in one transaction.

    One statement with common table expressions can do it all; here its parts can be interrupted.
    """

    def run() -> Steps:
        yield Lead()
        while True:
            yield Tick()
            yield Begin(READ_COMMITTED)
            found = yield flows.look()
            (found,) = found
            if flows.broken == "the mark commits before the moves":
                yield Commit(is_durable=False)
                yield Begin(READ_COMMITTED)
            if found:
                children = yield flows.unblock(found)
                yield flows.mark_edges(found, children)
                if flows.broken == "the mark is taken after a write":
                    yield flows.remember()
            yield Commit(is_durable=False)

    return run


def ender(flows: Flows, job: int) -> Program:
    """Take a job whenever it is staged, and end it in a transaction; it may die."""

    def count_death(world: World, process: str) -> list[Any]:
        world.spend(f"death {job}")
        return [None]

    def take(world: World, process: str) -> list[Any]:
        database = world.database
        place = place_of(database.committed, job)
        if place == STAGED:
            move = lambda w, at, row: (w.delete(STAGED, at), w.insert(INFLIGHT, at, row), None)[-1]  # noqa: E731
            database.execute(process, Statement("", STAGED, ids([job]), move))
        return (
            ["finish", *["die"] * bool(world.faults.get(f"death {job}"))]
            if place in (STAGED, INFLIGHT)
            else []
        )

    def run() -> Steps:
        while True:
            outcome = yield Act(f"take job {job}", take)
            yield Begin(READ_COMMITTED)
            yield flows.end(job, outcome)
            if outcome == "die":
                yield Act("count the death", count_death)
            yield Commit(is_durable=False)

    return run


def user(name: str, table: str, job: int, execute: Callable[[int], Execute]) -> Program:
    """Cancel or retry a job once it is in the table, a bounded number of times."""

    def look(world: World, process: str) -> list[Any]:
        if not world.faults.get(name) or (table, job) not in world.database.committed:
            return []
        world.spend(name)
        return [None]

    def run() -> Steps:
        while True:
            yield Act(f"look for job {job}", look)
            yield execute(job)

    return run


def in_one_place(world: World) -> None:
    """Require each committed job in exactly one table."""
    rows = world.database.committed
    for (table, job), state in rows.items():
        if table == REQUESTS:
            places = [place for place in PLACES if (place, job) in rows]
            if len(places) != (state == "staged"):
                raise Violation(f"job {job} is in {' and '.join(places) or 'no table'}")


def no_edge_is_jumped(world: World) -> None:
    """Require that a released job's parents have finished, or died where it runs all the same."""
    rows = world.database.committed
    for (table, at), edge in rows.items():
        parent, child = divmod(at, 10)
        if table != EDGES or place_of(rows, child) not in (STAGED, INFLIGHT, FINISHED):
            continue
        place = place_of(rows, parent)
        row = rows[place, parent] if place and place != BLOCKED else Job()
        if (place == FINISHED and not row.superseded_by) or (edge.on_failure == "run" and row.deaths):
            continue
        raise Violation(f"job {child} is released before job {parent} has finished")


def counts_are_right(world: World) -> None:
    """Require that a blocked job's count is that of its unmet edges."""
    rows = world.database.committed
    for (table, child), row in rows.items():
        if table == BLOCKED:
            unmet = sum(
                kind == EDGES and at % 10 == child and not edge.is_met for (kind, at), edge in rows.items()
            )
            if row.unmet != unmet:
                raise Violation(f"job {child} counts {row.unmet} of its {unmet} unmet edges")


def no_parent_is_overlooked(world: World) -> None:
    """Require that no job is refused, where all parents exist from the start."""
    if "refused" in world.database.committed.values():
        raise Violation("a job is refused although its parents exist")


def is_settled(world: World) -> bool:
    """Return True if no job is blocked, except by a dead parent that a person must retry."""
    rows = world.database.committed
    for (table, at), row in rows.items():
        if (table == REQUESTS and row == "new") or table == INFLIGHT:
            return False
        if table == BLOCKED and not any(
            kind == EDGES and edge % 10 == at and each.on_failure == "hold" and (DEAD, edge // 10) in rows
            for (kind, edge), each in rows.items()
        ):
            return False
    return True


def _scenario(
    programs: Mapping[str, Program],
    jobs: Mapping[tuple[str, int], object],
    faults: Mapping[str, int],
    *invariants: Callable[[World], None],
) -> Scenario:
    rows = {(STATE, 1): Seen(Xid(1)), **jobs}
    keeps_history = "crash" in faults

    def start() -> World:
        database = Database(rows, {}, keeps_history=keeps_history, next_xid=Xid(2))
        database.flushed = (rows, {}) if keeps_history else None
        return World(database, faults=dict(faults))

    return Scenario(
        programs,
        start,
        (in_one_place, no_edge_is_jumped, counts_are_right, *invariants),
        is_settled,
        lambda world: iter(()),
        lambda atom: False,
        lambda name: name.startswith("leader"),
    )


def joining(
    broken: str, *, leaders: int = 1, parents: int = 1, stays_open: bool = False, **faults: int
) -> Scenario:
    """Stage a job after others while these finish."""
    flows = Flows(broken)
    child = parents + 1
    edges = dict.fromkeys(range(1, child), "cancel")
    programs = {"application": application(flows, child, edges)}
    programs |= {f"worker {job}": ender(flows, job) for job in edges}
    programs |= {f"leader {number}": leader(flows) for number in range(1, leaders + 1)}
    if stays_open:
        programs["elsewhere"] = bystander
    jobs = {(INFLIGHT, job): Job() for job in edges} | {(REQUESTS, child): "new"}
    return _scenario(programs, jobs, faults, no_parent_is_overlooked)


def failing(broken: str, edges: Mapping[int, str], **faults: int) -> Scenario:
    """Jobs 1 and 2 die, are cancelled and retried while others wait for them."""
    flows = Flows(broken)
    jobs: dict[tuple[str, int], object] = {}
    for at, on_failure in edges.items():
        child = at % 10
        jobs[EDGES, at] = Edge(Xid(1), on_failure)
        jobs[BLOCKED, child] = Blocked(sum(each % 10 == child for each in edges))
        jobs[REQUESTS, child] = "staged"
    parents = sorted({at // 10 for at in edges})
    jobs |= {(INFLIGHT, job): Job() for job in parents if (BLOCKED, job) not in jobs}
    programs = {f"worker {job}": ender(flows, job) for job in parents} | {"leader": leader(flows)}
    for name in faults:
        verb, _, job = name.partition(" ")
        if verb == "retry":
            programs[name] = user(name, DEAD, int(job), flows.revive)
        elif verb == "cancel":
            programs[name] = user(name, BLOCKED, int(job), flows.cancel)
    return _scenario(programs, jobs, faults)


def waiting_for_the_unknown(broken: str, **faults: int) -> Scenario:
    """Stage a job after one whose transaction is still open, and may roll back."""
    flows = Flows(broken)
    programs = {
        "application": application(flows, 2, {1: "cancel"}),
        "predecessor": predecessor(1),
        "worker": ender(flows, 1),
        "leader": leader(flows),
    }
    return _scenario(programs, {(REQUESTS, 2): "new"}, faults)


def looking_up(broken: str, **faults: int) -> Scenario:
    """Stage a job after one that dies and is retried."""
    flows = Flows(broken)
    programs = {
        "application": application(flows, 2, {1: "hold"}),
        "worker": ender(flows, 1),
        "retry 1": user("retry 1", DEAD, 1, flows.revive),
        "leader": leader(flows),
    }
    return _scenario(programs, {(INFLIGHT, 1): Job(), (REQUESTS, 2): "new"}, faults, no_parent_is_overlooked)


def superseding(broken: str, **faults: int) -> Scenario:
    """Job 3 waits for job 1, which gives way to job 2."""
    flows = Flows(broken)
    programs = {
        "application": application(flows, 3, {1: "cancel"}),
        "worker 1": ender(flows, 1),
        "worker 2": ender(flows, 2),
        "supersede 1": user("supersede 1", STAGED, 1, lambda job: flows.supersede(job, 2)),
        "leader": leader(flows),
    }
    jobs: dict[tuple[str, int], object] = {(STAGED, 1): Job(), (INFLIGHT, 2): Job(), (REQUESTS, 3): "new"}
    return _scenario(programs, jobs, faults, no_parent_is_overlooked)


_CHAIN = {12: "cancel", 23: "cancel"}
_ONCE: Any = {"death 1": 1, "retry 1": 1}
_RETRY_2: Any = {"retry 2": 1}
_CANCEL_3: Any = {"cancel 3": 1, "retry 3": 1}
_SUPERSEDE_1: Any = {"supersede 1": 1}
_SCENARIOS = {
    "an edge commits while its parent finishes": partial(joining, leaders=2, vain=2, kill=1),
    "two parents finish": partial(joining, parents=2, vain=1),
    "an answer is lost while jobs are unblocked": partial(joining, vain=1, answer=1),
    "PostgreSQL loses the last commits of a flow": partial(joining, vain=1, crash=1),
    "a transaction elsewhere never ends": partial(joining, stays_open=True, vain=1),
    "a chain is cancelled": partial(failing, edges=_CHAIN, vain=1, kill=1, **_ONCE),
    "on_failure=run": partial(failing, edges={13: "run", 23: "cancel"}, vain=1, **_ONCE),
    "on_failure=hold": partial(failing, edges={13: "hold", 23: "run"}, vain=1, **_ONCE),
    "parent and child are retried": partial(
        failing, edges={12: "cancel"}, vain=1, kill=1, **_ONCE, **_RETRY_2
    ),
    "a blocked job is cancelled and retried": partial(
        failing, edges={13: "cancel", 23: "cancel"}, **_CANCEL_3
    ),
    "the parent's transaction is open": partial(waiting_for_the_unknown, vain=1),
    "a parent dies and is retried while a job is staged after it": partial(looking_up, vain=1, **_ONCE),
    "a parent gives way to another job": partial(superseding, **_SUPERSEDE_1),
}
_GOAL, _JUMPED, _COUNT = "out of reach", "is released before", "unmet edges"
_REFUSED = "although its parents exist"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        (XMIN, "a transaction elsewhere never ends", _GOAL),
        ("the mark is the newest transaction", "an edge commits while its parent finishes", _GOAL),
        ("new edges are not checked", "an edge commits while its parent finishes", _GOAL),
        ("the mark commits before the moves", "an edge commits while its parent finishes", _GOAL),
        ("the mark is taken after a write", "a chain is cancelled", _GOAL),
        ("edges of a retried child are not new", "parent and child are retried", _GOAL),
        ("a met edge is counted again", "on_failure=run", _JUMPED),
        ("a met edge is counted again by an older mark", "two parents finish", _JUMPED),
        ("edges of a child that is gone are met", "a blocked job is cancelled and retried", _COUNT),
        ("a retried child counts all its edges", "a blocked job is cancelled and retried", _COUNT),
        ("a retried child is staged", "parent and child are retried", _JUMPED),
        ("a superseded parent is finished", "a parent gives way to another job", _JUMPED),
        ("an unknown parent is accepted and counts as finished", "the parent's transaction is open", _JUMPED),
        (
            "parents are looked up table by table",
            "a parent dies and is retried while a job is staged after it",
            _REFUSED,
        ),
        ("a dead parent is unknown", "a parent dies and is retried while a job is staged after it", _REFUSED),
    )
)
_HARMLESS_ALONE = (Mutant(XMIN_ALONE, "an edge commits while its parent finishes", ""),)

FLOWS = Module("flows", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
