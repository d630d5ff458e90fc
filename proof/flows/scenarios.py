"""Scenarios of flows, the invariants that hold in each of their states, and the mutants that break them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from proof.checker import Program, Scenario, Violation, World
from proof.flows.leader import XMIN, XMIN_ALONE, Unblocker, leader
from proof.flows.programs import application, bystander, ender, joiner, predecessor, user
from proof.flows.statements import (
    CANCEL,
    DEAD,
    EDGES,
    FINISHED,
    HOLD,
    INFLIGHT,
    MET,
    ONE,
    ONLY,
    PLACES,
    REQUESTS,
    RUN,
    STAGED,
    WAITING,
    Edge,
    Flows,
    Job,
    edges_of,
    find,
    is_blocked,
)
from proof.module import Module, Mutant
from proof.postgres import Database, Rows, Xid


def in_one_place(world: World) -> None:
    """Require that no job is in two tables."""
    rows = world.database.committed
    jobs = [job for table, job in rows if table in PLACES]
    if len(jobs) != len(set(jobs)):
        raise Violation("a job is in two tables")


def has_failed(rows: Rows, edge: Edge) -> bool:
    """Return True if the awaited job has died since the edge waits, or has been discarded."""
    _, row = find(rows, edge.awaited)
    return row is None or row.deaths > edge.deaths


def _has_alarmed(rows: Rows, edge: Edge) -> bool:
    """Return True if the awaited job, or a member of the awaited flow, has failed."""
    members = [other for _, other in edges_of(rows, edge.awaited) if other.on_failure == HOLD]
    return any(has_failed(rows, each) for each in (edge, *members))


def met_in_time(world: World) -> None:
    """Require that an edge is met by a finish, or with `run` by a death, and that a released job waits for none."""
    rows = world.database.committed
    for at, edge in edges_of(rows):
        place, awaited = find(rows, edge.awaited)
        is_finished = place == FINISHED and not awaited.superseded_by
        may_run = edge.is_waived or (edge.on_failure == RUN and has_failed(rows, edge))
        if edge.on_failure == ONLY:
            is_finished, may_run = False, edge.is_waived or _has_alarmed(rows, edge)
        if edge.state == MET and not (is_finished or may_run):
            raise Violation(f"job {at % 10} waits no more for job {edge.awaited}, which has not finished")
        place, child = find(rows, at % 10)
        is_unneeded = place == FINISHED and child.superseded_by
        if is_unneeded and edge.on_failure == ONLY and find(rows, edge.awaited)[0] != FINISHED:
            raise Violation(f"job {at % 10} gave way to job {edge.awaited}, which has not finished")
        is_released = place in (STAGED, INFLIGHT, FINISHED) and not child.is_blocked and not is_unneeded
        if edge.state != MET and is_released:
            raise Violation(f"job {at % 10} is released, although it waits for job {edge.awaited}")


def cancelled_with_reason(world: World) -> None:
    """Require that a job is cancelled only if one that it waits for has died or been discarded."""
    rows = world.database.committed
    for (table, job), row in rows.items():
        if table == DEAD and row.was_cancelled:
            edges = [edge for _, edge in edges_of(rows, job) if has_failed(rows, edge)]
            if not any(
                edge.on_failure == CANCEL or (edge.on_failure == HOLD and find(rows, edge.awaited)[0] is None)
                for edge in edges
            ):
                raise Violation(f"job {job} is cancelled without a reason")


def blocked_by_an_edge(world: World) -> None:
    """Require that a blocked job has a waiting edge, and no idle one."""
    rows = world.database.committed
    for (table, job), row in rows.items():
        if table == STAGED and row.is_blocked:
            states = {edge.state for _, edge in edges_of(rows, job)}
            if WAITING not in states or not states <= {WAITING, MET}:
                raise Violation(f"job {job} is blocked, but none of its edges waits")


def no_parent_is_overlooked(world: World) -> None:
    """Require that no job is refused, where all that it waits for exist from the start."""
    if "refused" in world.database.committed.values():
        raise Violation("a job is refused although those that it waits for exist")


def is_settled(world: World) -> bool:
    """Return True if no job is blocked, except by a dead one that a user must retry."""
    rows = world.database.committed
    return not any(
        (table == REQUESTS and row == "new")
        or table == INFLIGHT
        or (table == STAGED and row.is_blocked and not _is_held(rows, at))
        for (table, at), row in rows.items()
    )


def _is_held(rows: Rows, child: int) -> bool:
    return any(
        edge.on_failure in (HOLD, ONLY)
        and (
            (DEAD, edge.awaited) in rows or (is_blocked(rows, edge.awaited) and _is_held(rows, edge.awaited))
        )
        for _, edge in edges_of(rows, child)
    )


def flowing(
    broken: str,
    *,
    runs: Mapping[int, str] = {},
    waits: Mapping[int, str] = {},
    stages: Mapping[int, str] = {},
    flow: int = 0,
    joins: int = 0,
    decides: bool = False,
    most: int = 9,
    elsewhere: str = "",
    users: Mapping[str, int] = {},
    **faults: int,
) -> Scenario:
    """Let jobs wait for others while these end.

    Args:
        runs: Where jobs that wait for none are at first.
        waits: Existing edges, and what follows from a death.
        stages: New edges of one job.
        flow, joins: The job that ends a flow, and one that joins it.
        elsewhere: Another transaction.
        users: What users may do, and how often.
    """
    flows = Flows(broken)
    rows: dict[tuple[str, int], Any] = {(REQUESTS, ONE): ""}
    rows |= {(place, job): Job(Xid(1), deaths=1) if place == DEAD else Job() for job, place in runs.items()}
    rows |= {(STAGED, at % 10): Job(Xid(1), is_blocked=True) for at in waits}
    if flow:
        rows[STAGED, flow] = rows[STAGED, flow]._replace(is_marker=True)
    rows |= {(EDGES, at): Edge(Xid(1), at // 10, on_failure) for at, on_failure in waits.items()}
    programs: dict[str, Program] = {}
    children = {at % 10 for at in stages}
    for child in children:
        rows[REQUESTS, child] = "new"
        parents = {at // 10: on_failure for at, on_failure in stages.items()}
        programs["application"] = application(flows, child, parents, decides=decides)
    if joins:
        rows[REQUESTS, joins] = "new"
        programs["application"] = joiner(flows, flow, joins)
    if elsewhere == "a predecessor":
        programs["predecessor"] = predecessor(1)
    elif elsewhere:
        programs["elsewhere"] = bystander
    awaited = {at // 10 for at in (*waits, *stages)} | set(runs) | ({joins} - {0})
    programs |= {f"worker {job}": ender(flows, job) for job in sorted(awaited)}
    programs |= {name: user(flows, name) for name in users}
    programs["leader"] = leader(Unblocker(broken, most, may_fail="error" in faults))
    keeps_history = "crash" in faults

    def start() -> World:
        database = Database(rows, {}, keeps_history=keeps_history, next_xid=Xid(2))
        database.flushed = (rows, {}) if keeps_history else None
        return World(database, faults={**faults, **users})

    invariants = [in_one_place, met_in_time, cancelled_with_reason, blocked_by_an_edge]
    if elsewhere != "a predecessor" and not any(name.startswith("discard") for name in users):
        invariants.append(no_parent_is_overlooked)
    return Scenario(
        programs,
        start,
        tuple(invariants),
        is_settled,
        lambda world: iter(()),
        lambda atom: False,
        lambda name: name == "leader",
    )


_FIRST: Any = {"runs": {1: INFLIGHT}}
_BOTH: Any = {"runs": {1: INFLIGHT, 2: INFLIGHT}}
_NEW: Any = {**_FIRST, "stages": {12: CANCEL}}
_DIES: Any = {**_FIRST, "death 1": 1}
_STAGED, _TWO, _PAGES = "a job is staged while another finishes", "a job waits for two", "pages of one edge"
_OPEN, _UNKNOWN = "a transaction elsewhere never ends", "the other job is not committed"
_CHAIN, _RUN, _HOLD = "a chain is cancelled", "on_failure=run", "on_failure=hold"
_DISCARD, _DISCARD_HELD = "a dead job is discarded", "a dead job that holds another is discarded"
_RETRY, _AGAIN = "both jobs are retried", "a blocked job is cancelled and retried"
_LOOK_UP, _SUPERSEDE, _TOUCH = "a job dies as another is staged", "a job gives way", "a blocked job is locked"
_FAIL = "a page fails"
_JOIN, _MEMBER = "a job joins a flow that ends", "a member of a flow dies"
_BY, _CALLED = "a job stands by", "a callback of deaths is locked"
# Job 1 ends the flow of job 2; job 3 joins, and 4 is the callback.
_FLOW: Any = {"runs": {2: INFLIGHT}, "flow": 1}
_DEATH: Any = {**_FLOW, "waits": {21: HOLD, 14: ONLY}, "death 2": 1}
_CYCLE, _GOAL = "a job would give way to one that waits for it", "out of reach"
_SCENARIOS = {
    _STAGED: partial(flowing, **_NEW, decides=True, vain=1, kill=1),
    _TWO: partial(flowing, **_BOTH, stages={13: CANCEL, 23: CANCEL}, vain=1),
    _PAGES: partial(flowing, **_BOTH, waits={13: CANCEL, 23: CANCEL}, most=1, vain=1, kill=1),
    "an answer is lost while jobs are unblocked": partial(flowing, **_NEW, vain=1, answer=1),
    "PostgreSQL loses the last commits of a flow": partial(flowing, **_NEW, vain=1, crash=1),
    _OPEN: partial(flowing, **_NEW, elsewhere="a bystander", vain=1),
    _UNKNOWN: partial(flowing, stages={12: CANCEL}, elsewhere="a predecessor", vain=1),
    _CHAIN: partial(flowing, **_DIES, waits={12: CANCEL, 23: CANCEL}, users={"retry 1": 1}, vain=1, kill=1),
    _RUN: partial(flowing, **_DIES, waits={13: RUN, 23: CANCEL}, users={"retry 1": 1}),
    _HOLD: partial(flowing, **_DIES, waits={13: HOLD, 23: RUN}, users={"retry 1": 1}, vain=1),
    _DISCARD: partial(flowing, **_DIES, stages={12: CANCEL}, users={"discard 1": 1, "retry 2": 1}, vain=1),
    _DISCARD_HELD: partial(
        flowing, **_DIES, waits={12: HOLD, 13: RUN}, users={"discard 1": 1}, vain=1, kill=1
    ),
    _RETRY: partial(flowing, **_DIES, waits={12: CANCEL}, users={"retry 1": 1, "retry 2": 1}, vain=1, kill=1),
    _AGAIN: partial(
        flowing, runs={1: DEAD}, waits={12: CANCEL}, users={"cancel 2": 1, "retry 2": 1, "retry 1": 1}
    ),
    _LOOK_UP: partial(flowing, **_DIES, stages={12: HOLD}, users={"retry 1": 1}, vain=1),
    _SUPERSEDE: partial(
        flowing, runs={1: STAGED, 2: INFLIGHT}, waits={13: CANCEL}, users={"supersede 1 2": 1}
    ),
    _CYCLE: partial(flowing, runs={1: STAGED}, waits={12: CANCEL, 23: CANCEL}, users={"supersede 1 3": 1}),
    _FAIL: partial(flowing, **_FIRST, waits={12: CANCEL}, error=1, vain=1),
    _JOIN: partial(flowing, **_FLOW, waits={21: HOLD, 14: HOLD}, joins=3, vain=1, kill=1),
    _MEMBER: partial(flowing, **_DEATH, users={"retry 2": 1}, vain=1, kill=1),
    "a dead member of a flow is discarded": partial(flowing, **_DEATH, users={"discard 2": 1}, vain=1),
    _CALLED: partial(flowing, **_DEATH, users={"touch 4": 1}),
    _BY: partial(flowing, **_DIES, waits={12: ONLY, 23: CANCEL}, users={"retry 1": 1}, vain=1, kill=1),
    _TOUCH: partial(flowing, **_DIES, waits={12: CANCEL}, users={"touch 2": 1}),
}
_EARLY, _RELEASED, _STUCK = "which has not finished", "is released", "is stuck"
_NO_EDGE, _NO_REASON, _LEFT = "none of its edges waits", "without a reason", "is not blocked"
_REFUSED = "although those that it waits for exist"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        (XMIN, _OPEN, _STUCK),
        ("forget the transactions that were open", _STAGED, _STUCK),
        ("remember a later snapshot", _STAGED, _STUCK),
        ("look at no new edges", _STAGED, _STUCK),
        ("look at no dead children", _AGAIN, _LEFT),
        ("edges of other jobs stay as they are", _AGAIN, _LEFT),
        ("walk before the first look", _STAGED, _STUCK),
        ("a new leader keeps the last mark", _STAGED, _STUCK),
        ("a discard changes no edges", _DISCARD_HELD, _STUCK),
        ("an edge to another job is not new", _SUPERSEDE, _STUCK),
        ("edges of a retried job are not new", _RETRY, _STUCK),
        ("locked jobs are forgotten", _TOUCH, _STUCK),
        ("a failed page is forgotten", _FAIL, _STUCK),
        ("join without a lock", _JOIN, _RELEASED),
        ("join a flow that has ended", _JOIN, _RELEASED),
        ("hear no death in a flow", _MEMBER, _STUCK),
        ("look at a locked callback alone", _CALLED, _STUCK),
        ("a finish is a death", _BY, _EARLY),
        ("unblock in another transaction", _PAGES, _NO_EDGE),
        ("edges become idle although they changed", _AGAIN, _NO_EDGE),
        ("unblock at the first met edge", _TWO, _RELEASED),
        ("a retried job is staged at once", _RETRY, _RELEASED),
        ("a dead job holds no one", _HOLD, _EARLY),
        ("a superseded job has finished", _SUPERSEDE, _EARLY),
        ("a discarded job has finished", _DISCARD, _EARLY),
        ("lock jobs that were blocked again", _AGAIN, _NO_REASON),
        ("lock no jobs", _AGAIN, _NO_EDGE),
        ("an unknown job is accepted", _UNKNOWN, _NO_REASON),
        ("a dead job is unknown", _LOOK_UP, _REFUSED),
        ("give way to a blocked job", _CYCLE, _GOAL),
        ("look for jobs table by table", _LOOK_UP, _REFUSED),
    )
)
_HARMLESS_ALONE = (
    Mutant(XMIN_ALONE, _STAGED, ""),
    Mutant("edges of a cancelled job wait on", _CHAIN, ""),
)
FLOWS = Module("flows", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
