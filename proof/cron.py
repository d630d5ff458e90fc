"""Schedules: one transaction of the leader stages a job for each due tick and moves the schedule on.

There is one schedule. Time is a number; a line ticks whenever its period divides it. Refused schedules are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

from proof.atoms import Commit, Execute, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.statements import LAST_DELIVERY, PUSHED_UP_TO, STAGED, Lead
from proof.module import Module, Mutant
from proof.postgres import READ_COMMITTED, Blocked, Database, Rows, Statement, Writer

CRONS = "crons"
Steps = Generator[Atom, Any, None]
# Ticks older than this are missed.
_MISSED_AFTER = 1
# Jobs per transaction.
_ROOM = 2


class Schedule(NamedTuple):
    """Row of `crons`; `period` stands for the line, and `next` is None until computed."""

    period: int
    changed_at: int = 0
    next: int | None = None
    is_paused: bool = False

    def after(self, time: int) -> int:
        """Return the next tick."""
        return time - time % self.period + self.period

    def ticks(self, now: int, missed: str) -> tuple[tuple[int, ...], int]:
        """Choose ticks to stage, and the next one, as `drain.enqueuer.ticker` does."""
        first = self.next or self.after(self.changed_at)
        if first > now:
            return (), first
        ticks = tuple(range(first, now + 1, self.period))[:_ROOM]
        if missed != "all" and now - first >= _MISSED_AFTER:
            ticks = (now - now % self.period,)
        is_staged = missed != "none" or now - ticks[-1] <= _MISSED_AFTER
        return (ticks if is_staged else ()), self.after(ticks[-1])


class Job(NamedTuple):
    """Staged job: its tick, and the line that it is of."""

    tick: int
    period: int


def clock(world: World) -> int:
    """Return `clock_timestamp()`."""
    return cast("int", world.notes["clock"])


class Begin(NamedTuple):
    """BEGIN; returns `now()`."""

    def step(self, world: World, process: str) -> list[Any]:
        """Begin a transaction."""
        world.database.begin(process, READ_COMMITTED)
        return [clock(world)]


class AtClock(Execute):
    """A statement that uses `clock_timestamp()`."""

    def __init__(self, make: Callable[[int], Statement]) -> None:
        super().__init__(make(0))
        self.make = make

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Execute it, or wait for a lock."""
        self.statement = self.make(clock(world))
        return super().step(world, process)


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str, missed: str) -> None:
        self.broken = broken
        self.missed = missed

    def read_due(self, now: int) -> Execute:
        """Read and lock the schedule, if it is due and no other transaction is changing it."""

        def is_due(at: int, row: Schedule, lapsed: Collection[int]) -> bool:
            return not row.is_paused and (row.next is None or row.next <= now)

        return Execute(
            Statement(
                *("drain.tables.crons._READ_DUE", CRONS, is_due, lambda writer, at, row: row),
                reads=self.broken.startswith("read without a lock"),
                skips_locked=True,
            )
        )

    def stage(self, ticks: Collection[int]) -> Execute:
        """Insert a job for each tick; the schedule is joined again."""

        def stage(writer: Writer, row_id: int, row: Schedule) -> None:
            for tick in ticks:
                if row.is_paused:
                    raise Violation("a tick is void: the schedule is paused")
                if tick <= row.changed_at or tick % row.period:
                    raise Violation("a tick is void: the schedule has changed since")
                leader = int(writer.process[-1])
                writer.insert(
                    STAGED, tick * 100 + leader * 10 + _jobs_of(writer, tick), Job(tick, row.period)
                )

        return Execute(Statement("drain.tables.crons._STAGE", CRONS, ids([1]), stage, reads=True))

    def move_on(self, following: int) -> AtClock:
        """Set the next tick."""

        def move_on(now: int) -> Statement:
            def update(writer: Writer, row_id: int, row: Schedule) -> None:
                tick = row.after(now) if self.broken == "move on to the tick after the clock" else following
                writer.update(CRONS, row_id, row._replace(next=tick))

            return Statement("drain.tables.crons._MOVE_ON", CRONS, ids([1]), update)

        return AtClock(move_on)

    def pause(self) -> Execute:
        """Pause the schedule."""

        def pause(writer: Writer, row_id: int, row: Schedule) -> None:
            writer.update(CRONS, row_id, row._replace(is_paused=True))

        return Execute(
            Statement("drain.tables.crons._PAUSE", CRONS, lambda at, row, lapsed: not row.is_paused, pause)
        )

    def resume(self) -> AtClock:
        """Resume the schedule without its missed ticks."""

        def resume(now: int) -> Statement:
            def update(writer: Writer, row_id: int, row: Schedule) -> None:
                following = row.next if self.broken == "resume keeps the next tick" else None
                writer.update(CRONS, row_id, row._replace(is_paused=False, next=following, changed_at=now))

            return Statement(
                "drain.tables.crons._RESUME", CRONS, lambda at, row, lapsed: row.is_paused, update
            )

        return AtClock(resume)

    def put(self, period: int) -> AtClock:
        """Replace the schedule by another line; ticks of the earlier one are void."""

        def put(now: int) -> Statement:
            def update(writer: Writer, row_id: int, row: Schedule) -> None:
                following = row.next if self.broken == "another line keeps the next tick" else None
                writer.update(CRONS, row_id, row._replace(period=period, next=following, changed_at=now))

            return Statement("drain.tables.crons.PUT", CRONS, ids([1]), update)

        return AtClock(put)


def _jobs_of(writer: Writer, tick: int) -> int:
    jobs = writer.database.see(writer.process).items()
    return sum(row.tick == tick for (table, _), row in jobs if table == STAGED)


class Due(NamedTuple):
    """Wait until the schedule is due; by `drain.tables.crons._SECONDS_TO_NEXT_TICK`."""

    def step(self, world: World, process: str) -> list[Any]:
        """Look."""
        world.database.require_connection(process)
        row = world.database.committed[CRONS, 1]
        is_due = not row.is_paused and (row.next is None or row.next <= clock(world))
        return [None] if is_due else []


def leader(statements: Statements) -> Program:
    """Lead: stage jobs of due ticks."""
    broken = statements.broken

    def run() -> Steps:
        yield Lead(locks="without the lock" not in broken)
        while True:
            yield Due()
            now = yield Begin()
            for row in (yield statements.read_due(now)):
                ticks, following = row.ticks(now, statements.missed)
                if broken == "move on, then stage":
                    yield statements.move_on(following)
                    yield Commit(is_durable=False)
                    yield Begin()
                if ticks:
                    yield statements.stage(ticks)
                if broken == "stage, then move on":
                    yield Commit(is_durable=False)
                    yield Begin()
                if broken != "move on, then stage":
                    yield statements.move_on(following)
            yield Commit(is_durable=False)

    return run


def operator(*changes: Execute) -> Program:
    """Change the schedule, each time in a transaction of its own."""

    def run() -> Steps:
        for place in range(len(changes)):
            yield Begin()
            yield changes[place]
            yield Commit()

    return run


def one_job_per_tick(world: World) -> None:
    """Require that no tick has two jobs."""
    ticks = [row.tick for (table, _), row in world.database.committed.items() if table == STAGED]
    if len(ticks) != len(set(ticks)):
        raise Violation("a tick has two jobs")


def no_tick_skipped(missed: str, world: World) -> None:
    """Require a job of the last tick before the next one; with `all`, of each tick since the last change."""
    rows: Rows = world.database.committed
    schedule = rows[CRONS, 1]
    if schedule.next is None or missed == "none":
        return
    ticks = {row.tick for (table, _), row in rows.items() if table == STAGED}
    passed = range(schedule.after(schedule.changed_at), schedule.next, schedule.period)
    wanted = passed if missed == "all" else passed[-1:]
    if not ticks.issuperset(wanted):
        raise Violation("a tick has no job")


def _is_up_to_date(end: int, world: World) -> bool:
    row = world.database.committed[CRONS, 1]
    return not row.is_paused and row.next is not None and row.next > end


def _time_passes(end: int, world: World) -> Iterator[tuple[str, bool, World]]:
    if clock(world) < end:
        after = world.copy()
        after.notes = {"clock": clock(world) + 1}
        yield f"it is {clock(after)}", False, after


def _start(faults: Mapping[str, int]) -> World:
    rows = {(CRONS, 1): Schedule(2)}
    numbers = {LAST_DELIVERY: 0, PUSHED_UP_TO: 0}
    database = Database(rows, numbers, keeps_history="crash" in faults)
    if "crash" in faults:
        database.flushed = (rows, numbers)
    return World(database, (), dict(faults), notes={"clock": 0})


def ticking(
    broken: str, *, missed: str = "last", leaders: int = 1, changes: str = "", end: int = 6, **faults: int
) -> Scenario:
    """Let time pass while leaders tick, are replaced, and operators change the schedule."""
    statements = Statements(broken, missed)
    programs = {f"leader {number}": leader(statements) for number in range(1, leaders + 1)}
    if changes == "pauses":
        programs["operator"] = operator(statements.pause(), statements.resume())
    if changes == "another line":
        programs["operator"] = operator(statements.put(3))
    return Scenario(
        programs,
        partial(_start, faults),
        (one_job_per_tick, partial(no_tick_skipped, missed)),
        partial(_is_up_to_date, end),
        partial(_time_passes, end),
        lambda atom: False,
        lambda name: name.startswith("leader"),
    )


_SCENARIOS = {
    "leaders are killed": partial(ticking, leaders=2, kill=2),
    "two leaders": partial(ticking, leaders=2, end=2, kill=1),
    "leaders are killed, all ticks count": partial(ticking, missed="all", leaders=2, kill=2),
    "leaders are killed, missed ticks do not count": partial(ticking, missed="none", leaders=2, kill=2),
    "an answer is lost": partial(ticking, missed="all", leaders=2, answer=2),
    "PostgreSQL loses the last commits": partial(ticking, missed="all", leaders=2, end=4, crash=1),
    "a pause": partial(ticking, missed="all", changes="pauses", kill=1),
    "another line": partial(ticking, missed="all", changes="another line", kill=1),
}
_TWO, _NONE, _VOID = "has two jobs", "has no job", "a tick is void"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("stage, then move on", "leaders are killed", _TWO),
        ("read without a lock, and lead without the lock", "two leaders", _TWO),
        ("move on, then stage", "leaders are killed", _NONE),
        ("move on to the tick after the clock", "leaders are killed, all ticks count", _NONE),
        ("read without a lock", "a pause", _VOID),
        ("resume keeps the next tick", "a pause", _VOID),
        ("another line keeps the next tick", "another line", _NONE),
    )
)
_HARMLESS_ALONE = (Mutant("lead without the lock", "two leaders", ""),)
CRON = Module("cron", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
