"""The programs: processes, with one thread or two, unmodified workers, and the leader."""

from __future__ import annotations

from functools import partial
from typing import Any

from proof.atoms import Act, Begin, Commit, Pop, RollBack
from proof.checker import Program, World
from proof.dispatch.hints import Next, PopOwn, Start, begin, end, listed, note, push, register, start_attempt
from proof.dispatch.statements import (
    CAPACITY,
    INFLIGHT,
    LAST_DELIVERY,
    STAGED,
    Commands,
    Entry,
    Statements,
    lease_of,
)
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    ConnectionLostError,
    SerializationFailureError,
)


def process(name: str, statements: Statements) -> Program:  # noqa: C901
    """Run jobs leased to the process, and deliveries of the shared list, one after the other."""
    broken = statements.broken

    def run() -> Commands:
        me = yield Start(name, broken == "a restarted process keeps its name")
        known: frozenset[Entry] = frozenset()
        while True:
            what = yield Next(me, known, broken != "register once", broken != "never look for own leases")
            found: tuple[Entry, ...] = ()
            if what == "register":
                yield register(me)
            elif what == "shared":
                delivery = yield Act("take from the shared list", take_shared)
                claimed = (yield claim(statements, delivery, me)) if delivery else ()
                for entry in claimed:
                    yield from attempt(me, entry)
            elif what == "look":
                found = yield statements.leased_to(me)
            else:
                entry = yield PopOwn(me)
                found = (entry,) if entry and broken == "begin without a read" else ()
                if entry and entry not in known and not found:
                    found = yield statements.read(entry, me)
            for entry in found:
                if entry not in known:
                    known |= {entry}
                    if (yield begin(me, entry, statements)):
                        yield from attempt(me, entry)

    def attempt(me: str, entry: Entry) -> Commands:
        yield from run_job(statements, me, entry)
        yield end(me, entry)

    return run


def take_shared(world: World, process: str) -> list[Any]:
    """Pop the first of the shared list, if there is one."""
    return Pop().step(world, process) if world.queue else [None]


def claim(statements: Statements, delivery: tuple[int, int], me: str) -> Act:
    """Claim and begin."""
    job, number = delivery
    statement = statements.claim(job, number, me)

    def act(world: World, process: str) -> Any:
        answers = statement.step(world, process)
        for entry in answers[0] if isinstance(answers, list) else ():
            start_attempt(world, me, entry)
        return answers

    return Act(f"claim job {job} by delivery {number}", act)


def run_job(statements: Statements, me: str, entry: Entry) -> Commands:
    """Run a job in a transaction; once more to be sure of the commit, after a lost connection."""
    for _ in range(2):
        try:
            yield Begin(READ_COMMITTED)
            yield statements.change(entry.job)
            if (yield statements.finish(entry, me)):
                yield Commit()
            else:
                yield RollBack()
            return
        except ConnectionLostError:
            continue


def fetcher(statements: Statements) -> Program:  # noqa: C901
    """First thread of a process: read jobs leased to it into the inbox, by the list and by looks."""

    def run() -> Commands:
        me = yield Start("process")
        while True:
            yield Act("wait", lambda world, process: [None] if is_busy(world) else [])
            known = yield memory()
            if (
                yield Act("list or look", lambda world, process: ["list", "look"][not listed(world, me) :])
            ) == "list":
                entry = yield PopOwn(me)
                is_new = (entry and entry not in known) or (
                    entry and statements.broken == "jobs in memory are read again"
                )
                found = (yield statements.read(entry, me)) if is_new else ()
            else:
                found = yield statements.leased_to(me)
            if statements.broken == "compare with the memory after the read":
                known = yield memory()
            elif statements.broken == "jobs in memory are read again":
                known = frozenset()
            for entry in found:
                if entry not in known:
                    yield remember(entry)

    def is_busy(world: World) -> bool:
        rows = world.database.committed
        return bool(world.notes["lists"]) or any(table == INFLIGHT for table, _ in rows)

    def memory() -> Act:
        return Act("remember the known jobs", lambda world, process: [world.notes["memory"]])

    def remember(entry: Entry) -> Act:
        def act(world: World, process: str) -> list[Any]:
            memory, inbox = world.notes["memory"], world.notes["inbox"]
            note(world, memory=memory | {entry}, inbox=(*inbox, entry))  # type: ignore[operator, misc]
            return [None]

        return Act(f"keep {tuple(entry)}", act)

    return run


def runner(statements: Statements) -> Program:  # noqa: C901
    """Second thread: run the jobs of the inbox, and forget them once their outcome is recorded."""

    def take(world: World, process: str) -> list[Any]:
        inbox: Any = world.notes["inbox"]
        if not inbox:
            return []
        note(world, inbox=inbox[1:])
        return [inbox[0]]

    def forget(entry: Entry) -> Act:
        def act(world: World, process: str) -> list[Any]:
            note(world, memory=world.notes["memory"] - {entry})  # type: ignore[operator]
            return [None]

        return Act(f"forget {tuple(entry)}", act)

    def run() -> Commands:
        while True:
            entry = yield Act("take a job", take)
            me = "process 1"
            if (yield begin_in_memory(me, entry)):
                yield from run_job(statements, me, entry)
                yield end(me, entry)
            yield forget(entry)

    def begin_in_memory(me: str, entry: Entry) -> Act:
        def act(world: World, process: str) -> list[Any]:
            if lease_of(*entry) in world.database.lapsed:
                return [False]
            start_attempt(world, me, entry)
            return [True]

        return Act(f"begin {tuple(entry)}", act)

    return run


def stock_worker(name: str, statements: Statements) -> Program:
    """Pop, claim by delivery number, run, as an unmodified worker does."""

    def run() -> Commands:
        while True:
            delivery = yield Pop()
            for entry in (yield claim(statements, delivery, f"{name} 1")):
                yield from run_job(statements, f"{name} 1", entry)
                yield end(f"{name} 1", entry)

    return run


def leader(statements: Statements, *, moves: bool = True) -> Program:  # noqa: C901
    """Dispatch to processes with capacity, otherwise move to the shared list; redeliver there."""
    broken = statements.broken

    def lead(world: World, process: str) -> list[Any]:
        database = world.database
        database.require_connection(process)
        if database.leader is not None and broken != "lead without the lock":
            return []
        database.leader = process
        return [database.sequences[LAST_DELIVERY]]

    def choose(world: World, process: str) -> list[Any]:
        rows = world.database.committed
        jobs = {job: row for (table, job), row in rows.items() if table == INFLIGHT}
        is_staged = any(table == STAGED for table, _ in rows)
        registered: Any = world.notes["registered"]
        free = [
            ("dispatch", each)
            for each in sorted(registered)
            if sum(row.worker == each for row in jobs.values()) < CAPACITY
            or broken == "capacity is not counted"
        ]
        away = {*world.queue, *world.held.values()}
        due = tuple(
            job
            for job, row in jobs.items()
            if row.waits
            or (not row.worker and (job, row.delivery) not in away)
            or (
                row.worker
                and (lease_of(job, row.token) in world.database.lapsed and broken != "never redeliver leases")
            )
            or (broken == "redeliver a valid lease" and row.worker)
        )
        works: list[Any] = [("redeliver", due)] if due else []
        if is_staged:
            works += free or [("move", "")] * moves
        return works

    def run() -> Commands:
        last = yield Act("lead", lead)
        while True:
            work, what = yield Act("choose", choose)
            if work == "redeliver":
                found = yield statements.redeliver(last, what[:1])
                last += 1
                yield Act("push to the shared list", partial(push_shared, found))
                continue
            yield Begin(REPEATABLE_READ)
            jobs = yield statements.read_due()
            if not jobs:
                yield RollBack()
                continue
            ((job, token),) = jobs
            entry = Entry(job, token if broken == "a lease keeps the token" else token + 1)
            if what and broken == "push before the commit":
                yield push(what, entry, statements)
            try:
                yield statements.move(job, last, what)
            except SerializationFailureError:
                yield RollBack()
                continue
            yield Commit(is_durable=bool(what) and broken != "move without a flush")
            last += 1
            if not what:
                yield Act("push to the shared list", partial(push_shared, ((job, last),)))
            elif broken != "push before the commit" and (yield push(what, entry, statements)):
                yield statements.revoke(entry, what)

    def push_shared(deliveries: Any, world: World, process: str) -> list[Any]:
        world.queue = (*world.queue, *deliveries)
        return [None]

    return run
