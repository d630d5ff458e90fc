"""Cancellations and changes of waiting jobs, and retries of dead ones, while the leader and workers go on.

Redelivery is one step, since the module `delivery` has its programs. A change makes a job wait until a later time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from proof.atoms import Act, Begin, Claimed, Commit, Execute, Pop, RollBack, Select, Started, ids
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.scenarios import effect_with_finish, one_claim_per_token
from proof.delivery.statements import ACCOUNTS, FINISHED, INFLIGHT, LAST_DELIVERY, REQUESTS, STAGED
from proof.module import Module, Mutant
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    ConnectionLostError,
    Database,
    Rows,
    SerializationFailureError,
    Statement,
    Writer,
)

DEAD, CANCELLED_CLAIMS = "dead_jobs", "cancelled_claims"
_PLACES = (STAGED, INFLIGHT, FINISHED, DEAD)
# In the notes: attempts that run, by job, token and worker; jobs that must wait for a later time; and whether it came.
_RUNS, _LATER, _TIME = "runs", "later", "time"

Steps = Generator[Atom, Any, Any]


class Staged(NamedTuple):
    """Row of `staged_jobs`."""

    token: int = 0
    is_later: bool = False


class Flying(NamedTuple):
    """Row of `inflight_jobs`; `is_later`: its next attempt is due at the later time."""

    delivery: int
    token: int = 0
    worker: str = ""
    is_claimed: bool = False
    waits: bool = False
    is_later: bool = False


class Dead(NamedTuple):
    """Cancelled row of `dead_jobs`, and the token that the cancellation raised."""

    token: int
    before: int


def _claim_id(job: int, token: int) -> int:
    return job * 10 + token


def _number(writer: Writer) -> int:
    """Use the next delivery number."""
    numbers = writer.database.sequences
    number = numbers[LAST_DELIVERY] + 1
    writer.database.sequences = {**numbers, LAST_DELIVERY: number}
    return number


def leader(broken: str) -> Program:
    """Move due jobs, one at a time; after a conflict, skip locked rows."""

    def choose(world: World, process: str) -> list[Any]:
        time = world.notes[_TIME]
        rows = world.database.committed.items()
        is_any = any(table == STAGED and (time or not row.is_later) for (table, _), row in rows)
        return [time] if is_any else []

    def move(writer: Writer, row_id: int, row: Staged) -> int:
        number = _number(writer)
        writer.delete(STAGED, row_id)
        writer.insert(INFLIGHT, row_id, Flying(number, row.token))
        return number

    def run() -> Steps:
        skips_locked = broken == "read without locks at read committed"
        while True:
            time = yield Act("choose", choose)
            yield Begin(READ_COMMITTED if skips_locked else REPEATABLE_READ)
            found = yield _read_due(time, broken, skips_locked=skips_locked)
            try:
                numbers = yield Execute(Statement("drain.tables.staged.MOVE", STAGED, ids(found), move))
                yield Commit()
            except SerializationFailureError:
                yield RollBack()
                skips_locked = True
                continue
            skips_locked = broken == "read without locks at read committed"
            if numbers:
                yield Act("push", partial(_push, tuple(zip(found, numbers, strict=True))))

    return run


def _read_due(time: object, broken: str, *, skips_locked: bool) -> Execute:
    return Execute(
        Statement(
            "drain.tables.lanes.READ_DUE",
            STAGED,
            lambda at, row, lapsed: bool(time) or not row.is_later,
            lambda writer, at, row: at,
            reads=not skips_locked or broken == "read without locks at read committed",
            skips_locked=skips_locked,
            limit=1,
        )
    )


def _push(deliveries: tuple[tuple[int, int], ...], world: World, process: str) -> list[Any]:
    world.queue = (*world.queue, *deliveries)
    return [None]


def worker(name: str, broken: str, *, fails: bool = False, heartbeats: bool = False) -> Program:
    """Claim, run in a transaction, and look up why a finish was refused."""

    def run() -> Steps:
        while True:
            job, delivery = yield Pop()
            for claim in (yield _claim(job, delivery, broken)):
                has_lease = (yield _extend(claim, name, broken)) if heartbeats else True
                if not has_lease or (fails and claim.token == 1):
                    yield Act("fail", partial(_end, claim))
                    is_recorded = yield from _ask(_retry_later(claim, name, broken))
                else:
                    is_recorded = yield from _finish(claim, name)
                    if broken == "confirm before the end" and not is_recorded:
                        yield _confirm(claim)
                    yield Act("end", partial(_end, claim))
                if not is_recorded:
                    yield from _look_up(claim, broken)

    return run


def _ask(atom: Atom) -> Steps:
    while True:
        try:
            return (yield atom)
        except ConnectionLostError:
            continue


def _end(claim: Claimed, world: World, process: str) -> list[Any]:
    runs: Any = world.notes[_RUNS]
    world.notes = {**world.notes, _RUNS: runs - {(*claim, process)}}
    return [None]


class _Claim(Execute):
    """A claim; the attempt begins with it."""

    def step(self, world: World, process: str) -> Any:
        """Claim."""
        answers = super().step(world, process)
        if isinstance(answers, list):
            runs: Any = world.notes[_RUNS]
            later: Any = world.notes[_LATER]
            if not world.notes[_TIME] and any(claim.job in later for claim in answers[0]):
                raise Violation("a job starts before its time")
            world.notes = {**world.notes, _RUNS: runs | {(*claim, process) for claim in answers[0]}}
        return answers


def _claim(job: int, delivery: int, broken: str) -> _Claim:
    def is_free(at: int, row: Flying, lapsed: Any) -> bool:
        is_current = at == job and row.delivery == delivery
        waits = row.waits and broken != "claim a waiting job"
        return is_current and not waits and (not row.is_claimed or at in lapsed)

    def claim(writer: Writer, row_id: int, row: Flying) -> Started:
        writer.database.lapsed -= {row_id}
        new = Flying(row.delivery, row.token + 1, writer.process, is_claimed=True)
        writer.update(INFLIGHT, row_id, new)
        return Started(row_id, delivery, new.token)

    return _Claim(Statement("drain.tables.claims.CLAIM", INFLIGHT, is_free, claim))


def _is_fenced(claim: Claimed, name: str) -> Callable[[int, Flying, Any], bool]:
    return lambda at, row, lapsed: at == claim.job and (row.token, row.worker) == (claim.token, name)


def _extend(claim: Claimed, name: str, broken: str) -> Execute:
    fenced = _is_fenced(claim, name)

    def is_current(at: int, row: Flying, lapsed: Any) -> bool:
        return fenced(at, row, lapsed) and (not row.waits or broken == "extend a waiting job")

    def extend(writer: Writer, row_id: int, row: Flying) -> bool:
        writer.database.lapsed -= {row_id}
        writer.update(INFLIGHT, row_id, row._replace(is_claimed=True))
        return True

    return Execute(Statement("drain.tables.leases.EXTEND_MANY", INFLIGHT, is_current, extend))


def _retry_later(claim: Claimed, name: str, broken: str) -> Execute:
    def wait(writer: Writer, row_id: int, row: Flying) -> bool:
        # A change after a redelivery counts, although the claim's fence still holds.
        is_later = row.is_later and broken != "a late retry forgets a change"
        keeps_lease = row.is_claimed and broken == "a retry keeps its lease"
        writer.update(INFLIGHT, row_id, row._replace(is_claimed=keeps_lease, waits=True, is_later=is_later))
        return True

    return Execute(Statement("drain.tables.outcomes.RETRY_LATER", INFLIGHT, _is_fenced(claim, name), wait))


def _finish(claim: Claimed, name: str) -> Steps:
    def finish(writer: Writer, row_id: int, row: Flying) -> bool:
        writer.delete(INFLIGHT, row_id)
        writer.insert(FINISHED, row_id, row.token)
        return True

    def add(writer: Writer, row_id: int, row: int) -> None:
        writer.update(ACCOUNTS, row_id, row + 1)

    yield Begin(READ_COMMITTED)
    yield Execute(Statement("", ACCOUNTS, ids([claim.job]), add))
    is_finished = yield Execute(
        Statement("drain.tables.finishes.FINISH_OR_FAIL", INFLIGHT, _is_fenced(claim, name), finish)
    )
    yield Commit() if is_finished else RollBack()
    return is_finished


def _confirm(claim: Claimed) -> Execute:
    at = _claim_id(*claim)
    return Execute(
        Statement(
            "drain.tables.cancellations.CONFIRM_ENDS",
            *(CANCELLED_CLAIMS, ids([at]), lambda writer, at, row: writer.delete(CANCELLED_CLAIMS, at)),
        )
    )


def _look_up(claim: Claimed, broken: str) -> Steps:
    """Confirm the end, and report whether the job was cancelled."""
    yield _confirm(claim)
    is_cancelled = yield Select(
        "drain.tables.cancellations.IS_CANCELLED",
        lambda rows: (DEAD, claim.job) in rows and rows[DEAD, claim.job].token > claim.token,
    )
    if broken == "never look for a cancellation":
        is_cancelled = False
    yield Act("report", partial(_check_report, claim, is_cancelled))


def _check_report(claim: Claimed, is_cancelled: bool, world: World, process: str) -> list[Any]:  # noqa: FBT001
    dead = world.database.committed.get((DEAD, claim.job))
    if dead is not None and dead.before == claim.token and not is_cancelled:
        raise Violation(f"the cancelled job {claim.job} is reported as claimed elsewhere")
    return [None]


def canceller(broken: str, *, in_slices: bool, may_be_unknown: bool) -> Program:
    """Cancel a job: in the application's transaction, or by `drain cancel`, which commits after each table."""

    def run() -> Steps:
        seen: tuple[int, ...] = ()
        if broken == "cancel in one snapshot":
            seen = yield Select("look", lambda rows: tuple(at for table, at in rows if table == INFLIGHT))
        tables = (STAGED, INFLIGHT) if broken != "cancel in flight first" else (INFLIGHT, STAGED)
        found: tuple[bool, ...] = ()
        if not in_slices:
            yield Begin(READ_COMMITTED)
        for table in tables:
            found += yield _cancel_staged() if table == STAGED else _cancel_inflight(broken, seen)
        ended = yield Select("drain.tables.cancellations.WHEREABOUTS", _has_ended)
        if not in_slices:
            yield Commit()
        yield Act("answer", partial(_check_answer, bool(found) or ended or may_be_unknown))

    return run


def _has_ended(rows: Rows) -> bool:
    return (DEAD, 1) in rows or (FINISHED, 1) in rows


def _check_answer(is_known: bool, world: World, process: str) -> list[Any]:  # noqa: FBT001
    if not is_known:
        raise Violation("a committed job escapes its cancellation")
    return [None]


def _cancel_staged() -> Execute:
    def cancel(writer: Writer, row_id: int, row: Staged) -> bool:
        writer.delete(STAGED, row_id)
        writer.insert(DEAD, row_id, Dead(row.token + 1, row.token))
        return True

    return Execute(Statement("drain.tables.cancellations._CANCEL_STAGED", STAGED, ids([1]), cancel))


def _cancel_inflight(broken: str, seen: tuple[int, ...]) -> Execute:
    def cancel(writer: Writer, row_id: int, row: Flying) -> bool:
        if broken != "cancel without a delete":
            writer.delete(INFLIGHT, row_id)
        token = row.token if broken == "cancel keeps the token" else row.token + 1
        writer.insert(DEAD, row_id, Dead(token, row.token))
        if row.is_claimed and row_id not in writer.database.lapsed and broken != "keep no place":
            writer.insert(CANCELLED_CLAIMS, _claim_id(row_id, row.token), row.worker)
        return True

    where = ids(seen if broken == "cancel in one snapshot" else [1])
    return Execute(Statement("drain.tables.cancellations._CANCEL_INFLIGHT", INFLIGHT, where, cancel))


def changer(broken: str) -> Program:
    """Move a job to a later time, as `drain jobs move --run-at` does."""

    def run() -> Steps:
        yield _change_staged()
        unclaimed: tuple[int, ...] = (1,)
        if broken == "look for the lease before the lock":
            unclaimed = yield Select("look", _unclaimed)
        yield _change_inflight(broken, unclaimed)

    return run


def _unclaimed(rows: Rows) -> tuple[int, ...]:
    return tuple(at for (table, at), row in rows.items() if table == INFLIGHT and not row.is_claimed)


class _Change(Execute):
    """A change of one table, committed at once."""

    def step(self, world: World, process: str) -> Any:
        """Change rows, and note which must wait."""
        answers = super().step(world, process)
        if isinstance(answers, list):
            later: Any = world.notes[_LATER]
            world.notes = {**world.notes, _LATER: later | set(answers[0])}
        return answers


def _change_staged() -> _Change:
    def change(writer: Writer, row_id: int, row: Staged) -> int:
        writer.update(STAGED, row_id, row._replace(is_later=True))
        return row_id

    return _Change(Statement("drain.tables.changes._CHANGE_STAGED", STAGED, ids([1]), change))


def _change_inflight(broken: str, wanted: tuple[int, ...]) -> _Change:
    any_lease = broken in ("change a running job", "look for the lease before the lock")

    def change(writer: Writer, row_id: int, row: Flying) -> int:
        if row.is_claimed:
            raise Violation("a running job is changed")
        waits = row.waits or broken != "change without a wait"
        writer.update(INFLIGHT, row_id, row._replace(waits=waits, is_later=True))
        return row_id

    where = lambda at, row, lapsed: at in wanted and (any_lease or not row.is_claimed)  # noqa: E731
    return _Change(Statement("drain.tables.changes._CHANGE_INFLIGHT", INFLIGHT, where, change))


class _Revive(Execute):
    """A retry of dead jobs, which are due at once."""

    def step(self, world: World, process: str) -> Any:
        """Retry, and forget changes of the time."""
        answers = super().step(world, process)
        if isinstance(answers, list):
            world.notes = {**world.notes, _LATER: frozenset()}
        return answers


def reviver(broken: str) -> Program:
    """Retry a dead job once."""

    def revive(writer: Writer, row_id: int, row: Dead) -> None:
        if broken != "revive without a delete":
            writer.delete(DEAD, row_id)
        writer.insert(STAGED, row_id, Staged(row.token))

    def run() -> Steps:
        yield Act("wait for a dead job", _is_dead)
        yield _Revive(Statement("drain.tables.dead.REVIVE", DEAD, ids([1]), revive))

    return run


def discarder() -> Program:
    """Discard a dead job."""

    def discard(writer: Writer, row_id: int, row: Dead) -> None:
        writer.delete(DEAD, row_id)
        writer.update(REQUESTS, row_id, "discarded")

    def run() -> Steps:
        yield Act("wait for a dead job", _is_dead)
        yield Execute(Statement("drain.tables.dead.DISCARD", DEAD, ids([1]), discard))

    return run


def _is_dead(world: World, process: str) -> list[Any]:
    return [None] * ((DEAD, 1) in world.database.committed)


def in_one_place(world: World) -> None:
    """Require each job in exactly one table, unless it was discarded."""
    rows = world.database.committed
    for (table, job), state in rows.items():
        if table == REQUESTS:
            places = [place for place in _PLACES if (place, job) in rows]
            if len(places) != int(state != "discarded"):
                raise Violation(f"job {job} is in {' and '.join(places) or 'none of the tables'}")


def runs_have_places(world: World) -> None:
    """Require that an attempt with a valid lease counts, even if its job was cancelled."""
    rows = world.database.committed
    runs: Any = world.notes[_RUNS]
    for job, token, name in runs:
        row = rows.get((INFLIGHT, job))
        has_row = row is not None and (row.token, row.worker) == (token, name)
        counts = (CANCELLED_CLAIMS, _claim_id(job, token)) in rows or rows.get((FINISHED, job)) == token
        if not has_row and not counts:
            raise Violation(f"job {job} runs on without its place")


def claimed_or_waiting(world: World) -> None:
    """Require that no job has a lease while it waits for its next attempt."""
    for (table, job), row in world.database.committed.items():
        if table == INFLIGHT and row.is_claimed and row.waits:
            raise Violation(f"job {job} is claimed while it waits")


def _happens(world: World) -> Iterator[tuple[str, bool, World]]:
    """Let the time come, expire leases (a fault while the worker is busy), and redeliver."""
    if world.notes[_LATER] and not world.notes[_TIME]:
        after = world.copy()
        after.notes = {**world.notes, _TIME: True}
        yield "the later time comes", False, after
    rows: Mapping[tuple[str, int], Any] = world.database.committed
    for (table, at), row in rows.items():
        if table == CANCELLED_CLAIMS:
            yield from _expired(world, row, at // 10, at)
        elif table == INFLIGHT and row.is_claimed and at not in world.database.lapsed:
            yield from _expired(world, row.worker, at, None)
        elif table == INFLIGHT:
            yield from _redelivered(world, at, row)


def _expired(world: World, name: str, job: int, claim: int | None) -> Iterator[tuple[str, bool, World]]:
    is_busy = name in world.held
    if is_busy and not world.faults.get("expiry"):
        return
    after = world.copy()
    if is_busy:
        after.spend("expiry")
    runs: Any = world.notes[_RUNS]
    # An attempt without a lease no longer counts.
    token = world.database.committed[INFLIGHT, job].token if claim is None else claim % 10
    after.notes = {**world.notes, _RUNS: runs - {(job, token, name)}}
    if claim is None:
        after.database.lapsed |= {job}
    else:
        # `cancellations.prune`
        after.database.committed = {
            key: row for key, row in world.database.committed.items() if key != (CANCELLED_CLAIMS, claim)
        }
    yield f"the lease of job {job} expires", is_busy, after


def _redelivered(world: World, job: int, row: Flying) -> Iterator[tuple[str, bool, World]]:
    delivery = (job, row.delivery)
    is_listed = delivery in world.queue or delivery in world.held.values()
    if row.waits and row.is_later and not world.notes[_TIME]:
        return
    if not row.waits and not row.is_claimed and is_listed:
        return
    after = world.copy()

    def renumber(writer: Writer, row_id: int, row: Flying) -> int:
        number = _number(writer)
        new = row._replace(delivery=number, is_claimed=False, waits=False, is_later=False)
        writer.update(INFLIGHT, row_id, new)
        return number

    statement = Statement("", INFLIGHT, ids([job]), renumber, skips_locked=True)
    numbers = after.database.execute("redelivery", statement)
    if isinstance(numbers, list) and numbers:
        after.queue = (*after.queue, (job, numbers[0]))
        yield f"the leader redelivers job {job}", False, after


def _all_settled(world: World) -> bool:
    rows = world.database.committed
    ended = all(
        (FINISHED, job) in rows or (DEAD, job) in rows or state == "discarded"
        for (table, job), state in rows.items()
        if table == REQUESTS
    )
    return ended and not any(table == CANCELLED_CLAIMS for table, _ in rows)


def _start(faults: Mapping[str, int], *, is_delivered: bool) -> World:
    rows: dict[tuple[str, int], Any] = {(REQUESTS, 1): "staged", (ACCOUNTS, 1): 0}
    if is_delivered:
        rows[INFLIGHT, 1] = Flying(1)
    else:
        rows[STAGED, 1] = Staged()
    database = Database(rows, {LAST_DELIVERY: int(is_delivered)})
    none: frozenset[object] = frozenset()
    notes: dict[str, Any] = {_RUNS: none, _LATER: none, _TIME: False}
    queue = ((1, 1),) if is_delivered else ()
    return World(database, queue, dict(faults), notes=notes)


def changing(
    broken: str,
    *operators: str,
    workers: int = 1,
    is_delivered: bool = False,
    fails: bool = False,
    heartbeats: bool = False,
    in_slices: bool = False,
    **faults: int,
) -> Scenario:
    """Run a job while operators cancel, change, retry or discard it."""
    may_be_unknown = "reviver" in operators or "discarder" in operators
    made = {
        "canceller": canceller(broken, in_slices=in_slices, may_be_unknown=may_be_unknown),
        "changer": changer(broken),
        "reviver": reviver(broken),
        "discarder": discarder(),
    }
    names = [f"worker {number}" for number in range(1, workers + 1)]
    programs = {name: worker(name, broken, fails=fails, heartbeats=heartbeats) for name in names}
    programs["leader"] = leader(broken)
    programs |= {name: made[name] for name in operators}
    return Scenario(
        programs,
        partial(_start, faults, is_delivered=is_delivered),
        (in_one_place, effect_with_finish, one_claim_per_token, runs_have_places, claimed_or_waiting),
        _all_settled,
        _happens,
        lambda atom: isinstance(atom, Pop),
        lambda name: name.startswith("worker"),
    )


def _with(*operators: str, **given: Any) -> Callable[[str], Scenario]:
    return lambda broken: changing(broken, *operators, **given)


_SCENARIOS: Mapping[str, Callable[[str], Scenario]] = {
    "a job is cancelled": _with("canceller"),
    "a job is cancelled by the command": _with("canceller", in_slices=True),
    "a job is cancelled as its lease expires": _with("canceller", is_delivered=True, workers=2, expiry=1),
    "a cancelled job is retried": _with("canceller", "reviver", workers=2),
    "a cancelled job is retried or discarded": _with("canceller", "reviver", "discarder", fails=True),
    "a failing job is cancelled": _with("canceller", fails=True, is_delivered=True, workers=2, expiry=1),
    "a job is changed": _with("changer"),
    "a failing job is changed": _with("changer", fails=True, is_delivered=True, workers=2, expiry=1),
    "a failing job is changed and an answer is lost": _with("changer", fails=True, answer=1),
    "a job is changed and cancelled": _with("changer", "canceller"),
    "a job is changed, cancelled and retried": _with("changer", "canceller", "reviver"),
    "a cancelled job is retried as its lease expires": _with(
        "canceller", "reviver", is_delivered=True, workers=2, expiry=1
    ),
    "leases are extended": _with("changer", "canceller", heartbeats=True, is_delivered=True, expiry=1),
    "a worker is killed": _with("canceller", "changer", kill=1),
}
_PLACE, _ESCAPES, _AS_STALE = "job 1 is in", "escapes its cancellation", "as claimed elsewhere"
_COUNTS, _EARLY, _RUNNING = "without its place", "before its time", "a running job is changed"
_WAITS = "is claimed while it waits"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("cancel without a delete", "a job is cancelled", _PLACE),
        ("revive without a delete", "a cancelled job is retried", _PLACE),
        ("cancel in flight first", "a job is cancelled", _ESCAPES),
        ("cancel in one snapshot", "a job is cancelled", _ESCAPES),
        ("cancel keeps the token", "a job is cancelled", _AS_STALE),
        ("never look for a cancellation", "a job is cancelled", _AS_STALE),
        ("keep no place", "a job is cancelled", _COUNTS),
        ("confirm before the end", "a job is cancelled", _COUNTS),
        ("change without a wait", "a job is changed", _EARLY),
        ("claim a waiting job", "a job is changed", _EARLY),
        ("read without locks at read committed", "a job is changed", _EARLY),
        ("a late retry forgets a change", "a failing job is changed", _EARLY),
        ("extend a waiting job", "leases are extended", _WAITS),
        ("a retry keeps its lease", "a failing job is changed", _WAITS),
        ("change a running job", "a job is changed", _RUNNING),
        ("look for the lease before the lock", "a job is changed", _RUNNING),
    )
)

CANCELLING = Module("cancelling", _SCENARIOS, _MUTANTS)
