"""Scenarios, the invariants that hold in each of their states, and the mutants that break them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from proof.atoms import Pop
from proof.checker import Atom, Program, Scenario, Violation, World
from proof.delivery.programs import application, leader, worker
from proof.delivery.statements import (
    ACCOUNTS,
    FINISHED,
    INFLIGHT,
    LAST_DELIVERY,
    PUSHED_UP_TO,
    REQUESTS,
    STAGED,
    Job,
    Statements,
)
from proof.module import Module, Mutant
from proof.postgres import Database

_PLACES = (STAGED, INFLIGHT, FINISHED)


def in_one_place(world: World) -> None:
    """Require each committed job in exactly one table, and no other job in any."""
    rows = world.database.committed
    for table, job in rows:
        if table == REQUESTS:
            places = [place for place in _PLACES if (place, job) in rows]
            wanted = 0 if rows[table, job] == "new" else 1
            if len(places) != wanted:
                raise Violation(f"job {job} is in {' and '.join(places) or 'no table'}")


def effect_with_finish(world: World) -> None:
    """Require that a job's own writes are committed once, with its finish."""
    rows = world.database.committed
    for (table, job), effects in rows.items():
        if table == ACCOUNTS and effects != int((FINISHED, job) in rows):
            state = "" if (FINISHED, job) in rows else "un"
            raise Violation(f"the {state}finished job {job} has taken effect {effects} times")


def one_attempt_per_delivery(world: World) -> None:
    """Require that a delivery starts at most one attempt."""
    deliveries = [(job, delivery) for job, delivery, _ in world.started]
    if len(deliveries) != len(set(deliveries)):
        raise Violation("a delivery starts two attempts")


def one_claim_per_token(world: World) -> None:
    """Require that a token belongs to one claim."""
    tokens = [(job, token) for job, _, token in world.started]
    if len(tokens) != len(set(tokens)):
        raise Violation("two claims have one token")


def watermark_below_number(world: World) -> None:
    """Require that all used delivery numbers are recorded, and the watermark is not above them."""
    numbers = world.database.sequences
    used = [row.delivery for (table, _), row in world.database.committed.items() if table == INFLIGHT]
    if not numbers[PUSHED_UP_TO] <= numbers[LAST_DELIVERY] or max(used, default=0) > numbers[LAST_DELIVERY]:
        raise Violation("a delivery number is used that is not recorded")


# A crash may lose the leader's commits, and with them numbers.
AFTER_A_CRASH = (in_one_place, effect_with_finish, one_claim_per_token)
ALWAYS = (*AFTER_A_CRASH, one_attempt_per_delivery, watermark_below_number)


def _all_done(world: World) -> bool:
    rows = world.database.committed
    return all((FINISHED, job) in rows for table, job in rows if table == REQUESTS)


def leases_expire(world: World) -> Iterator[tuple[str, bool, World]]:
    """Expire each lease; while its worker is busy, this is a fault."""
    for (table, job), row in world.database.committed.items():
        if table == INFLIGHT and row.is_claimed and job not in world.database.lapsed:
            is_busy = row.worker in world.held
            if is_busy and not world.faults.get("expiry"):
                continue
            after = world.copy()
            if is_busy:
                after.spend("expiry")
            after.database.lapsed |= {job}
            yield f"the lease of job {job} expires", is_busy, after


def is_pop(atom: Atom) -> bool:
    """Return True for a worker that waits for a delivery."""
    return isinstance(atom, Pop)


def _start(jobs: int, faults: Mapping[str, int], *, is_staged: bool, keeps_history: bool) -> World:
    rows: dict[tuple[str, int], object] = {}
    for job in range(1, jobs + 1):
        rows[REQUESTS, job] = "staged" if is_staged else "new"
        rows[ACCOUNTS, job] = 0
        if is_staged:
            rows[INFLIGHT, job] = Job(job)
    number = jobs if is_staged else 0
    numbers = {LAST_DELIVERY: number, PUSHED_UP_TO: number}
    database = Database(rows, numbers, keeps_history=keeps_history)
    if keeps_history:
        database.flushed = (rows, numbers)
    queue = tuple((job, job) for job in range(1, jobs + 1)) if is_staged else ()
    return World(database, queue, dict(faults))


def _scenario(
    programs: Mapping[str, Program], jobs: int, faults: Mapping[str, int], *, is_staged: bool
) -> Scenario:
    keeps_history = "crash" in faults
    return Scenario(
        programs,
        partial(_start, jobs, faults, is_staged=is_staged, keeps_history=keeps_history),
        AFTER_A_CRASH if keeps_history else ALWAYS,
        _all_done,
        leases_expire,
        is_pop,
        lambda name: not name.startswith("application"),
    )


def draining(broken: str, *, jobs: int = 2, leaders: int = 2, batch: int = 2, **faults: int) -> Scenario:
    """Applications commit while leaders move, push and are replaced; one worker runs the jobs."""
    statements = Statements(broken)
    programs = {f"application {job}": application(statements, job) for job in range(1, jobs + 1)}
    programs |= {f"leader {number}": leader(statements, batch) for number in range(1, leaders + 1)}
    programs["worker"] = worker("worker", statements)
    return _scenario(programs, jobs, faults, is_staged=False)


def claiming(
    broken: str, *, jobs: int = 1, fails: bool = False, heartbeats: bool = False, **faults: int
) -> Scenario:
    """Two workers claim, run, fail and finish delivered jobs while leases expire and the leader redelivers."""
    statements = Statements(broken)
    programs = {
        name: worker(name, statements, fails=fails, heartbeats=heartbeats)
        for name in ("worker 1", "worker 2")
    }
    programs["leader"] = leader(statements)
    return _scenario(programs, jobs, faults, is_staged=True)


_SCENARIOS = {
    "two applications, two leaders": partial(draining, batch=1, haste=1),
    "two applications, batches of two": partial(draining, leaders=1, haste=1),
    "a leader or the worker is killed": partial(draining, jobs=1, kill=2, haste=1),
    "Redis loses everything while jobs are moved": partial(draining, jobs=1, flush=1, kill=1, haste=1),
    "an answer is lost while jobs are moved": partial(draining, jobs=1, answer=1, haste=1),
    "PostgreSQL loses the last commits while jobs are moved": partial(draining, jobs=1, crash=1, kill=1),
    "leases expire": partial(claiming, expiry=2, haste=1),
    "leases expire, heartbeats": partial(claiming, heartbeats=True, expiry=2, kill=1),
    "attempts fail": partial(claiming, fails=True, expiry=1, haste=1),
    "deliveries are listed twice": partial(claiming, fails=True, duplicate=1, haste=1),
    "the leader redelivers in haste": partial(claiming, haste=2),
    "two jobs": partial(claiming, jobs=2, expiry=1),
    "a worker is killed": partial(claiming, kill=2, expiry=1),
    "an answer is lost": partial(claiming, answer=1, expiry=1),
    "Redis loses everything": partial(claiming, flush=1, expiry=1),
    "PostgreSQL loses the last commits": partial(claiming, crash=1, expiry=1),
}


_ONE_PLACE, _EFFECT, _PAST, _LEASE = "is in", "has taken effect", "past the leader", "a valid lease is taken"
_OUTDATED, _GOAL, _LOCK, _TOKEN = "an outdated claim", "out of reach", "without the lock", "have one token"
_NUMBER, _TWICE, _EARLY = "not recorded", "starts two attempts", "not been committed"
_MUTANTS = tuple(
    Mutant(*each)
    for each in (
        ("delete by range", "two applications, two leaders", _ONE_PLACE),
        ("move without a delete", "two applications, two leaders", _ONE_PLACE),
        ("push in the application's transaction", "two applications, two leaders", _EARLY),
        ("push after a rollback", "two applications, two leaders", _EARLY),
        ("lead without the lock", "two applications, two leaders", _LOCK),
        ("lead on after a lost connection", "an answer is lost while jobs are moved", _LOCK),
        ("numbers are not recorded", "two applications, two leaders", _NUMBER),
        ("renumbering is not recorded", "Redis loses everything", _NUMBER),
        ("take over without pushing again", "a leader or the worker is killed", _GOAL),
        ("never look for lost deliveries", "Redis loses everything", _GOAL),
        ("never redeliver retries", "attempts fail", _GOAL),
        ("claim through any delivery", "the leader redelivers in haste", _PAST),
        ("claim a waiting job", "deliveries are listed twice", _PAST),
        ("claim despite a lease", "deliveries are listed twice", _LEASE),
        ("redeliver a valid lease", "leases expire", _LEASE),
        ("redeliver under the same number", "leases expire", _TWICE),
        ("push before the commit", "a leader or the worker is killed", _TWICE),
        ("a retry does not wait", "deliveries are listed twice", _TWICE),
        ("claim keeps the token", "leases expire", _TOKEN),
        ("claim without a flush", "PostgreSQL loses the last commits", _TOKEN),
        ("compare no token", "leases expire", _OUTDATED),
        ("retry under any token", "attempts fail", _OUTDATED),
        ("finish in a separate transaction", "leases expire", _EFFECT),
        ("commit a refused finish", "leases expire", _EFFECT),
    )
)
# Harmless alone: another mechanism repairs the damage later.
_HARMLESS_ALONE = (
    Mutant("forget the push", "a leader or the worker is killed", ""),
    Mutant("record the watermark before the push", "a leader or the worker is killed", ""),
    Mutant("compare no worker", "PostgreSQL loses the last commits", ""),
)

DELIVERY = Module("delivery", _SCENARIOS, _MUTANTS, _HARMLESS_ALONE)
