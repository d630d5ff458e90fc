"""The programs: applications, the leader, workers, and users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proof.atoms import Act, Begin, Commit, RollBack
from proof.checker import Program, World
from proof.flows.statements import (
    DEAD,
    FINISHED,
    INFLIGHT,
    PLACES,
    STAGED,
    Commands,
    Flows,
    Job,
    find,
    insert,
)
from proof.postgres import READ_COMMITTED


def application(flows: Flows, child: int, parents: Mapping[int, str], *, decides: bool = False) -> Program:
    """Stage a job after others, in a transaction that may stay open for long; it may decide to roll back."""

    def run() -> Commands:
        yield Begin(READ_COMMITTED)
        if not (yield flows.stage(child)):
            yield RollBack()
            return
        end = "refused"
        if (yield from add_edges()):
            end = (
                (yield Act("decide", lambda world, process: ["staged", "withdrawn"])) if decides else "staged"
            )
        if end == "staged":
            yield Commit()
        else:
            yield RollBack()
            yield flows.give_up(child, end)

    def add_edges() -> Commands:
        if flows.broken == "look for jobs table by table":
            found: set[int] = set()
            for table in PLACES:
                found |= set((yield flows.in_table(table, parents)))
            if found != set(parents):
                return False
        return any((yield flows.after(child, parents)))

    return run


def joiner(flows: Flows, flow: int, job: int) -> Program:
    """Stage a job that joins a flow, unless that has ended."""

    def run() -> Commands:
        yield Begin(READ_COMMITTED)
        if not (yield flows.lock_end(flow)) and flows.broken != "join a flow that has ended":
            yield RollBack()
            yield flows.give_up(job, "too late")
            return
        yield insert(STAGED, job, lambda writer: Job())
        yield flows.join(flow, job)
        yield flows.give_up(job, "joined")
        yield Commit()

    return run


def predecessor(job: int) -> Program:
    """Stage a job whose id another transaction knows already."""

    def run() -> Commands:
        yield Begin(READ_COMMITTED)
        yield insert(STAGED, job, lambda writer: Job())
        yield Commit()

    return run


def bystander() -> Commands:
    """Write something, and never end."""
    yield Begin(READ_COMMITTED)
    yield insert("elsewhere", 1, lambda writer: "row")
    yield Act("stay open", lambda world, process: [])


def ender(flows: Flows, job: int) -> Program:
    """Take a job whenever it is due, and end it in a transaction; it may die."""

    def take(world: World, process: str) -> list[Any]:
        database = world.database
        place, row = find(database.committed, job)
        if place not in (STAGED, INFLIGHT) or row.is_blocked:
            return []
        if place == STAGED:
            database.execute(process, flows.move(job).statement)
        return [FINISHED, *[DEAD] * bool(world.faults.get(f"death {job}"))]

    def count_death(world: World, process: str) -> list[Any]:
        world.spend(f"death {job}")
        return [None]

    def run() -> Commands:
        while True:
            table = yield Act(f"take job {job}", take)
            yield Begin(READ_COMMITTED)
            yield flows.end(job, table)
            if table == DEAD:
                yield Act("count the death", count_death)
            yield Commit()

    return run


def user(flows: Flows, fault: str) -> Program:  # noqa: C901
    """Retry, discard, cancel, touch or supersede a job in a transaction, a bounded number of times."""
    verb, _, numbers = fault.partition(" ")
    job, *others = map(int, numbers.split())

    def look(world: World, process: str) -> list[Any]:
        place, _ = find(world.database.committed, job)
        is_here = place == (DEAD if verb in ("retry", "discard") else STAGED)
        if not is_here or not world.faults.get(fault):
            return []
        world.spend(fault)
        return [None]

    def retry() -> Commands:
        for deaths in (yield flows.remove_dead(job)):
            waits = any((yield flows.wait_again(job)))
            yield flows.stage_again(job, deaths, waits=waits)

    def discard() -> Commands:
        if (yield flows.remove_dead(job)) and flows.broken != "a discard changes no edges":
            yield flows.renew(job)

    def run() -> Commands:
        while True:
            yield Act(f"look for job {job}", look)
            yield Begin(READ_COMMITTED)
            if verb == "retry":
                yield from retry()
            elif verb == "discard":
                yield from discard()
            elif verb == "cancel":
                yield flows.cancel_by_user(job)
            elif verb == "supersede":
                yield flows.supersede(job, *others)
            else:
                yield flows.touch(job)
            yield RollBack() if verb == "touch" else Commit()

    return run
