"""The leader, which counts its deliveries in memory; workers and operators."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Claimed, Commit, Execute, Pop, RollBack, ids
from proof.checker import Atom, Program, World
from proof.delivery.statements import DEAD, INFLIGHT, STAGED, Lead, Push
from proof.limits.statements import (
    QUEUES,
    CallBackAll,
    Extend,
    Memory,
    Statements,
    StillDelivered,
    retries,
)
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SerializationFailureError,
    Statement,
    Writer,
    of_table,
)

Steps = Generator[Atom, Any, Any]


class Choose(NamedTuple):
    """What the leader does next, of all that has work."""

    memory: Memory
    statements: Statements

    def __str__(self) -> str:
        return "choose"

    def step(self, world: World, process: str) -> list[Any]:
        """Choose."""
        memory, rows, broken = self.memory, world.database.committed, self.statements.broken
        jobs = of_table(rows, INFLIGHT)
        counted = (memory.running, memory.cancelled + memory.again)
        has_ended = memory.running is None or self.statements.look(memory.running).choose(rows) != counted
        lapsed = jobs if broken == "call back a valid lease" else world.database.lapsed
        held = set(world.held.values())
        gone = [
            at
            for at, row in jobs.items()
            if not row.is_claimed and not row.waits and not {(at, row.delivery)} & {*world.queue, *held}
        ]
        found = {
            "rules": rows[QUEUES, 1] != memory.limit,
            "call back": memory.is_outdated or memory.up_to > 0,
            "look": has_ended and (memory.running is None or broken != "never look for ended jobs"),
            "staged": memory.running is not None and memory.room > 0 and bool(of_table(rows, STAGED)),
            "retries": (memory.room > 0 or broken == "redeliver retries without a place")
            and bool(retries(rows)),
            "leases": any(row.is_claimed and at in lapsed for at, row in jobs.items())
            and broken != "never call back leases",
            "lost": bool(gone) and (not memory.up_to or broken == "push locked jobs again"),
        }
        return [name for name, is_found in found.items() if is_found]


def leader(  # noqa: C901
    statements: Statements, *, is_ordered: bool = False, isolation: str = REPEATABLE_READ
) -> Program:
    """Lead: call back, count, admit, redeliver.

    Args:
        isolation: Of batches; after a lock was met, read committed, with locked rows skipped.
    """
    broken = statements.broken

    def run() -> Steps:
        counted = None
        if broken == "count before the lock":
            counted = yield statements.count()
        last, _ = yield Lead()
        limit = yield statements.read_rules()
        memory = Memory(limit, is_ordered, last)
        memory = yield from _call_back(memory, broken)
        if counted is not None:
            memory = memory._replace(running=counted[0])
        if broken == "take over without counting":
            memory = memory._replace(running=())
        while True:
            memory = yield from do((yield Choose(memory, statements)), memory)

    def do(work: str, memory: Memory) -> Generator[Atom, Any, Memory]:
        if work == "rules":
            limit = yield statements.read_rules()
            memory = memory._replace(limit=limit, running=None, again=0, is_outdated=True)
        elif work == "call back":
            memory = yield from _call_back(memory, broken)
        elif work == "look" and memory.running is None:
            memory = yield from _count(statements, memory)
        elif work == "look":
            running, cancelled = yield statements.look(memory.running or ())
            memory = memory._replace(running=running, cancelled=cancelled, again=0)
        elif work == "staged":
            memory = yield from _admit(statements, memory, isolation)
        elif work == "retries":
            memory = yield from _redeliver(statements, memory)
        elif work == "leases":
            yield statements.call_back_leases()
        else:
            yield Begin(READ_COMMITTED)
            lost = yield statements.delivery.redeliver_unclaimed(memory.last, 0, memory.last)
            memory = yield from _push(statements, memory, lost)
        return memory

    return run


def _call_back(memory: Memory, broken: str) -> Generator[Atom, Any, Memory]:
    if memory.is_outdated:
        memory = memory._replace(running=None, again=0, is_outdated=False, up_to=memory.last)
    yield CallBackAll(memory.limit, memory.up_to, broken)
    is_left = yield StillDelivered(memory.limit, memory.up_to, broken)
    return memory if is_left else memory._replace(up_to=0)


def _count(statements: Statements, memory: Memory) -> Generator[Atom, Any, Memory]:
    parts = {"count claimed jobs alone": [True], "count delivered jobs alone": [False]}
    # Claimed ones first, so that a job claimed meanwhile is in neither part.
    parts["count in two snapshots"] = [True, False]
    running, cancelled = set(), 0
    for part in parts.get(statements.broken, [None]):
        found, cancelled = yield statements.count(part)
        running.update(found)
    return memory._replace(running=tuple(sorted(running)), cancelled=cancelled)


def _admit(statements: Statements, memory: Memory, isolation: str) -> Generator[Atom, Any, Memory]:
    remembers = statements.broken == "remember the first job of a key"
    if remembers:
        remembered = yield statements.find(memory.room)
    yield Begin(isolation)
    jobs, waiting = yield from _find(statements, memory)
    jobs = remembered if remembers else jobs
    try:
        if jobs and isolation == READ_COMMITTED:
            jobs = yield statements.lock(jobs)
        if jobs:
            yield statements.move(jobs, memory, waiting)
            yield Commit(is_durable=False)
    except SerializationFailureError:
        jobs = ()
    if not jobs:
        yield RollBack()
        return memory
    deliveries = tuple((job, number) for number, job in enumerate(jobs, memory.last + 1))
    memory = memory._replace(last=memory.last + len(deliveries))
    if statements.broken != "admit without counting":
        memory = _begun(memory, jobs, statements.broken)
    yield Push(deliveries)
    return memory


def _find(statements: Statements, memory: Memory) -> Steps:
    """Return due rows that may begin, and what waited before; a retry holds later jobs of its key."""
    if not memory.is_ordered:
        jobs = yield statements.find(memory.room)
        return jobs, ()
    is_held, retry, waiting = yield statements.read_held()
    if statements.broken == "a retry holds nothing":
        retry = 0
    if retry and not is_held:
        is_held = not (yield statements.find_staged_before(retry))
    jobs = () if is_held else (yield statements.find(memory.room))
    if retry and any(job > retry for job in jobs) and statements.broken != "look at a retry once":
        jobs = ()
    return jobs, waiting


def _redeliver(statements: Statements, memory: Memory) -> Generator[Atom, Any, Memory]:
    yield Begin(READ_COMMITTED)
    if memory.running is None:
        memory = yield from _count(statements, memory)
    is_held, _, waiting = (yield statements.read_held()) if memory.is_ordered else (False, 0, ())
    found = () if is_held else (yield statements.find_retries(memory.room))
    if found and memory.is_ordered and statements.broken != "retries before staged jobs":
        is_behind = yield statements.find_staged_before(found[0])
        found = () if is_behind else found
    jobs = (yield statements.redeliver(found, memory, waiting)) if found else ()
    if jobs and statements.broken != "redeliver retries without counting":
        memory = _begun(memory, [job for job, _ in jobs], statements.broken)
    return (yield from _push(statements, memory, jobs))


def _push(
    statements: Statements, memory: Memory, deliveries: tuple[tuple[int, int], ...]
) -> Generator[Atom, Any, Memory]:
    """Record the numbers, commit and push."""
    if not deliveries:
        yield RollBack()
        return memory
    last = max(number for _, number in deliveries)
    yield statements.delivery.record_progress(last, 0)
    yield Commit(is_durable=False)
    yield Push(deliveries)
    return memory._replace(last=last)


def _begun(memory: Memory, jobs: Collection[int], broken: str) -> Memory:
    running = memory.running or ()
    again = 0 if broken == "count a revived job once" else len(set(jobs).intersection(running))
    return memory._replace(running=tuple(sorted({*running, *jobs})), again=memory.again + again)


def worker(  # noqa: C901
    name: str, statements: Statements, outcome: str = "", *, heartbeats: bool = False, is_slow: bool = False
) -> Program:
    """Claim and finish; the first attempt of a job ends with `outcome`, but only the first job dies.

    Args:
        is_slow: Others see the claim's lock before its commit.
    """

    def run() -> Steps:
        while True:
            job, delivery = yield Pop()
            if is_slow:
                yield Begin(READ_COMMITTED)
            claims = yield statements.claim(job, delivery)
            if is_slow:
                yield Commit()
            for claim in claims:
                if heartbeats:
                    yield Extend(claim, delivery, name, statements.broken)
                if not (yield end(claim)):
                    yield statements.confirm_end(claim, name)

    def end(claim: Claimed) -> Execute:
        ends = outcome if claim.token == 1 else ""
        if ends == "release":
            return statements.release(claim, name)
        if ends == "die" and claim.job == 1:
            return statements.bury(claim, name)
        if ends:
            return statements.delivery.retry_later(claim, name)
        return statements.delivery.finish(claim, name)

    return run


def lowers(limit: int) -> Program:
    """Change the limit."""

    def run() -> Steps:
        def change(writer: Writer, row_id: int, row: int) -> None:
            writer.update(QUEUES, row_id, limit)

        yield Execute(Statement("", QUEUES, ids([1]), change))

    return run


def gives_up(statements: Statements, job: int) -> Program:
    """Cancel a job in a transaction that is rolled back."""

    def run() -> Steps:
        yield Begin(READ_COMMITTED)
        yield statements.cancel(job)
        yield RollBack()

    return run


def operator(statements: Statements, *, cancels: bool, gives_up: bool = False) -> Program:
    """Cancel the first job, if wanted, and revive dead ones, or cancel them again."""

    def run() -> Steps:
        if cancels:
            yield statements.cancel(1)
        while True:
            job = yield Act("choose a dead job", _choose_dead)
            yield statements.revive(job)
            if gives_up:
                yield statements.cancel_staged(job)

    return run


def _choose_dead(world: World, process: str) -> list[Any]:
    return list(of_table(world.database.committed, DEAD))
