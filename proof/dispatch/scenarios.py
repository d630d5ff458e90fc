"""Scenarios of dispatch, the invariants that hold in each of their states, and the mutants that break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from proof.atoms import Pop
from proof.checker import Program, Scenario, Violation, World
from proof.dispatch.hints import Next, Start, note
from proof.dispatch.programs import fetcher, leader, process, runner, stock_worker
from proof.dispatch.statements import (
    ACCOUNTS,
    CAPACITY,
    FINISHED,
    INFLIGHT,
    LAST_DELIVERY,
    STAGED,
    Entry,
    Statements,
    lease_of,
)
from proof.module import Module, Mutant
from proof.postgres import (
    Database,
)


def in_one_place(world: World) -> None:
    """Require each job in exactly one table, and its effect with its finish."""
    rows = world.database.committed
    for (table, job), effects in rows.items():
        if table == ACCOUNTS:
            places = [place for place in (STAGED, INFLIGHT, FINISHED) if (place, job) in rows]
            if len(places) != 1:
                raise Violation(f"job {job} is in {' and '.join(places) or 'no table'}")
            if effects != int(places == [FINISHED]):
                raise Violation(f"job {job} in {places[0]} has taken effect {effects} times")


def within_capacity(world: World) -> None:
    """Require that a process has no more leases by dispatch than its capacity; a claim adds one that it begins."""
    rows = world.database.committed
    running: Any = world.notes["running"]
    begun = {(entry, me) for entry, me in running}
    workers = [
        row.worker
        for (table, job), row in rows.items()
        if table == INFLIGHT and row.worker and (Entry(job, row.token), row.worker) not in begun
    ]
    if any(workers.count(worker) > CAPACITY for worker in workers):
        raise Violation("a process has more leases than its capacity")


def _faults(world: World) -> Iterator[tuple[str, bool, World]]:  # noqa: C901, PLR0912
    """Expire leases, empty Redis, and forge entries of own lists."""
    live: Any = world.notes["live"]
    for (table, job), row in world.database.committed.items():
        if table != INFLIGHT or not row.worker or lease_of(job, row.token) in world.database.lapsed:
            continue
        is_fault = row.worker in live
        if is_fault and not world.faults.get("expiry"):
            continue
        after = world.copy()
        if is_fault:
            after.spend("expiry")
        after.database.lapsed |= {lease_of(job, row.token)}
        yield f"the lease of job {job} expires", is_fault, after
    if world.faults.get("wipe"):
        after = world.copy()
        after.spend("wipe")
        after.queue = ()
        note(after, lists=(), registered=frozenset(), dead=frozenset())
        yield "Redis loses everything", True, after
    if world.faults.get("forge"):
        for me in sorted(live):
            for table, job in world.database.committed:
                if table == INFLIGHT:
                    after = world.copy()
                    after.spend("forge")
                    entry = Entry(job, world.database.committed[table, job].token)
                    note(after, lists=(*world.notes["lists"], (me, entry)))  # type: ignore[misc]
                    yield f"a stranger pushes job {job} to {me}", True, after
    if world.faults.get("forged delivery"):
        for (table, job), row in world.database.committed.items():
            if table == INFLIGHT:
                after = world.copy()
                after.spend("forged delivery")
                after.queue = (*world.queue, (job, row.delivery))
                yield f"a stranger pushes delivery {row.delivery} to the shared list", True, after
    if world.faults.get("repeat") and world.notes["lists"]:
        after = world.copy()
        after.spend("repeat")
        lists: Any = world.notes["lists"]
        note(after, lists=(*lists, lists[0]))
        yield "an entry is listed twice", True, after


def _scenario(
    programs: dict[str, Program],
    jobs: int,
    faults: dict[str, int],
    *invariants: Callable[[World], None],
) -> Scenario:
    keeps_history = "crash" in faults
    # Each job was dead and is retried, so that it has a token.
    rows: dict[tuple[str, int], object] = {(STAGED, job): 1 for job in range(1, jobs + 1)}
    rows |= {(ACCOUNTS, job): 0 for job in range(1, jobs + 1)}
    none: frozenset[object] = frozenset()
    notes: dict[str, Any] = {
        "lists": (),
        "registered": none,
        "dead": none,
        "live": frozenset(f"{name} 1" for name in programs if name.startswith("stock")),
        "begun": frozenset((Entry(job, 1), "earlier") for job in range(1, jobs + 1)),
        "running": none,
        "memory": none,
        "inbox": (),
    }

    def start() -> World:
        database = Database(rows, {LAST_DELIVERY: 0}, keeps_history=keeps_history)
        database.flushed = (rows, {LAST_DELIVERY: 0}) if keeps_history else None
        return World(database, faults=dict(faults), notes=notes)

    return Scenario(
        programs,
        start,
        (in_one_place, *invariants),
        lambda world: all((FINISHED, job) in world.database.committed for job in range(1, jobs + 1)),
        _faults,
        lambda atom: isinstance(atom, Start | Next | Pop),
        lambda name: not name.startswith("stock"),
    )


def dispatching(
    broken: str, *, jobs: int = 1, processes: int = 1, leaders: int = 1, stock: int = 0, **faults: int
) -> Scenario:
    """Dispatch to processes, alongside stock workers."""
    statements = Statements(broken)
    programs = {f"process{number}": process(f"process{number}", statements) for number in range(processes)}
    programs |= {f"stock{number}": stock_worker(f"stock{number}", statements) for number in range(stock)}
    programs |= {f"leader {number}": leader(statements, moves=stock > 0) for number in range(1, leaders + 1)}
    return _scenario(programs, jobs, faults, within_capacity)


def in_two_threads(broken: str, **faults: int) -> Scenario:
    """Read jobs in one thread of a process, and run them in another."""
    statements = Statements(broken)
    programs = {
        "fetcher": fetcher(statements),
        "runner": runner(statements),
        "leader": leader(statements, moves=False),
    }
    return _scenario(programs, 1, faults, within_capacity)


_TWO, _LEADERS, _KILLED = "two jobs, two processes", "two leaders", "a process or the leader is killed"
_EXPIRED, _STOCK, _WIPED = (
    "leases expire before their jobs begin",
    "a stock worker alongside",
    "Redis loses every hint",
)
_FORGED, _CRASHED, _THREADS = (
    "entries are forged and repeated",
    "PostgreSQL loses the last moves",
    "two threads",
)
_FORGED_DELIVERY: Any = {"forged delivery": 1}
_SCENARIOS = {
    _TWO: partial(dispatching, jobs=2, processes=2),
    _LEADERS: partial(dispatching, jobs=2, leaders=2),
    _KILLED: partial(dispatching, kill=2),
    _EXPIRED: partial(dispatching, processes=2, expiry=1),
    _STOCK: partial(dispatching, stock=1, expiry=1, **_FORGED_DELIVERY),
    _WIPED: partial(dispatching, processes=2, wipe=1, kill=1),
    _FORGED: partial(dispatching, processes=2, forge=1, repeat=1),
    "an answer of dispatch is lost": partial(dispatching, answer=1, kill=1),
    _CRASHED: partial(dispatching, processes=2, crash=1),
    _THREADS: partial(in_two_threads, repeat=1),
}
_HOLDS, _TWICE, _BOTH = "does not hold", "an attempt begins twice", "within their leases"
_FULL, _GOAL = "more leases than its capacity", "out of reach"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("read by id alone", _FORGED, _HOLDS),
        ("begin without a read", _FORGED, _HOLDS),
        ("begin without a look at the clock", _EXPIRED, _HOLDS),
        ("revoke a lease that was not pushed", _WIPED, _HOLDS),
        ("a restarted process keeps its name", _KILLED, _TWICE),
        ("a lease keeps the token", _TWO, _TWICE),
        ("compare with the memory after the read", _THREADS, _TWICE),
        ("jobs in memory are read again", _THREADS, _TWICE),
        ("redeliver a valid lease", _TWO, _HOLDS),
        ("claim despite a lease", _STOCK, _BOTH),
        ("move without a flush", _CRASHED, _BOTH),
        ("capacity is not counted", _TWO, _FULL),
        ("lead without the lock", _LEADERS, _FULL),
        ("never redeliver leases", _KILLED, _GOAL),
        ("register once", _WIPED, _GOAL),
        # Nothing is lost, but the job waits until its lease expires, which counts as a fault here.
        ("never look for own leases", _KILLED, _GOAL),
    )
)
_HARMLESS_ALONE = (Mutant("push before the commit", _KILLED, ""),)

DISPATCH = Module("dispatch", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
