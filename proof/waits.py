"""Waits and events: both sides insert a row, and the leader alone matches them.

A waiting job's row has no lease. Each look compares the rows that the last snapshot did not see: new waits with all
events, and new events with all waits. Only then does it look at deadlines, in the same statement, so that an event
wins. Neither side locks or reads anything of the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Commit, Execute, RollBack, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.flows.leader import MARK, Lead
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    ConnectionLostError,
    Database,
    DeadlockError,
    SerializationFailureError,
    Statement,
    UniqueViolationError,
    Writer,
    Xid,
)

Commands = Generator[Atom, Any, Any]
INFLIGHT, FINISHED, STEPS, WAITS, EVENTS, ONE = (
    "inflight_jobs",
    "finished_jobs",
    "job_steps",
    "job_waits",
    "job_events",
    "one row",
)
NAMES = "advisory locks of names"
# Without a lease: in a list; next_run_at in the year 9999; next_run_at now.
DUE, CLAIMED, PARKED, RESUMED = "due", "claimed", "parked", "resumed"
# Numbers in `lapsed`.
LEASE, DEADLINE = 1, 2
TOKENLESS, AGAIN = "park without the token", "park a job that is due again"
TWO_PARTS = "the lease is given back before the wait"
LOCKS, OVERWRITES = "both sides lock the name", "both sides lock the name, and a timeout overwrites"
OLD, LOOKS = "both sides lock the name, under repeatable read", "both sides look after they insert"
BY_WORKER, EARLY, FORGETS = (
    "the worker decides the timeout",
    "resume before the outcome",
    "forget waits whose jobs are locked",
)
APART = "the job resumes in another transaction"


class Held(NamedTuple):
    """Row of `inflight_jobs`."""

    state: str = DUE
    token: int = 0
    worker: str = ""


class Wait(NamedTuple):
    """Row of `job_waits`; the token is that of the claim that waits."""

    xid: Xid
    token: int


class Waits:
    """The statements, at most one of them broken; `looks`: each side finds the other by itself."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.locks = broken.startswith(LOCKS)
        self.looks = self.locks or broken == LOOKS

    def claim(self, worker: str) -> Execute:
        """Claim the job, if unclaimed or after its lease, or again after a lost answer."""

        def claim(writer: Writer, row_id: int, row: Held) -> int:
            writer.database.lapsed -= {LEASE}
            writer.update(INFLIGHT, row_id, Held(CLAIMED, row.token + 1, writer.process))
            return row.token + 1

        return Execute(Statement("drain.tables.claims.CLAIM", INFLIGHT, _is_free(worker), claim))

    def outcome(self) -> Execute:
        """Read the recorded outcome of the wait."""
        sql = "drain.tables.steps.READ"
        return Execute(Statement(sql, STEPS, ids([1]), lambda w, at, row: row, reads=True))

    def park(self, token: int, worker: str) -> Execute:
        """Give the lease back and insert the wait, in one statement under the claim's token."""

        def park(writer: Writer, row_id: int, row: Held) -> bool:
            writer.update(INFLIGHT, row_id, row._replace(state=PARKED))
            if self.broken != TWO_PARTS:
                writer.insert_or_update(WAITS, row_id, Wait(writer.xid, token), lambda row: True)
            return True

        def is_current(at: int, row: Held, lapsed: Any) -> bool:
            may_wait = row.state in (DUE, CLAIMED) or self.broken == AGAIN
            return may_wait and (self.broken == TOKENLESS or _is_of(row, token, worker))

        return Execute(Statement("drain.tables.waits.PARK", INFLIGHT, is_current, park))

    def wait(self, token: int) -> Execute:
        """Insert the wait alone."""
        insert = lambda w, at, row: w.insert_or_update(WAITS, 1, Wait(w.xid, token), lambda row: True)  # noqa: E731
        return Execute(Statement("", INFLIGHT, ids([1]), insert))

    def emit(self) -> Execute:
        """Insert an event, in the application's transaction."""
        insert = lambda w, at, row: w.insert(EVENTS, 1, w.xid)  # noqa: E731
        return Execute(Statement("schema.sql: drain_emit", ONE, ids([1]), insert, reads=True))

    def lock_name(self) -> Execute:
        """Take the advisory lock of the event's name until the transaction ends."""
        return Execute(Statement("", NAMES, ids([1]), lambda writer, at, row: None))

    def find(self, table: str) -> Execute:
        """Read the other side's rows."""
        return Execute(Statement("", table, lambda *_: True, lambda w, at, row: at, reads=True))

    def match(self) -> Execute:
        """End the wait, if it may end, and remember the snapshot.

        A new leader, which remembers none, uses `drain.tables.waits.FIRST_MATCH`.
        """

        def match(writer: Writer, row_id: int, row: Any) -> None:
            outcome = self._outcome(writer)
            is_locked = writer.database.owner((INFLIGHT, 1), writer.process) is not None
            if outcome and not is_locked:
                self._decide(writer, outcome)
            if not (outcome and is_locked) or self.broken == FORGETS:
                writer.update(*MARK, writer.seen)

        return Execute(Statement("drain.tables.waits.MATCH", ONE, ids([1]), match, reads=True))

    def _outcome(self, writer: Writer) -> str:
        """Return how the wait ends by the statement's snapshot, or nothing."""
        rows = writer.snapshot
        wait, event, last = rows.get((WAITS, 1)), rows.get((EVENTS, 1)), rows.get(MARK)
        is_over = DEADLINE in writer.database.lapsed and self.broken != BY_WORKER
        if wait is None:
            return ""
        is_new = (last is None or not last.sees(wait.xid)) and self.broken != "new waits are not compared"
        is_recent = (
            event is not None
            and (last is None or not last.sees(event))
            and self.broken != "new events are not compared"
        )
        if (STEPS, 1) in rows and is_new and self.broken != "decide a wait again":
            return "known"
        if self.broken == "deadlines come first" and is_over:
            return "timeout"
        if event is not None and (is_new or is_recent or is_over):
            return "event"
        return "timeout" if is_over else ""

    def _decide(self, writer: Writer, outcome: str) -> None:
        rows = writer.database.see(writer.process)
        steps = rows.get((STEPS, 1), ())
        if not steps or self.broken in ("decide a wait again", OVERWRITES):
            late = outcome == "timeout" and (EVENTS, 1) in writer.snapshot
            writer.update(STEPS, 1, (*steps, f"{outcome} overlooking the event" if late else outcome))
        if self.broken not in ("decide a wait again", OVERWRITES):
            writer.update(WAITS, 1, None)
        job = rows.get((INFLIGHT, 1))
        if self.broken != APART and job is not None and job.state == PARKED:
            writer.update(INFLIGHT, 1, job._replace(state=RESUMED))

    def decide(self, outcome: str) -> Execute:
        """Decide the wait outside of the leader."""
        where = lambda at, row, lapsed: outcome != "timeout" or DEADLINE in lapsed  # noqa: E731
        return Execute(Statement("", WAITS, where, lambda w, at, row: self._decide(w, outcome)))

    def resume(self, state: str = RESUMED) -> Execute:
        """Make the waiting job due again, or deliver it."""
        before = PARKED if state == RESUMED else RESUMED
        update = lambda w, at, row: w.update(INFLIGHT, at, row._replace(state=state))  # noqa: E731
        return Execute(Statement("", INFLIGHT, lambda at, row, lapsed: row.state == before, update))

    def finish(self, token: int, worker: str) -> Execute:
        """Finish the job under its token."""

        def finish(writer: Writer, row_id: int, row: Held) -> None:
            writer.delete(INFLIGHT, row_id)
            writer.insert(FINISHED, row_id, "finished")

        return Execute(Statement("", INFLIGHT, lambda at, row, lapsed: _is_of(row, token, worker), finish))


def _is_of(row: Held, token: int, worker: str) -> bool:
    return (row.token, row.worker) == (token, worker)


def _is_free(worker: str) -> Callable[[int, Held, Any], bool]:
    return lambda at, row, lapsed: (
        row.state == DUE or (row.state == CLAIMED and (LEASE in lapsed or row.worker == worker))
    )


def worker(waits: Waits, name: str) -> Program:  # noqa: C901
    """Run the job until it waits; once it is due again, go on with the outcome."""

    def is_due(world: World, process: str) -> list[Any]:
        row = world.database.committed.get((INFLIGHT, 1))
        return [None] if row is not None and _is_free(name)(1, row, world.database.lapsed) else []

    def run() -> Commands:
        while True:
            yield Act("wait for the job", is_due)
            for token in (yield waits.claim(name)):
                found = yield waits.outcome()
                if found:
                    yield waits.finish(token, name)
                elif waits.looks:
                    yield from park_and_look(token)
                else:
                    yield from park(token)

    def park(token: int) -> Commands:
        try:
            yield waits.park(token, name)
        except ConnectionLostError:
            # The statement may have been executed.
            yield waits.park(token, name)
        if waits.broken == TWO_PARTS:
            yield waits.wait(token)

    def park_and_look(token: int) -> Commands:
        yield Begin(READ_COMMITTED)
        if waits.locks:
            yield waits.lock_name()
        yield waits.park(token, name)
        if (yield waits.find(EVENTS)):
            yield waits.decide("event")
        yield Commit()

    return run


def emitter(waits: Waits) -> Program:
    """Emit an event in a transaction."""

    def run() -> Commands:
        while True:
            yield Begin(REPEATABLE_READ if waits.broken == OLD else READ_COMMITTED)
            try:
                yield waits.find(ONE)
                if waits.locks:
                    yield waits.lock_name()
                yield waits.emit()
                if waits.looks and (yield waits.find(WAITS)):
                    yield waits.decide("event")
                yield Commit()
                return
            except UniqueViolationError:
                # The commit whose answer was lost.
                yield RollBack()
                return
            except (DeadlockError, SerializationFailureError):
                yield RollBack()

    return run


def leader(waits: Waits) -> Program:  # noqa: C901
    """Match waits and events whenever there is something new, and deliver the jobs that are due again."""

    def has_work(world: World, process: str) -> list[Any]:
        rows, lapsed = world.database.committed, world.database.lapsed
        wait, event, last, job = (rows.get(key) for key in ((WAITS, 1), (EVENTS, 1), MARK, (INFLIGHT, 1)))
        if job is not None and job.state == RESUMED:
            return ["deliver"]
        if waits.looks:
            return ["time out"] * (wait is not None and DEADLINE in lapsed and (STEPS, 1) not in rows)
        if waits.broken == BY_WORKER and DEADLINE in lapsed and job is not None and job.state == PARKED:
            return ["resume"]
        xids = (wait and wait.xid, event)
        is_new = any(xid is not None and (last is None or not last.sees(xid)) for xid in xids)
        is_over = wait is not None and DEADLINE in lapsed and waits.broken != BY_WORKER
        return ["match"] if is_new or is_over else []

    def run() -> Commands:
        yield Lead()
        while True:
            work = yield Act("look for work", has_work)
            if work == "deliver":
                yield waits.resume(DUE)
            elif work == "time out":
                yield waits.decide("timeout")
            elif work == "resume":
                yield waits.resume()
            else:
                yield from match()

    def match() -> Commands:
        if waits.broken == EARLY:
            yield waits.resume()
        if waits.broken == "deadlines by an earlier look" and not (yield waits.find(EVENTS)):
            yield waits.decide("timeout")
        yield waits.match()
        if waits.broken == APART and (yield waits.outcome()):
            yield waits.resume()

    return run


def operator(waits: Waits) -> Program:
    """Let a waiting job run now, or only lock it for a while."""

    def run() -> Commands:
        yield Begin(READ_COMMITTED)
        yield waits.resume()
        if (yield Act("confirm", lambda world, process: [True, False])):
            yield Commit()
        else:
            yield RollBack()

    return run


def one_outcome(world: World) -> None:
    """Require that a wait is decided once."""
    outcomes = world.database.committed.get((STEPS, 1), ())
    if len(outcomes) > 1:
        raise Violation(f"a wait ends as {' and as '.join(outcomes)}")


def no_event_is_overlooked(world: World) -> None:
    """Require that no wait times out under a snapshot that sees its event."""
    if "timeout overlooking the event" in world.database.committed.get((STEPS, 1), ()):
        raise Violation("a wait times out although its event was there")


def a_parked_job_waits(world: World) -> None:
    """Require that a parked job has a wait, which the leader can find."""
    rows = world.database.committed
    job = rows.get((INFLIGHT, 1))
    if job is not None and job.state == PARKED and (WAITS, 1) not in rows:
        raise Violation("a job is parked without a wait")


def resumes_with_an_outcome(world: World) -> None:
    """Require that a waiting job becomes due together with its outcome."""
    rows = world.database.committed
    job = rows.get((INFLIGHT, 1))
    if (WAITS, 1) in rows and (STEPS, 1) not in rows and (job is None or job.state != PARKED):
        raise Violation("a waiting job resumes without an outcome")


def the_current_claim_parks(world: World) -> None:
    """Require that no outdated claim takes the job from its worker."""
    rows = world.database.committed
    job, wait = rows.get((INFLIGHT, 1)), rows.get((WAITS, 1))
    if job is not None and job.state == PARKED and wait is not None and wait.token != job.token:
        raise Violation("an outdated claim parks the job")


def _clocks(world: World) -> Iterator[tuple[str, bool, World]]:
    """Let the deadline and a lease pass, once each."""
    job = world.database.committed.get((INFLIGHT, 1))
    if world.faults.get("deadline"):
        after = world.copy()
        after.spend("deadline")
        after.database.lapsed |= {DEADLINE}
        yield "the deadline passes", True, after
    if world.faults.get("expiry") and job is not None and job.state == CLAIMED:
        after = world.copy()
        after.spend("expiry")
        after.database.lapsed |= {LEASE}
        yield "the lease expires, or the worker has died", True, after


_INVARIANTS = (one_outcome, no_event_is_overlooked, a_parked_job_waits, the_current_claim_parks)


def waiting(broken: str, *, workers: int = 1, is_moved: bool = False, **faults: int) -> Scenario:
    """Let a job wait for an event that is emitted at the same time."""
    waits = Waits(broken)
    rows: dict[tuple[str, int], object] = {(INFLIGHT, 1): Held(), (ONE, 1): "", (NAMES, 1): "free"}
    names = [f"worker {number}" for number in range(1, workers + 1)]
    return Scenario(
        {
            **{name: worker(waits, name) for name in names},
            "application": emitter(waits),
            "leader": leader(waits),
            **({"operator": operator(waits)} if is_moved else {}),
        },
        lambda: World(Database(rows, {}, next_xid=Xid(2)), faults=dict(faults)),
        _INVARIANTS if is_moved else (*_INVARIANTS, resumes_with_an_outcome),
        lambda world: (FINISHED, 1) in world.database.committed,
        _clocks,
        lambda atom: False,
        lambda name: name == "leader",
    )


_EVENT, _TIMEOUT = "an event meets its wait", "an event meets its wait and the deadline"
_LOST = "an answer is lost while a job waits"
_STALLED, _MOVED = "a lease expires before its job waits", "a waiting job is locked or moved"
_SCENARIOS: dict[str, Callable[[str], Scenario]] = {
    _EVENT: partial(waiting, kill=1),
    _TIMEOUT: partial(waiting, kill=1, deadline=1),
    _LOST: partial(waiting, deadline=1, answer=1),
    _STALLED: partial(waiting, workers=2, expiry=1, deadline=1),
    _MOVED: partial(waiting, is_moved=True, kill=1),
}
_GOAL, _TWICE, _LATE, _EARLY = "out of reach", "a wait ends as", "its event was there", "without an outcome"
_STUCK, _OUTDATED = "parked without a wait", "an outdated claim"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        (LOOKS, _EVENT, _GOAL),
        (OLD, _EVENT, _GOAL),
        ("new waits are not compared", _EVENT, _GOAL),
        ("new events are not compared", _EVENT, _GOAL),
        (BY_WORKER, _TIMEOUT, _EARLY),
        (EARLY, _EVENT, _EARLY),
        ("decide a wait again", _TIMEOUT, _TWICE),
        (OVERWRITES, _TIMEOUT, _TWICE),
        ("deadlines come first", _TIMEOUT, _LATE),
        ("deadlines by an earlier look", _TIMEOUT, _LATE),
        (APART, _EVENT, _STUCK),
        (TWO_PARTS, _EVENT, _STUCK),
        (TOKENLESS, _STALLED, _OUTDATED),
        (FORGETS, _MOVED, _GOAL),
    )
)
_HARMLESS_ALONE = (
    Mutant("both sides lock the name, under read committed", _TIMEOUT, ""),
    # The leader finds the step.
    Mutant(AGAIN, _LOST, ""),
)

WAITING = Module("waits", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
