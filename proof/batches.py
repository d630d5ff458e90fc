"""Batches, a design: the leader alone counts members and ends, and stages the callback once.

A tick looks at the members that joined or ended since the last snapshot, and notes each one's state, so that a member
that dies, is retried and finishes is counted once. A member joins before its batch commits, or
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
INFLIGHT, FINISHED, DEAD = "inflight_jobs", "finished_jobs", "dead_jobs"
MEMBERS, BATCHES, STATE = "batch_members", "batches", "drain_state"
ENDS = {FINISHED: "finished", DEAD: "dead"}
XMIN = "count ends below the oldest open transaction"


class Batch(NamedTuple):
    """Row of `batches`; the leader alone writes its counts.

    Attributes:
        pending: Members that have not ended; None until the leader has seen the batch.
        unfinished: Those and dead ones.
        completed, succeeded: Callbacks that are staged.
    """

    xid: Xid
    pending: int | None = None
    unfinished: int = 0
    completed: int = 0
    succeeded: int = 0


class Member(NamedTuple):
    """Row of `batch_members`; the leader alone writes `state`: new, counted, dead or finished."""

    xid: Xid
    state: str = "new"


class Held(NamedTuple):
    """Row of `inflight_jobs`; `deaths` for the invariants."""

    token: int = 0
    worker: str = ""
    deaths: int = 0


class Ended(NamedTuple):
    """Row of `finished_jobs` or `dead_jobs`."""

    xid: Xid
    deaths: int


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def create(self, members: int) -> Execute:
        """Insert the batch and its first members; it may be empty."""

        def insert(writer: Writer, row_id: int, row: Any) -> None:
            writer.insert(BATCHES, 1, Batch(writer.xid))
            for job in range(1, members + 1):
                writer.insert(MEMBERS, job, Member(writer.xid))
                writer.insert(INFLIGHT, job, Held())

        return Execute(Statement("", STATE, ids([1]), insert, reads=True))

    def claim(self, job: int) -> Execute:
        """Claim a member, if unclaimed or after its lease."""

        def claim(writer: Writer, row_id: int, row: Held) -> Claimed:
            writer.database.lapsed -= {row_id}
            writer.update(INFLIGHT, row_id, Held(row.token + 1, writer.process, row.deaths))
            return Claimed(row_id, row.token + 1)

        where = lambda at, row, lapsed: at == job and (not row.token or at in lapsed)  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, claim))

    def grow(self, claim: Claimed, process: str) -> Execute:
        """Add a member, if the claim of the member that adds it is current.

            INSERT INTO … SELECT … FROM inflight_jobs WHERE id = … AND fencing_token = … FOR KEY SHARE

        The lock holds back the finish, which deletes the row, but neither heartbeats nor claims.
        """

        def insert(writer: Writer, row_id: int, row: Any) -> bool:
            writer.insert(MEMBERS, 2, Member(writer.xid))
            writer.insert(INFLIGHT, 2, Held())
            return True

        if self.broken == "a member joins without a fence":
            return Execute(Statement("", STATE, ids([1]), insert, reads=True))
        is_unlocked = self.broken == "a member joins without a lock"
        where = self._is_current(claim, process)
        return Execute(Statement("", INFLIGHT, where, insert, shares_key=not is_unlocked, reads=is_unlocked))

    def finish(self, claim: Claimed, process: str) -> Execute:
        """Finish a member under its token."""
        return Execute(Statement("", INFLIGHT, self._is_current(claim, process), partial(_end, FINISHED)))

    def end_at_once(self, job: int, table: str) -> Execute:
        """Claim, run and end a member of no further interest."""
        return Execute(Statement("", INFLIGHT, ids([job]), partial(_end, table)))

    def revive(self, job: int) -> Execute:
        """Retry a dead member; its batch learns of it when it ends again."""

        def revive(writer: Writer, row_id: int, row: Ended) -> None:
            writer.delete(DEAD, row_id)
            writer.insert(INFLIGHT, row_id, Held(deaths=row.deaths))

        return Execute(Statement("", DEAD, ids([job]), revive))

    def touch(self, job: int) -> Execute:
        """Write in the member's transaction, which gives it its id."""
        return Execute(
            Statement("", STATE, ids([1]), lambda w, at, row: w.insert("effects", job, "row"), reads=True)
        )

    def tick(self) -> Execute:
        """Look, note and add in one statement, for the batches that its snapshot sees."""

        def tick(writer: Writer, row_id: int, last: Seen) -> tuple[bool, bool]:
            found = self._look(writer, last)
            changes = tuple(
                self._note(writer, job, writer.snapshot[MEMBERS, job], state) for job, state in found
            )
            batch = writer.snapshot.get((BATCHES, 1))
            calls = self.broken != "the callback commits after the mark"
            # The mark may be older than the snapshot in a mutant.
            is_seen = batch is not None and (self.broken != XMIN or Seen(writer.seen.xmin).sees(batch.xid))
            return self._add(writer, batch, changes, calls=calls) if batch and is_seen else (False, False)

        return Execute(Statement("", STATE, ids([1]), tick))

    def look(self) -> Execute:
        """Find members that joined or ended since the last snapshot, and remember this one."""
        return Execute(Statement("", STATE, ids([1]), lambda w, at, last: self._look(w, last)))

    def note_and_add(self, found: tuple[tuple[int, str], ...]) -> Execute:
        """Note and add in a later statement, which may see another batch."""

        def add(writer: Writer, row_id: int, row: Batch) -> None:
            changes = tuple(
                self._note(writer, job, writer.snapshot[MEMBERS, job], state) for job, state in found
            )
            self._add(writer, row, changes)

        return Execute(Statement("", BATCHES, ids([1]), add))

    def _look(self, writer: Writer, last: Seen) -> tuple[tuple[int, str], ...]:
        rows, now = writer.snapshot, writer.seen
        if self.broken == XMIN:
            now = Seen(now.xmin)
        writer.update(STATE, 1, now)
        found = []
        for (table, job), member in rows.items():
            if table != MEMBERS:
                continue
            ends = [(rows[place, job].xid, state) for place, state in ENDS.items() if (place, job) in rows]
            ends = [(xid, state) for xid, state in ends if now.sees(xid)]
            is_old = self.broken == "members that join later are not counted" and last.sees(
                rows[BATCHES, 1].xid
            )
            xids = [xid for xid, _ in ends] + [member.xid] * (not is_old)
            if any(not last.sees(xid) and now.sees(xid) for xid in xids):
                found.append((job, ends[0][1] if ends else "counted"))
        return tuple(found)

    def _note(self, writer: Writer, job: int, row: Member, state: str) -> tuple[int, int]:
        """Note a member's state; return the changes of both counts."""
        writer.update(MEMBERS, job, row._replace(state=state))
        before, after = ((each == "counted", each in ("counted", "dead")) for each in (row.state, state))
        if self.broken == "count ends, not members" and row.state != "new":
            before = (True, True)
        return after[0] - before[0], after[1] - before[1]

    def _add(
        self, writer: Writer, row: Batch, changes: tuple[tuple[int, int], ...], *, calls: bool = True
    ) -> tuple[bool, bool]:
        """Add to the counts, and stage callbacks at zero, each once by its key; return those that are due."""
        if self.broken == "an empty batch is not looked at" and not changes:
            return False, False
        pending = (row.pending or 0) + sum(change for change, _ in changes)
        unfinished = row.unfinished + sum(change for _, change in changes)
        has_key = self.broken != "the callback has no key"
        due = (pending <= 0 and not (row.completed and has_key), unfinished <= 0 and not row.succeeded)
        called = (row.completed + (due[0] and calls), row.succeeded + (due[1] and calls))
        writer.update(BATCHES, 1, Batch(row.xid, pending, unfinished, *called))
        return due

    def are_all_done(self) -> Execute:
        """Read whether each member of the batch has ended."""

        def read(writer: Writer, row_id: int, row: Batch) -> bool:
            rows = writer.snapshot
            return all((FINISHED, job) in rows for table, job in rows if table == MEMBERS)

        return Execute(Statement("", BATCHES, ids([1]), read, reads=True))

    def call_back(self, due: tuple[bool, bool] = (True, True)) -> Execute:
        """Stage callbacks in a transaction of their own."""

        def call(writer: Writer, row_id: int, row: Batch) -> None:
            completed, succeeded = row.completed + due[0], row.succeeded + due[1]
            writer.update(BATCHES, row_id, row._replace(completed=completed, succeeded=succeeded))

        return Execute(Statement("", BATCHES, ids([1]), call))

    def _is_current(self, claim: Claimed, process: str) -> Any:
        return lambda at, row, lapsed: (at, row.token, row.worker) == (claim.job, claim.token, process)


def _end(table: str, writer: Writer, row_id: int, row: Held) -> bool:
    writer.delete(INFLIGHT, row_id)
    writer.insert(table, row_id, Ended(writer.xid, row.deaths + (table == DEAD)))
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
    """End a member at once, whenever it is in flight; it may die."""

    def take(world: World, process: str) -> list[Any]:
        if (INFLIGHT, job) not in world.database.committed:
            return []
        return [FINISHED, *[DEAD] * bool(world.faults.get("death"))]

    def count_death(world: World, process: str) -> list[Any]:
        world.spend("death")
        return [None]

    def run() -> Commands:
        while True:
            table = yield Act("take the job", take)
            yield Begin(READ_COMMITTED)
            yield statements.end_at_once(job, table)
            if table == DEAD:
                yield Act("count the death", count_death)
            yield from commit(statements)

    return run


def user(statements: Statements, job: int) -> Program:
    """Retry a dead member, a bounded number of times."""

    def look(world: World, process: str) -> list[Any]:
        if not world.faults.get("retry") or (DEAD, job) not in world.database.committed:
            return []
        world.spend("retry")
        return [None]

    def run() -> Commands:
        while True:
            yield Act("look for the dead", look)
            yield statements.revive(job)

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
        found = [row.xid for (table, _), row in rows.items() if table in (MEMBERS, BATCHES, FINISHED, DEAD)]
        if statements.broken.startswith("each worker"):
            return []
        if any(not last.sees(xid) for xid in found):
            return [None]
        if not world.faults.get("vain"):
            return []
        world.spend("vain")
        return [None]

    def run() -> Commands:
        yield Lead()
        while True:
            yield Act("look for work", has_work)
            if statements.broken in ("the mark commits before the counts", "a later statement adds"):
                yield Begin(READ_COMMITTED)
                (found,) = yield statements.look()
                if statements.broken == "the mark commits before the counts":
                    yield Commit()
                    yield Begin(READ_COMMITTED)
                yield statements.note_and_add(found)
                yield Commit()
                continue
            (due,) = yield statements.tick()
            if statements.broken == "the callback commits after the mark" and any(due):
                yield statements.call_back(due)

    return run


def never_early(world: World) -> None:
    """Require that every member has ended before the batch completes, and finished before it succeeds."""
    rows = world.database.committed
    batch = rows.get((BATCHES, 1))
    if batch is None:
        return
    for table, job in rows:
        if table == MEMBERS:
            row = next(rows[place, job] for place in (INFLIGHT, FINISHED, DEAD) if (place, job) in rows)
            is_finished = (FINISHED, job) in rows
            if (batch.completed and not is_finished and not row.deaths) or (
                batch.succeeded and not is_finished
            ):
                raise Violation(f"the batch is called back before job {job} has ended")


def never_twice(world: World) -> None:
    """Require at most one callback of each kind."""
    batch = world.database.committed.get((BATCHES, 1))
    if batch is not None and max(batch.completed, batch.succeeded) > 1:
        raise Violation(f"the batch is called back {max(batch.completed, batch.succeeded)} times")


def is_called_back(world: World) -> bool:
    """Return True once the batch has completed, and succeeded unless a member is dead."""
    rows = world.database.committed
    batch = rows.get((BATCHES, 1))
    is_dead = any(table == DEAD for table, _ in rows)
    return batch is not None and batch.completed > 0 and (batch.succeeded > 0 or is_dead)


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
    if "retry" in faults:
        programs["user"] = user(statements, 2)
    programs |= {"application": application(statements, members), "leader": leader(statements)}
    if elsewhere:
        programs["elsewhere"] = bystander

    def start() -> World:
        return World(Database({(STATE, 1): Seen(Xid(1))}, {}, next_xid=Xid(2)), faults=dict(faults))

    return Scenario(
        programs,
        start,
        (never_early, never_twice),
        is_called_back,
        leases_expire,
        lambda atom: isinstance(atom, Claim),
        lambda name: name in ("leader", "worker 1"),
    )


_EMPTY, _TWO, _DEAD = "an empty batch", "a batch of two", "a member dies and is retried"
_SAME, _OTHER = "a member adds one in its own transaction", "a member adds one on another session"
_ZOMBIE, _LOST = "a member whose lease has expired adds one", "an answer is lost while a batch is counted"
_SCENARIOS = {
    _EMPTY: partial(batching, members=0, kill=1, vain=1),
    _TWO: partial(batching, members=2, kill=1, vain=1),
    _DEAD: partial(batching, members=2, death=1, retry=1),
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
        ("count ends, not members", _DEAD, _EARLY),
        ("a member joins without a fence", _ZOMBIE, _EARLY),
        ("a member joins without a lock", _ZOMBIE, _EARLY),
        ("the callback has no key", _TWO, _TWICE),
        ("each worker looks after its commit", _TWO, _TWICE),
        ("each worker looks before its commit", _TWO, _GOAL),
        ("the callback commits after the mark", _TWO, _GOAL),
        ("a later statement adds", _TWO, _EARLY),
        ("the mark commits before the counts", _TWO, _EARLY),
        ("an empty batch is not looked at", _EMPTY, _GOAL),
    )
)

BATCHING = Module("batches", _SCENARIOS, _MUTANTS)
