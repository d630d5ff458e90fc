"""The programs: applications, the leader, workers, and people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Commit, Execute, RollBack, ids
from proof.checker import Program, World
from proof.flows.statements import (
    DEAD,
    EDGES,
    FINISHED,
    INFLIGHT,
    PLACES,
    STAGED,
    STATE,
    Flows,
    Job,
    Steps,
    place_of,
)
from proof.postgres import (
    READ_COMMITTED,
    Statement,
    Writer,
)


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
    """Wait until the last tick's snapshot misses something; useless ticks are a bounded fault."""

    def step(self, world: World, process: str) -> list[Any]:
        """Wait."""
        rows = world.database.committed
        seen = rows[STATE, 1]
        found = (row.xid for (table, _), row in rows.items() if table in (EDGES, FINISHED, DEAD))
        if any(xid is not None and not seen.sees(xid) for xid in found):
            return [None]
        if not world.faults.get("vain"):
            return []
        world.spend("vain")
        return [None]


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
    """Tick: count rows that the last snapshot did not see, and remember this one, in one transaction.

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
