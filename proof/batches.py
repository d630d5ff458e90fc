"""Batches, a design: the leader alone counts members and ends, and stages the callback once.

A tick counts the members and the ends that the last snapshot did not see. A member joins before its batch commits, or
while another member runs, under the token of that member and no later than its finish. So the leader never sees the
finish without the new member.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Claimed, Commit, Execute, RollBack, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.flows.programs import Lead
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    Database,
    DeadlockError,
    Seen,
    Statement,
    UniqueViolationError,
    Writer,
    Xid,
)
from proof.steps import Claim, leases_expire

Commands = Generator[Atom, Any, Any]
INFLIGHT, FINISHED, MEMBERS, BATCHES, STATE = (
    "inflight_jobs",
    "finished_jobs",
    "members",
    "batches",
    "drain_state",
)
CALLBACKS = "staged_jobs"
XMIN = "count ends below the oldest open transaction"


class Batch(NamedTuple):
    """Row of `batches`; `pending` members, once the leader has seen the batch."""

    xid: Xid
    pending: int | None = None
    called: int = 0


class Held(NamedTuple):
    """Row of `inflight_jobs`."""

    token: int = 0
    worker: str = ""


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def create(self, members: int) -> Execute:
        """Insert the batch and its first members; it may be empty."""

        def insert(writer: Writer, row_id: int, row: Any) -> None:
            writer.insert(BATCHES, 1, Batch(writer.xid))
            for job in range(1, members + 1):
                writer.insert(MEMBERS, job, writer.xid)
                writer.insert(INFLIGHT, job, Held())

        return Execute(Statement("", STATE, ids([1]), insert, reads=True))

    def claim(self, job: int) -> Execute:
        """Claim a member, if unclaimed or after its lease."""

        def claim(writer: Writer, row_id: int, row: Held) -> Claimed:
            writer.database.lapsed -= {row_id}
            writer.update(INFLIGHT, row_id, Held(row.token + 1, writer.process))
            return Claimed(row_id, row.token + 1)

        where = lambda at, row, lapsed: at == job and (not row.token or at in lapsed)  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, claim))

    def grow(self, claim: Claimed, process: str) -> Execute:
        """Add a member, if the claim of the member that adds it is current.

            INSERT INTO … SELECT … FROM inflight_jobs WHERE id = … AND fencing_token = … FOR KEY SHARE

        The lock holds back the finish, which deletes the row, but neither heartbeats nor claims.
        """

        def insert(writer: Writer, row_id: int, row: Any) -> bool:
            writer.insert(MEMBERS, 2, writer.xid)
            writer.insert(INFLIGHT, 2, Held())
            return True

        if self.broken == "a member joins without a fence":
            return Execute(Statement("", STATE, ids([1]), insert, reads=True))
        is_unlocked = self.broken == "a member joins without a lock"
        where = self._is_current(claim, process)
        return Execute(Statement("", INFLIGHT, where, insert, shares_key=not is_unlocked, reads=is_unlocked))

    def finish(self, claim: Claimed, process: str) -> Execute:
        """Finish a member under its token."""
        return Execute(Statement("", INFLIGHT, self._is_current(claim, process), _finish))

    def finish_at_once(self, job: int) -> Execute:
        """Claim, run and finish a member of no further interest."""
        return Execute(Statement("", INFLIGHT, ids([job]), _finish))

    def touch(self, job: int) -> Execute:
        """Write in the member's transaction, which gives it its id."""
        return Execute(
            Statement("", STATE, ids([1]), lambda w, at, row: w.insert("effects", job, "row"), reads=True)
        )

    def count(self, *, marks: bool = True, counts: bool = True, calls: bool = True) -> Execute:
        """Count what the last snapshot did not see, remember this one, and stage the callback at zero.

        Return what was found; parts are left out by mutants alone.
        """

        def count(writer: Writer, row_id: int, last: Seen) -> tuple[int, bool]:
            rows, now = writer.snapshot, writer.seen
            if self.broken == XMIN:
                now = Seen(now.xmin)
            if marks:
                writer.update(STATE, 1, now)
            batch = rows.get((BATCHES, 1))
            if batch is None or not now.sees(batch.xid):
                return 0, False
            joined, ended = (
                sum(kind == table and not last.sees(xid) and now.sees(xid) for (kind, _), xid in rows.items())
                for table in (MEMBERS, FINISHED)
            )
            found = (
                -ended
                if self.broken == "members that join later are not counted" and last.sees(batch.xid)
                else joined - ended
            )
            pending = (batch.pending or 0) + found
            if self.broken == "an empty batch is not looked at" and batch.pending is None and not joined:
                return 0, False
            is_due = pending <= 0 and (not batch.called or self.broken == "the callback has no key")
            if counts:
                writer.update(BATCHES, 1, Batch(batch.xid, pending, batch.called + (is_due and calls)))
            return found, is_due

        return Execute(Statement("", STATE, ids([1]), count))

    def are_all_done(self) -> Execute:
        """Read whether each member of the batch has ended."""

        def read(writer: Writer, row_id: int, row: Batch) -> bool:
            rows = writer.snapshot
            return all((FINISHED, job) in rows for table, job in rows if table == MEMBERS)

        return Execute(Statement("", BATCHES, ids([1]), read, reads=True))

    def add(self, found: int) -> Execute:
        """Add to the count in a transaction of its own."""

        def add(writer: Writer, row_id: int, row: Batch) -> None:
            pending = (row.pending or 0) + found
            writer.update(BATCHES, 1, Batch(row.xid, pending, row.called + (pending <= 0 and not row.called)))

        return Execute(Statement("", BATCHES, ids([1]), add))

    def call_back(self) -> Execute:
        """Stage the callback in a transaction of its own."""
        call = lambda w, at, row: w.update(BATCHES, at, row._replace(called=row.called + 1))  # noqa: E731
        return Execute(Statement("", BATCHES, ids([1]), call))

    def _is_current(self, claim: Claimed, process: str) -> Any:
        return lambda at, row, lapsed: (at, row.token, row.worker) == (claim.job, claim.token, process)


def _finish(writer: Writer, row_id: int, row: Held) -> bool:
    writer.delete(INFLIGHT, row_id)
    writer.insert(FINISHED, row_id, writer.xid)
    return True


def application(statements: Statements, members: int) -> Program:
    """Create the batch."""

    def run() -> Commands:
        yield Begin(READ_COMMITTED)
        try:
            yield statements.create(members)
            yield Commit()
        except UniqueViolationError:
            # The commit whose answer was lost.
            yield RollBack()

    return run


def worker(name: str, statements: Statements, job: int, grows: str = "") -> Program:  # noqa: C901
    """Run a member; the first one adds another, on its own transaction or on another session."""

    def run() -> Commands:
        while True:
            for claim in (yield Claim(statements.claim(job), job)):
                yield from member(claim)

    def member(claim: Claimed) -> Commands:
        try:
            yield Begin(READ_COMMITTED)
            if grows and claim.token == 1:
                yield statements.touch(claim.token)
                if grows == "this session":
                    yield statements.grow(claim, name)
                else:
                    yield from on_another_session(claim)
            if (yield statements.finish(claim, name)):
                yield from commit(statements)
            else:
                yield RollBack()
        except DeadlockError:
            yield RollBack()

    def on_another_session(claim: Claimed) -> Commands:
        other = f"{name}, other session"

        def execute(world: World, process: str) -> Any:
            return Execute(statements.grow(claim, name).statement).step(world, other)

        yield Act("begin on another session", lambda world, process: Begin(READ_COMMITTED).step(world, other))
        yield Act("add a member there", execute)
        yield Act("commit there", lambda world, process: Commit().step(world, other))

    return run


def commit(statements: Statements) -> Commands:
    """Commit a finish."""
    if statements.broken == "each worker looks before its commit" and (yield statements.are_all_done()) == (
        True,
    ):
        yield statements.call_back()
    yield Commit()
    if statements.broken == "each worker looks after its commit" and (yield statements.are_all_done()) == (
        True,
    ):
        yield statements.call_back()


def ender(statements: Statements, job: int) -> Program:
    """Finish a member at once."""

    def is_there(world: World, process: str) -> list[Any]:
        return [None] if (INFLIGHT, job) in world.database.committed else []

    def run() -> Commands:
        yield Act("wait for the job", is_there)
        yield Begin(READ_COMMITTED)
        yield statements.finish_at_once(job)
        yield from commit(statements)

    return run


def bystander() -> Commands:
    """Write something, so that other transactions begin before and after this one."""
    yield Begin(READ_COMMITTED)
    yield Execute(
        Statement("", STATE, ids([1]), lambda w, at, row: w.insert("elsewhere", 1, "row"), reads=True)
    )
    yield Commit()


def leader(statements: Statements) -> Program:
    """Count."""

    def has_work(world: World, process: str) -> list[Any]:
        rows = world.database.committed
        last = rows[STATE, 1]
        news = [row for (table, _), row in rows.items() if table in (MEMBERS, FINISHED)]
        news += [row.xid for (table, _), row in rows.items() if table == BATCHES]
        if statements.broken.startswith("each worker"):
            return []
        if any(not last.sees(xid) for xid in news):
            return [None]
        if not world.faults.get("vain"):
            return []
        world.spend("vain")
        return [None]

    def run() -> Commands:
        yield Lead()
        while True:
            yield Act("look for work", has_work)
            if statements.broken == "the mark commits before the counts":
                ((found, _),) = yield statements.count(counts=False)
                yield statements.add(found)
            elif statements.broken == "the callback commits after the mark":
                ((_, is_due),) = yield statements.count(calls=False)
                if is_due:
                    yield statements.call_back()
            else:
                yield statements.count()

    return run


def never_early(world: World) -> None:
    """Require that every member has ended before the batch is called back."""
    rows = world.database.committed
    batch = rows.get((BATCHES, 1))
    if batch is not None and batch.called:
        for table, job in rows:
            if table == MEMBERS and (FINISHED, job) not in rows:
                raise Violation(f"the batch is called back before job {job} has ended")


def never_twice(world: World) -> None:
    """Require at most one callback."""
    batch = world.database.committed.get((BATCHES, 1))
    if batch is not None and batch.called > 1:
        raise Violation(f"the batch is called back {batch.called} times")


def batching(
    broken: str,
    *,
    members: int = 1,
    grows: str = "",
    workers: int = 1,
    elsewhere: bool = False,
    **faults: int,
) -> Scenario:
    """Create a batch that grows while its members finish."""
    statements = Statements(broken)
    programs: dict[str, Program] = {
        f"worker {number}": worker(f"worker {number}", statements, 1, grows)
        for number in range(1, workers + 1)
    }
    if grows or members > 1:
        programs["worker of 2"] = ender(statements, 2)
    programs |= {"application": application(statements, members), "leader": leader(statements)}
    if elsewhere:
        programs["elsewhere"] = bystander

    def start() -> World:
        return World(Database({(STATE, 1): Seen(Xid(1))}, {}, next_xid=Xid(2)), faults=dict(faults))

    return Scenario(
        programs,
        start,
        (never_early, never_twice),
        lambda world: (batch := world.database.committed.get((BATCHES, 1))) is not None and batch.called > 0,
        leases_expire,
        lambda atom: isinstance(atom, Claim),
        lambda name: name in ("leader", "worker 1"),
    )


_EMPTY, _TWO = "an empty batch", "a batch of two"
_SAME, _OTHER = "a member adds one in its own transaction", "a member adds one on another session"
_ZOMBIE, _LOST = "a member whose lease has expired adds one", "an answer is lost while a batch is counted"
_SCENARIOS = {
    _EMPTY: partial(batching, members=0, kill=1, vain=1),
    _TWO: partial(batching, members=2, kill=1, vain=1),
    _SAME: partial(batching, grows="this session", kill=1, vain=1),
    _OTHER: partial(batching, grows="another session", elsewhere=True),
    _ZOMBIE: partial(batching, grows="another session", workers=2, expiry=1),
    _LOST: partial(batching, members=2, answer=1),
}
_EARLY, _TWICE, _GOAL = "is called back before", "times", "out of reach"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        (XMIN, _OTHER, _EARLY),
        ("members that join later are not counted", _SAME, _EARLY),
        ("a member joins without a fence", _ZOMBIE, _EARLY),
        ("a member joins without a lock", _ZOMBIE, _EARLY),
        ("the callback has no key", _TWO, _TWICE),
        ("each worker looks after its commit", _TWO, _TWICE),
        ("each worker looks before its commit", _TWO, _GOAL),
        ("the callback commits after the mark", _TWO, _GOAL),
        ("the mark commits before the counts", _TWO, _EARLY),
        ("an empty batch is not looked at", _EMPTY, _GOAL),
    )
)

BATCHING = Module("batches", _SCENARIOS, _MUTANTS)
