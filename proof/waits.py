"""Waits and events, a design: both sides insert a row, and the leader alone matches them.

A waiting job's row has no lease. Each tick compares the rows that the last snapshot did not see: new waits with all
events, and new events with all waits. Only then does it look at deadlines, in the same statement, so that an
event wins. Neither side locks or reads anything of the other's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Commit, Execute, RollBack, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.flows.leader import Lead
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    Database,
    DeadlockError,
    Seen,
    SerializationFailureError,
    Statement,
    UniqueViolationError,
    Writer,
    Xid,
)

Commands = Generator[Atom, Any, Any]
INFLIGHT, FINISHED, WAITS, EVENTS, STATE = (
    "inflight_jobs",
    "finished_jobs",
    "job_waits",
    "events",
    "drain_state",
)
NAMES = "advisory locks of names"
RUNNING, PARKED = "running", "parked"


class Wait(NamedTuple):
    """Row of `job_waits`; `outcomes` has at most one, and `late` an event that a timeout overlooked."""

    xid: Xid
    outcomes: tuple[str, ...] = ()
    late: bool = False


class Waits:
    """The statements, at most one of them broken; `way`: how both sides find each other."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.locks = broken.startswith("both sides lock the name")
        self.looks = self.locks or broken == "both sides look after they insert"

    def outcome(self) -> Execute:
        """Read the stored outcome of the wait."""
        return Execute(Statement("", WAITS, ids([1]), lambda w, at, row: row.outcomes, reads=True))

    def park(self) -> Execute:
        """Give the lease back and insert the wait, in one statement under the claim's token.

        WITH parked AS (UPDATE inflight_jobs SET lease_expires_at = NULL, next_run_at = 'infinity'
            WHERE id = ... AND fencing_token = ... AND salt ... AND claimed_by = ... RETURNING id)
        INSERT INTO job_waits (job_id, name, deadline, wait_xid) SELECT id, ..., pg_current_xact_id() FROM parked
        """

        def park(writer: Writer, row_id: int, row: str) -> None:
            writer.update(INFLIGHT, row_id, PARKED)
            writer.insert(WAITS, row_id, Wait(writer.xid))

        return Execute(Statement("", INFLIGHT, lambda at, row, lapsed: row == RUNNING, park))

    def emit(self) -> Execute:
        """Insert an event, in the application's transaction."""
        return Execute(
            Statement("", STATE, ids([1]), lambda w, at, row: w.insert(EVENTS, 1, w.xid), reads=True)
        )

    def lock_name(self) -> Execute:
        """Take the advisory lock of the event's name until the transaction ends."""
        return Execute(Statement("", NAMES, ids([1]), lambda writer, at, row: None))

    def find(self, table: str) -> Execute:
        """Read the other side's rows."""
        return Execute(Statement("", table, lambda *_: True, lambda w, at, row: at, reads=True))

    def match(self) -> Execute:
        """Decide waits, and remember this statement's snapshot.

            SELECT wait.*, (SELECT payload FROM events WHERE events.name = wait.name ORDER BY event_xid, id LIMIT 1)
            FROM job_waits AS wait WHERE outcome IS NULL AND (wait_xid is new OR deadline <= now()
                OR name IN (SELECT name FROM events WHERE event_xid is new))

        An event is the outcome, otherwise a deadline that has passed; outcome and next_run_at = now() are one commit.
        """

        def match(writer: Writer, row_id: int, last: Seen) -> None:
            writer.update(STATE, 1, writer.seen)
            wait, event = (writer.snapshot.get((table, 1)) for table in (WAITS, EVENTS))
            if wait is None or (wait.outcomes and self.broken != "decide a wait again"):
                return
            is_new = not last.sees(wait.xid) and self.broken != "new waits are not compared"
            is_recent = (
                event is not None and not last.sees(event) and self.broken != "new events are not compared"
            )
            if event is not None and (is_new or is_recent):
                self._decide(writer, "event")
            elif 1 in writer.database.lapsed and self.broken != "the worker decides the timeout":
                self._decide(writer, "timeout")

        def timeout(writer: Writer, row_id: int, last: Seen) -> None:
            wait = writer.snapshot.get((WAITS, 1))
            if wait is not None and not wait.outcomes and 1 in writer.database.lapsed:
                self._decide(writer, "timeout")
            else:
                match(writer, row_id, last)

        effect = timeout if self.broken == "deadlines come first" else match
        return Execute(Statement("", STATE, ids([1]), effect))

    def _decide(self, writer: Writer, outcome: str) -> None:
        rows = writer.database.see(writer.process)
        wait = rows[WAITS, 1]
        late = outcome == "timeout" and (EVENTS, 1) in writer.snapshot
        writer.update(WAITS, 1, wait._replace(outcomes=(*wait.outcomes, outcome), late=late))
        if self.broken != "the job resumes in another transaction" and rows.get((INFLIGHT, 1)) == PARKED:
            writer.update(INFLIGHT, 1, RUNNING)

    def decide(self, outcome: str) -> Execute:
        """Decide the wait outside of the leader."""

        def is_open(at: int, row: Wait, lapsed: Any) -> bool:
            return not row.outcomes or self.broken.endswith("a timeout overwrites")

        return Execute(Statement("", WAITS, is_open, lambda w, at, row: self._decide(w, outcome)))

    def time_out(self) -> Execute:
        """Decide an open wait after its deadline, without a look at events."""
        is_over = lambda at, row, lapsed: not row.outcomes and at in lapsed  # noqa: E731
        return Execute(Statement("", WAITS, is_over, lambda w, at, row: self._decide(w, "timeout")))

    def resume(self) -> Execute:
        """Make the job due again."""
        where = lambda at, row, lapsed: row == PARKED  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, lambda w, at, row: w.update(INFLIGHT, at, RUNNING)))

    def finish(self) -> Execute:
        """Finish the job."""

        def finish(writer: Writer, row_id: int, row: str) -> None:
            writer.delete(INFLIGHT, row_id)
            writer.insert(FINISHED, row_id, "finished")

        return Execute(Statement("", INFLIGHT, lambda at, row, lapsed: row == RUNNING, finish))


def worker(waits: Waits) -> Program:
    """Run the job until it waits; once it is due again, go on with the outcome."""

    def is_due(world: World, process: str) -> list[Any]:
        return [None] if world.database.committed.get((INFLIGHT, 1)) == RUNNING else []

    def run() -> Commands:
        while True:
            yield Act("wait for the job", is_due)
            found = yield waits.outcome()
            if found and found[0]:
                yield waits.finish()
            elif found and waits.broken == "the worker decides the timeout":
                yield waits.decide("timeout")
            elif not found:
                yield from park()

    def park() -> Commands:
        yield Begin(READ_COMMITTED)
        if waits.locks:
            yield waits.lock_name()
        yield waits.park()
        if waits.looks and (yield waits.find(EVENTS)):
            yield waits.decide("event")
        yield Commit()

    return run


def emitter(waits: Waits) -> Program:
    """Emit an event in a transaction."""
    is_old = waits.broken == "both sides lock the name, under repeatable read"

    def run() -> Commands:
        while True:
            yield Begin(REPEATABLE_READ if is_old else READ_COMMITTED)
            try:
                yield waits.find(STATE)
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
    """Match waits and events whenever there is something new."""

    def has_work(world: World, process: str) -> list[Any]:
        rows = world.database.committed
        wait, event, last = rows.get((WAITS, 1)), rows.get((EVENTS, 1)), rows[STATE, 1]
        is_new = any(not last.sees(xid) for xid in (wait and wait.xid, event) if xid is not None)
        is_over = wait is not None and not wait.outcomes and 1 in world.database.lapsed
        if waits.looks:
            return ["time out"] * is_over
        if is_new or (is_over and waits.broken != "the worker decides the timeout"):
            return ["match"]
        if waits.broken == "the worker decides the timeout" and 1 in world.database.lapsed:
            return ["resume"] if rows.get((INFLIGHT, 1)) == PARKED else []
        return []

    def run() -> Commands:
        yield Lead()
        while True:
            if (
                yield Act("look for work", has_work)
            ) == "resume" or waits.broken == "resume before the outcome":
                yield waits.resume()
            if waits.looks:
                yield waits.decide("timeout")
                continue
            if waits.broken == "deadlines by an earlier look" and not (yield waits.find(EVENTS)):
                yield waits.time_out()
            yield waits.match()
            if waits.broken == "the job resumes in another transaction" and any((yield waits.outcome())):
                yield waits.resume()

    return run


def one_outcome(world: World) -> None:
    """Require that a wait is decided once."""
    wait = world.database.committed.get((WAITS, 1))
    if wait is not None and len(wait.outcomes) > 1:
        raise Violation(f"a wait ends as {' and as '.join(wait.outcomes)}")


def no_event_is_overlooked(world: World) -> None:
    """Require that no wait times out under a snapshot that sees its event."""
    wait = world.database.committed.get((WAITS, 1))
    if wait is not None and wait.late:
        raise Violation("a wait times out although its event was there")


def resumes_with_an_outcome(world: World) -> None:
    """Require that a waiting job becomes due together with its outcome."""
    rows = world.database.committed
    wait = rows.get((WAITS, 1))
    if wait is not None and not wait.outcomes and rows.get((INFLIGHT, 1)) != PARKED:
        raise Violation("a waiting job resumes without an outcome")


def _deadline(world: World) -> Iterator[tuple[str, bool, World]]:
    """Let the deadline pass, once."""
    if world.faults.get("deadline"):
        after = world.copy()
        after.spend("deadline")
        after.database.lapsed |= {1}
        yield "the deadline passes", True, after


def waiting(broken: str, **faults: int) -> Scenario:
    """Let a job wait for an event that is emitted at the same time."""
    waits = Waits(broken)
    rows = {(INFLIGHT, 1): RUNNING, (STATE, 1): Seen(Xid(1)), (NAMES, 1): "free"}
    return Scenario(
        {"worker": worker(waits), "application": emitter(waits), "leader": leader(waits)},
        lambda: World(Database(rows, {}, next_xid=Xid(2)), faults=dict(faults)),
        (one_outcome, no_event_is_overlooked, resumes_with_an_outcome),
        lambda world: (FINISHED, 1) in world.database.committed,
        _deadline,
        lambda atom: False,
        lambda name: name == "leader",
    )


_EVENT, _TIMEOUT = "an event meets its wait", "an event meets its wait and the deadline"
_LOST = "an answer is lost while a job waits"
_SCENARIOS = {
    _EVENT: partial(waiting, kill=1),
    _TIMEOUT: partial(waiting, kill=1, deadline=1),
    _LOST: partial(waiting, deadline=1, answer=1),
}
_GOAL, _TWICE, _LATE, _EARLY = "out of reach", "a wait ends as", "its event was there", "without an outcome"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("both sides look after they insert", _EVENT, _GOAL),
        ("both sides lock the name, under repeatable read", _EVENT, _GOAL),
        ("new waits are not compared", _EVENT, _GOAL),
        ("new events are not compared", _EVENT, _GOAL),
        ("the worker decides the timeout", _TIMEOUT, _EARLY),
        ("resume before the outcome", _EVENT, _EARLY),
        ("decide a wait again", _TIMEOUT, _TWICE),
        ("both sides lock the name, and a timeout overwrites", _TIMEOUT, _TWICE),
        ("deadlines come first", _TIMEOUT, _LATE),
        ("deadlines by an earlier look", _TIMEOUT, _LATE),
        ("the job resumes in another transaction", _EVENT, _GOAL),
    )
)
_HARMLESS_ALONE = (Mutant("both sides lock the name, under read committed", _TIMEOUT, ""),)

WAITING = Module("waits", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
