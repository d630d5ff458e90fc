"""Scenarios of flows, the invariants that hold in each of their states, and the mutants that break them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from proof.checker import Program, Scenario, Violation, World
from proof.flows.programs import application, bystander, ender, leader, predecessor, user
from proof.flows.statements import (
    BLOCKED,
    DEAD,
    EDGES,
    FINISHED,
    INFLIGHT,
    PLACES,
    REQUESTS,
    STAGED,
    STATE,
    XMIN,
    XMIN_ALONE,
    Blocked,
    Edge,
    Flows,
    Job,
    place_of,
)
from proof.module import Module, Mutant
from proof.postgres import (
    Database,
    Seen,
    Xid,
)


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
    broken: str, *, leaders: int = 1, parents: int = 1, stays_open: bool = False, most: int = 9, **faults: int
) -> Scenario:
    """Stage a job after others while these finish."""
    flows = Flows(broken, most)
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
    "an edge commits while its parent finishes": partial(joining, leaders=2, vain=1, kill=1),
    "two parents finish": partial(joining, parents=2, vain=1),
    "a tick is done in parts": partial(joining, parents=2, most=1),
    "an answer is lost while jobs are unblocked": partial(joining, vain=1, answer=1),
    "PostgreSQL loses the last commits of a flow": partial(joining, vain=1, crash=1),
    "a transaction elsewhere never ends": partial(joining, stays_open=True, vain=1),
    "a chain is cancelled": partial(failing, edges=_CHAIN, vain=1, kill=1, **_ONCE),
    "on_failure=run": partial(failing, edges={13: "run", 23: "cancel"}, **_ONCE),
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
        ("a part of a tick moves the mark", "a tick is done in parts", _GOAL),
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
