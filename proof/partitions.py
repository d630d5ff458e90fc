"""Partitions of ready jobs, which take turns and are truncated once they are empty.

Truncation is safe in any turn, so the clock is left out: a job goes to any partition, and any may be the idle one. Two
of the three suffice. Workers, delivery numbers and Redis are left out too: a moved job stays in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Any

from proof.atoms import Act, Begin, Commit, Execute, LockTables, RollBack, Select, Truncate, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.statements import INFLIGHT, LAST_DELIVERY, PUSHED_UP_TO, REQUESTS, Job, Lead
from proof.module import Module, Mutant
from proof.postgres import (
    EXCLUSIVE,
    READ_COMMITTED,
    REPEATABLE_READ,
    SHARED,
    Database,
    LockNotAvailableError,
    Rows,
    SerializationFailureError,
    Statement,
    Writer,
)

READY = ("staged_jobs_ready_0", "staged_jobs_ready_1")
DEAD = "dead_jobs"
_PLACES = (*READY, INFLIGHT, DEAD)
# In the notes: partitions that have grown since they were last truncated.
_GROWN = "grown"

Steps = Generator[Atom, Any, Any]


class _Stage(Execute):
    """Insert a job into a partition, which grows even if the transaction rolls back."""

    def __init__(self, job: int, turn: int) -> None:
        def insert(writer: Writer, row_id: int, row: Any) -> None:
            writer.insert(READY[turn], row_id, "staged")
            writer.update(REQUESTS, row_id, "staged")

        self.turn = turn
        is_new = lambda at, row, lapsed: at == job and row == "new"  # noqa: E731
        super().__init__(Statement("", REQUESTS, is_new, insert, tables=(READY[turn],)))

    def step(self, world: World, process: str) -> Any:
        """Insert."""
        answers = super().step(world, process)
        if isinstance(answers, list):
            world.notes = {_GROWN: tuple(sorted({*_grown(world), self.turn}))}
        return answers


def application(job: int, isolation: str = READ_COMMITTED) -> Program:
    """Stage a job, and commit or roll back, in a transaction of any length."""

    def run() -> Steps:
        # The second of two jobs alike may go elsewhere.
        turn = yield Act("whose turn", lambda world, process: list(range(min(job, len(READY)))))
        yield Begin(isolation)
        yield _Stage(job, turn)
        is_committed = yield Act("decide", lambda world, process: [True, False])
        yield Commit() if is_committed else RollBack()

    return run


def canceller(job: int) -> Program:
    """Bury a staged job, and commit or roll back."""

    def bury(table: str, writer: Writer, row_id: int, row: Any) -> bool:
        writer.delete(table, row_id)
        writer.insert(DEAD, row_id, "cancelled")
        return True

    def run() -> Steps:
        yield Begin(READ_COMMITTED)
        for table in READY:
            yield Execute(
                Statement(
                    "drain.tables.cancellations._CANCEL_STAGED",
                    *(table, ids([job]), partial(bury, table)),
                    tables=READY,
                )
            )
        is_committed = yield Act("decide", lambda world, process: [True, False])
        yield Commit() if is_committed else RollBack()

    return run


def report(broken: str) -> Program:
    """Count the jobs of all tables in one snapshot, by several statements."""

    def run() -> Steps:
        yield Begin(REPEATABLE_READ)
        if broken == "take the snapshot before the lock":
            yield Select("a query", lambda rows: None)
        if broken != "count without a lock":
            yield LockTables(READY)
        committed = yield Select("count requests", lambda rows: _ids(rows, (REQUESTS,)))
        staged = yield Select("count staged_jobs", lambda rows: _ids(rows, READY), READY)
        others = yield Select("drain.tables.changes._COUNT", lambda rows: _ids(rows, (INFLIGHT, DEAD)))
        yield Act("compare", lambda world, process: _compare(committed, staged + others))
        yield Commit()

    return run


def _ids(rows: Rows, tables: Collection[str]) -> tuple[int, ...]:
    """Return the ids of jobs in these tables; requests count once they are staged."""
    return tuple(sorted(at for (table, at), row in rows.items() if table in tables and row != "new"))


def _compare(committed: tuple[int, ...], counted: tuple[int, ...]) -> list[Any]:
    if sorted(counted) != list(committed):
        raise Violation(f"a snapshot of jobs {committed} counts {counted}")
    return [None]


def leader(broken: str) -> Program:
    """Lead: move jobs, one at a time, and truncate the idle partition."""

    def choose(world: World, process: str) -> list[Any]:
        has_rows = any(table in READY for table, _ in world.database.committed)
        return ["move"] * has_rows + ["truncate"] * bool(world.notes[_GROWN])

    def run() -> Steps:
        yield Lead()
        gives_up = False
        while True:
            work = yield Act("choose", choose)
            if work == "move":
                yield from _move()
            elif not gives_up:
                is_locked = yield from _truncate(broken)
                gives_up = is_locked and broken == "give up if the partition is in use"

    return run


def _move() -> Steps:
    yield Begin(REPEATABLE_READ)
    found = yield Select(
        "drain.tables.lanes.READ_DUE",
        lambda rows: min(((at, READY.index(table)) for table, at in rows if table in READY), default=None),
        READY,
    )
    if found is None:
        yield RollBack()
        return
    job, turn = found

    def move(writer: Writer, row_id: int, row: Any) -> None:
        writer.delete(READY[turn], row_id)
        writer.insert(INFLIGHT, row_id, Job(row_id))

    try:
        yield Execute(Statement("drain.tables.staged.MOVE", READY[turn], ids([job]), move, tables=READY))
        yield Commit(is_durable=False)
    except SerializationFailureError:
        yield RollBack()


def _truncate(broken: str) -> Steps:
    """Follow `schema.sql: drain_truncate_if_empty`; return whether the partition is in use."""
    idle = yield Act("drain.tables.staged.TRUNCATE_IDLE", lambda world, process: list(_grown(world)))
    partition = READY[idle]
    look = Select("look", lambda rows: not _ids(rows, (partition,)), (partition,))
    yield Begin(REPEATABLE_READ if broken == "check in an old snapshot" else READ_COMMITTED)
    is_empty = True if broken == "trust the turn" else (yield look)
    try:
        if is_empty and broken != "let TRUNCATE wait for the lock":
            mode = SHARED if broken == "lock in a mode that lets others stage" else EXCLUSIVE
            yield LockTables((partition,), mode, waits=broken == "wait for the lock")
        if is_empty and broken == "release the lock before the truncation":
            is_empty = yield look
            yield Commit()
            yield Begin(READ_COMMITTED)
        elif is_empty and broken == "truncate in several commands":
            # The client may stop after any of them, while its connection stays.
            stops = yield Act("stop or continue", lambda world, process: [True, False])
            if stops:
                yield Act("stopped", lambda world, process: [])
        if is_empty and broken not in (
            "check before the lock",
            "let TRUNCATE wait for the lock",
            "trust the turn",
        ):
            is_empty = yield look
    except LockNotAvailableError:
        yield RollBack()
        return True
    if is_empty:
        yield Truncate(partition)
    yield Act("Commit", lambda world, process: _commit(world, process, idle if is_empty else None))
    return False


def _grown(world: World) -> tuple[int, ...]:
    grown: Any = world.notes[_GROWN]
    return tuple(grown)


def _commit(world: World, process: str, truncated: int | None) -> list[Any]:
    world.database.commit(process, is_durable=True)
    world.notes = {_GROWN: tuple(turn for turn in _grown(world) if turn != truncated)}
    return [None]


def in_one_place(world: World) -> None:
    """Require each committed job in exactly one table."""
    rows = world.database.committed
    for table, job in rows:
        if table == REQUESTS and rows[table, job] == "staged":
            places = [place for place in _PLACES if (place, job) in rows]
            if len(places) != 1:
                raise Violation(f"job {job} is in {' and '.join(places) or 'none of the tables'}")


def _all_moved_and_truncated(world: World) -> bool:
    return not world.notes[_GROWN] and not any(table in READY for table, _ in world.database.committed)


def _start(jobs: int, faults: Mapping[str, int]) -> World:
    rows = {(REQUESTS, job): "new" for job in range(1, jobs + 1)}
    database = Database(rows, {LAST_DELIVERY: 0, PUSHED_UP_TO: 0})
    return World(database, faults=dict(faults), notes={_GROWN: ()})


def turns(
    broken: str,
    *,
    jobs: int = 1,
    leaders: int = 1,
    isolation: str = READ_COMMITTED,
    cancels: bool = False,
    counts: bool = False,
    **faults: int,
) -> Scenario:
    """Applications stage, the leader moves and truncates; perhaps a cancellation and a report."""
    programs = {f"application {job}": application(job, isolation) for job in range(1, jobs + 1)}
    programs |= {f"leader {number}": leader(broken) for number in range(1, leaders + 1)}
    programs |= {"canceller": canceller(1)} if cancels else {}
    programs |= {"report": report(broken)} if counts else {}
    return Scenario(
        programs,
        partial(_start, jobs, faults),
        (in_one_place,),
        _all_moved_and_truncated,
        lambda world: iter(()),
        lambda atom: False,
        lambda name: name.startswith("leader"),
    )


_SCENARIOS: Mapping[str, Callable[[str], Scenario]] = {
    "a job is staged": turns,
    "two applications": partial(turns, jobs=2),
    "at repeatable read": partial(turns, jobs=2, isolation=REPEATABLE_READ),
    "a job is cancelled": partial(turns, cancels=True),
    "a report counts all tables": partial(turns, counts=True),
    "a job is cancelled during a report": partial(turns, cancels=True, counts=True),
    "two jobs are counted": partial(turns, jobs=2, counts=True),
    "leaders are killed": partial(turns, leaders=2, kill=2),
    "an answer is lost": partial(turns, leaders=2, answer=1),
}
_NONE, _COUNTS, _GOAL = "is in none", "a snapshot of jobs", "out of reach"
_STAGING = "a job is staged"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("trust the turn", _STAGING, _NONE),
        ("check before the lock", _STAGING, _NONE),
        ("check in an old snapshot", _STAGING, _NONE),
        ("lock in a mode that lets others stage", _STAGING, _NONE),
        ("let TRUNCATE wait for the lock", _STAGING, _NONE),
        ("release the lock before the truncation", "two applications", _NONE),
        ("take the snapshot before the lock", "a report counts all tables", _COUNTS),
        ("count without a lock", "a report counts all tables", _COUNTS),
        ("truncate in several commands", _STAGING, _GOAL),
        ("give up if the partition is in use", _STAGING, _GOAL),
    )
)
_HARMLESS_ALONE = (Mutant("wait for the lock", _STAGING, ""),)

PARTITIONS = Module("partitions", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
