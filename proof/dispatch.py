"""Dispatch, a design: the leader's move leases a job to a worker process, which only reads it.

Redis holds hints alone. A process registers under a name that is never used again. The leader leases up to its
capacity, counted from the rows, commits durably, and pushes id and token to the process' own list. The process reads
the rows leased to it, by its list or by a look at all of them, leaves out those that it knew before it asked, and looks
at the clock when it begins. Everything else takes the shared list and the claim by delivery number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Commit, Execute, Pop, RollBack, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    ConnectionLostError,
    Database,
    SerializationFailureError,
    Statement,
    Writer,
)

Commands = Generator[Atom, Any, Any]
STAGED, INFLIGHT, FINISHED, ACCOUNTS = "staged_jobs", "inflight_jobs", "finished_jobs", "accounts"
LAST_DELIVERY = "drain_last_delivery"
CAPACITY = 1


class Row(NamedTuple):
    """Row of `inflight_jobs`; `waits`: for its redelivery."""

    delivery: int
    token: int
    worker: str = ""
    waits: bool = False


class Entry(NamedTuple):
    """Element of a process' own list: a lease."""

    job: int
    token: int


def lease_of(job: int, token: int) -> int:
    """Name a lease; the clock's expired leases are those in `lapsed`."""
    return job * 10 + token


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def read_due(self) -> Execute:
        """Read a staged job and its token."""
        return Execute(
            Statement("", STAGED, lambda *_: True, lambda w, at, row: (at, row), reads=True, limit=1)
        )

    def move(self, job: int, last: int, to: str) -> Execute:
        """Move the row, leased to `to` under the next token, or unclaimed, by `drain.tables.staged.MOVE`."""

        def move(writer: Writer, row_id: int, token: int) -> None:
            writer.delete(STAGED, row_id)
            if to and self.broken != "a lease keeps the token":
                token += 1
            writer.insert(INFLIGHT, row_id, Row(last + 1, token, to))

        return Execute(Statement("", STAGED, ids([job]), move, sequences={LAST_DELIVERY: last + 1}))

    def leased_to(self, me: str) -> Execute:
        """Read the leases of a process, without a lock or an update."""

        def is_mine(at: int, row: Row, lapsed: Collection[int]) -> bool:
            return row.worker == me and lease_of(at, row.token) not in lapsed

        return Execute(Statement("", INFLIGHT, is_mine, lambda w, at, row: Entry(at, row.token), reads=True))

    def read(self, entry: Entry, me: str) -> Execute:
        """Read a job by id, token and process."""

        def is_mine(at: int, row: Row, lapsed: Collection[int]) -> bool:
            if self.broken == "read by id alone":
                return at == entry.job
            return (at, row.token, row.worker) == (*entry, me) and lease_of(*entry) not in lapsed

        return Execute(Statement("", INFLIGHT, is_mine, lambda w, at, row: Entry(at, row.token), reads=True))

    def claim(self, job: int, delivery: int, me: str) -> Execute:
        """Claim through the current delivery, durably, by `drain.tables.claims.CLAIM`, and begin."""

        def is_free(at: int, row: Row, lapsed: Collection[int]) -> bool:
            is_unclaimed = not row.worker or lease_of(at, row.token) in lapsed
            is_unclaimed |= self.broken == "claim despite a lease"
            return (at, row.delivery) == (job, delivery) and is_unclaimed and not row.waits

        def claim(writer: Writer, row_id: int, row: Row) -> Entry:
            writer.update(INFLIGHT, row_id, row._replace(token=row.token + 1, worker=me))
            return Entry(row_id, row.token + 1)

        return Execute(Statement("drain.tables.claims.CLAIM", INFLIGHT, is_free, claim, is_durable=True))

    def change(self, job: int) -> Execute:
        """Write in the job's transaction: the effect that must happen once."""
        return Execute(
            Statement("", ACCOUNTS, ids([job]), lambda w, at, row: w.update(ACCOUNTS, at, row + 1))
        )

    def finish(self, entry: Entry, me: str) -> Execute:
        """Finish under the fence of job, token and process, by `schema.sql: drain_finish`."""

        def finish(writer: Writer, row_id: int, row: Row) -> bool:
            writer.delete(INFLIGHT, row_id)
            writer.insert(FINISHED, row_id, row.token)
            return True

        where = lambda at, row, lapsed: (at, row.token, row.worker) == (*entry, me)  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, finish))

    def revoke(self, entry: Entry, me: str) -> Execute:
        """Take back the lease of a process that its supervisor knows to be dead.

        One that is only missing from Redis may have read the job already.
        """
        where = lambda at, row, lapsed: (at, row.token, row.worker) == (*entry, me)  # noqa: E731
        wait = lambda w, at, row: w.update(INFLIGHT, at, row._replace(worker="", waits=True))  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, wait))

    def redeliver(self, last: int, jobs: Collection[int]) -> Execute:
        """Renumber what waits, is lost, or has an expired lease, by `drain.tables.redeliveries.REDELIVER_LEASES`."""

        def is_due(at: int, row: Row, lapsed: Collection[int]) -> bool:
            is_over = lease_of(at, row.token) in lapsed or self.broken == "redeliver a valid lease"
            return at in jobs and (not row.worker or is_over)

        def renumber(writer: Writer, row_id: int, row: Row) -> tuple[int, int]:
            writer.update(INFLIGHT, row_id, Row(last + 1, row.token))
            return row_id, last + 1

        return Execute(Statement("", INFLIGHT, is_due, renumber, sequences={LAST_DELIVERY: last + 1}))


def note(world: World, **changes: Any) -> None:
    """Change notes."""
    world.notes = {**world.notes, **changes}


def listed(world: World, me: str) -> tuple[Entry, ...]:
    """Return a process' own list in Redis."""
    lists: Any = world.notes["lists"]
    return tuple(entry for owner, entry in lists if owner == me)


def push(me: str, entry: Entry, statements: Statements) -> Act:
    """Push to a process' own list, in one script, if it is registered; answer whether it is known to be dead."""

    def act(world: World, process: str) -> list[Any]:
        registered: Any = world.notes["registered"]
        lists: Any = world.notes["lists"]
        dead: Any = world.notes["dead"]
        if me in registered:
            note(world, lists=(*lists, (me, entry)))
        return [
            me in dead or (me not in registered and statements.broken == "revoke what could not be pushed")
        ]

    return Act(f"push {tuple(entry)} to {me}", act)


def begin(me: str, entry: Entry, statements: Statements) -> Act:
    """Look at the clock, and begin."""

    def act(world: World, process: str) -> list[Any]:
        if (
            lease_of(*entry) in world.database.lapsed
            and statements.broken != "begin without a look at the clock"
        ):
            return [False]
        row = world.database.committed.get((INFLIGHT, entry.job))
        is_known = row is not None and (row.token, row.worker) == (entry.token, me)
        if lease_of(*entry) in world.database.lapsed or (
            not is_known and statements.broken != "move without a flush"
        ):
            raise Violation("a process begins a job that it does not hold")
        start_attempt(world, me, entry)
        return [True]

    return Act(f"begin {tuple(entry)}", act)


def start_attempt(world: World, me: str, entry: Entry) -> None:
    """Note an attempt that begins; refuse a second one."""
    begun, running, live = (world.notes[name] for name in ("begun", "running", "live"))
    attempts: Any = begun
    others: Any = running
    if (entry, me) in attempts:
        raise Violation("an attempt begins twice")
    for other, owner in others:
        is_valid = lease_of(*other) not in world.database.lapsed and owner in live  # type: ignore[operator]
        if other.job == entry.job and is_valid:
            raise Violation("two attempts run at once within their leases")
    if any(entry == other for other, _ in attempts):
        raise Violation("an attempt begins twice, under another process' token")
    note(world, begun=attempts | {(entry, me)}, running=others | {(entry, me)})


def end(me: str, entry: Entry) -> Act:
    """End an attempt."""

    def act(world: World, process: str) -> list[Any]:
        note(world, running=world.notes["running"] - {(entry, me)})  # type: ignore[operator]
        return [None]

    return Act(f"end {tuple(entry)}", act)


class Start(NamedTuple):
    """Start a process under a new name, and register it; its supervisor notes that its predecessor is dead."""

    program: str
    keeps_name: bool = False

    def step(self, world: World, process: str) -> list[Any]:
        """Register."""
        live: Any = world.notes["live"]
        number = max((int(each.split()[1]) for each in live if each.startswith(self.program)), default=0)
        me = f"{self.program} {number or 1}" if self.keeps_name else f"{self.program} {number + 1}"
        gone = frozenset(each for each in live if each.startswith(self.program)) - {me}
        registered, dead = world.notes["registered"], world.notes["dead"]
        note(
            world,
            live=live - gone | {me},
            registered=registered - gone | {me},  # type: ignore[operator]
            dead=dead | gone,  # type: ignore[operator]
        )
        return [me]


class Next(NamedTuple):
    """Wait for something to do; a look at one's own leases is for those that are in no list."""

    me: str
    known: frozenset[Entry]
    registers: bool = True
    looks: bool = True

    def step(self, world: World, process: str) -> list[Any]:
        """Choose."""
        rows, lapsed = world.database.committed, world.database.lapsed
        own = listed(world, self.me)
        leased = (
            Entry(job, row.token)
            for (table, job), row in rows.items()
            if table == INFLIGHT and row.worker == self.me
        )
        unlisted = [
            each
            for each in leased
            if each not in own and each not in self.known and lease_of(*each) not in lapsed
        ]
        registered: Any = world.notes["registered"]
        found = {
            "own": bool(own),
            "look": bool(unlisted) and self.looks,
            "shared": bool(world.queue),
            "register": self.me not in registered and self.registers,
        }
        return [what for what, is_found in found.items() if is_found]


class PopOwn(NamedTuple):
    """Take the first of one's own list."""

    me: str

    def step(self, world: World, process: str) -> list[Any]:
        """Take it; Redis may have lost it since."""
        if not (entries := listed(world, self.me)):
            return [None]
        first, *rest = entries
        lists: Any = world.notes["lists"]
        others = tuple(each for each in lists if each[0] != self.me)
        note(world, lists=(*others, *((self.me, entry) for entry in rest)))
        world.held = {**world.held, process: tuple(first)}  # type: ignore[dict-item]
        return [first]


def register(me: str) -> Act:
    """Register again, after Redis lost its data."""

    def act(world: World, process: str) -> list[Any]:
        note(world, registered=world.notes["registered"] | {me})  # type: ignore[operator]
        return [None]

    return Act(f"register {me}", act)


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
        return Act("remember what is known", lambda world, process: [world.notes["memory"]])

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
        ("revoke what could not be pushed", _WIPED, _HOLDS),
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
